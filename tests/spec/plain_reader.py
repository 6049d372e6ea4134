"""A reader written from the specification alone: no line of it uses the library.

It knows directories only (`file://`), reads a version from its newest anchor, and checks what the text
says that it must: SHA-256 of objects, parents of records, sums of edges, digests of states.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import plain_ctx
from plain_streams import BLOCK, Streams, inflate

MASK = 2**64 - 1
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "I64": 64}

State = dict[str, np.ndarray]


class Slice(NamedTuple):
    """A resolved slice; `lanes` are those of the state, to be written to."""

    name: str
    dtype: str
    label: str
    lanes: np.ndarray


class PlainReader:
    """One store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        said = json.loads((root / "STORE.json").read_bytes())
        assert (said["format"], said["spec"]) == ("deltastore", 1)
        self.store = bytes.fromhex(said["store"])
        self.first = said["first_version"]

    def newest(self) -> int:
        """Section 10: gallop, then bisect."""
        low, step = self.first - 1, 1
        while self.slot_path(low + step).exists():
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.slot_path(middle).exists() else (low, middle)
        return int(low)

    def slot_path(self, version: int) -> Path:
        return self.root / "versions" / f"{version:020d}"

    def record(self, version: int) -> tuple[dict[str, Any], bytes]:
        """Sections 5.2 and 5.3: the record in its envelope, and the SHA-256 of what is stored."""
        data = self.slot_path(version).read_bytes()
        envelope = msgpack.unpackb(data)
        assert envelope["type"] == "version"
        record = msgpack.unpackb(envelope["body"])
        assert (record["store"], record["spec"], record["version"]) == (self.store, 1, version)
        return record, hashlib.sha256(data).digest()

    def object(self, descriptor: dict[str, Any]) -> bytes:
        """DS-KEY-4 and DS-OBJ-2."""
        name = descriptor["sha256"].hex()
        data = (self.root / "objects" / name[:2] / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (descriptor["size"], name)
        return bytes(data)

    def shards(self) -> list[dict[str, Any]]:
        """Descriptors of the shards of all embedded edges."""
        records = [self.record(version)[0] for version in range(self.first, self.newest() + 1)]
        return [shard for record in records for edge in record["edges"] for shard in edge["shards"]]

    def added(self, version: int, schema: bytes) -> list[dict[str, Any]]:
        """Section 5.5: edges from records of their own."""
        edges = []
        for path in sorted((self.root / "edges" / f"{version:020d}").glob("*")):
            data = path.read_bytes()
            assert path.name.partition("-")[2] == hashlib.sha256(data).hexdigest()
            envelope = msgpack.unpackb(data)
            record = msgpack.unpackb(envelope["body"])
            assert (envelope["type"], record["store"], record["schema"]) == ("edge", self.store, schema)
            edges.append(record["edge"])
        return edges

    def read(self, version: int) -> State:
        """A whole state, from the newest anchor at or below the version."""
        path: list[dict[str, Any]] = []
        record, _ = self.record(version)
        schema = msgpack.unpackb(self.object(record["schema"]))["tensors"]
        target, at = record["state"], version
        while True:
            record, _ = self.record(at)
            if at > self.first:
                assert record["parent"] == self.record(at - 1)[1]
            edges = record["edges"] + self.added(at, record["schema"]["sha256"])
            anchor = next((edge for edge in edges if edge["base"] == "none"), None)
            if anchor or record["kind"] != "claim":
                path.append(anchor or edges[0])
            if anchor:
                break
            at -= 1
        state: State = {name: empty(dtype, shape) for name, dtype, shape, alias in schema if alias is None}
        now = 0
        for edge in reversed(path):
            assert number(edge["base_state"] or bytes(8)) == (0 if edge["base"] == "none" else now)
            now = (
                number(edge["base_state"] or bytes(8)) + sum(number(s["state_delta"]) for s in edge["shards"])
            ) & MASK
            assert now == number(edge["state"])
            for one in edge["shards"]:
                self.apply(one, schema, state)
            assert sum(digest(name, lanes) for name, lanes in state.items()) & MASK == now
        assert now == number(target)
        return state

    def apply(self, descriptor: dict[str, Any], schema: list[Any], state: State) -> None:
        """Section 9."""
        meta, tensors = container(self.object(descriptor))
        slices = resolve(descriptor["slices"], schema, state)
        codec, size = meta["codec"], sum(tensor.size for tensor in tensors.values())
        assert codec == descriptor["codec"]
        assert len(meta.get("digest", [])) == (len(slices) if codec in {"coo", "plain"} else 0)
        added = [int(text, 16) for text in meta.get("digest", [])]
        if codec == "plain":
            for one in slices:
                one.lanes[:] = tensors[one.label].view(one.lanes.dtype)
        elif codec == "coo":
            for one in slices:
                apply_coo(one, state[one.name], tensors)
        elif codec == "ctx":
            names = {one.name for one in slices}
            added.append(-sum(digest(name, state[name]) for name in names))
            size = apply_ctx(slices, meta, tensors)
            added.append(sum(digest(name, state[name]) for name in names))
        else:
            added += [int(word) for word in tensors.get("D", np.empty(0, np.uint8)).view("<u8")]
            size = apply_streams(slices, meta, tensors)
        assert size == descriptor["raw_size"]
        assert sum(added) & MASK == number(descriptor["state_delta"])


def apply_coo(one: Slice, lanes: np.ndarray, tensors: dict[str, np.ndarray]) -> None:
    """Section 9.7; indices are those of the whole tensor."""
    if f"{one.label}.indices" in tensors:
        values = tensors[f"{one.label}.values"].view(lanes.dtype)
        index = tensors[f"{one.label}.indices"]
        lanes[index.view("<i4" if index.size == 4 * values.size else "<i8")] = values


def apply_ctx(slices: list[Slice], meta: dict[str, Any], tensors: dict[str, np.ndarray]) -> int:
    """Section 9.11; returns the raw size."""
    assert tensors.keys() == ({"S"} if slices else set())
    stored = b"".join(tensor.tobytes() for tensor in tensors.values())
    return plain_ctx.apply(meta, stored, [(one.dtype, one.lanes) for one in slices])


def apply_streams(slices: list[Slice], meta: dict[str, Any], tensors: dict[str, np.ndarray]) -> int:
    """Sections 9.4 to 9.6 and 9.10; returns the raw size."""
    streams = opened(meta, tensors)
    modes = bytes(tensors.get("M", b""))
    size = streams.raw + len(modes) + tensors.get("D", np.empty(0)).size
    if meta["codec"] == "plane":
        assert not modes
        modes = bytes(3 if one.lanes.size else 0 for one in slices)
    assert 8 * sum(mode > 0 for mode in modes) == tensors.get("D", np.empty(0)).size
    for mode, one in zip(modes, slices, strict=True):
        apply_slice(meta["codec"], mode, one.dtype, one.lanes, streams)
    assert streams.all_taken()
    return size


def opened(meta: dict[str, Any], tensors: dict[str, np.ndarray]) -> Streams:
    """Section 9.3: streams of `ulp`, `abs` and `plane` but `M` and `D`; planes may be stored as they are."""
    data, frames = {}, meta.get("frames", {})
    for name in tensors.keys() - {"M", "D"}:
        data[name] = tensors[name].tobytes()
        if name in frames:
            data[name] = inflate(data[name], frames[name])
            assert len(data[name]) == meta["raw"][name]
        else:
            assert name[0] in "PV"
    return Streams(data)


def apply_slice(codec: str, mode: int, dtype: str, lanes: np.ndarray, streams: Streams) -> None:
    """Sections 9.4 to 9.6 and 9.10."""
    width = lanes.dtype.itemsize
    if mode == 3:
        lanes[:] = streams.planes("P", lanes.size, width, dtype)
    if mode not in {1, 2}:
        return
    columns = 4 if codec == "ulp" else 2
    for first in range(0, lanes.size, BLOCK):
        symbols, changes, *rest = struct.unpack(f"<{columns}I", streams.take("T", 4 * columns))
        where = positions(streams, mode, symbols, first)
        assert len(where) == changes
        if codec == "ulp":
            near, far = rest
            for lane, step in zip(where, streams.steps(changes, near, far, width), strict=True):
                lanes[lane] = (int(lanes[lane]) + step) % 2 ** (8 * width)
        else:
            lanes[where] = streams.planes("V", changes, width, dtype)


def positions(streams: Streams, mode: int, symbols: int, first: int) -> list[int]:
    """Section 9.4: the lanes that change in a block."""
    if mode == 1:
        gaps = list(streams.take("G", symbols))
    else:
        low, high = streams.take("H", symbols), streams.take("I", symbols)
        gaps = [a + 256 * b for a, b in zip(low, high, strict=True)]
    where, p = [], first
    for s in gaps:
        p += s
        if s != (255 if mode == 1 else 65535):
            where.append(p)
            p += 1
    return where


def container(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Section 9.1."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    meta = json.loads(header.pop("__metadata__")["deltastore"])
    assert meta["format"] == 1
    body = np.frombuffer(data, np.uint8)[8 + length :]
    return meta, {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}


def resolve(slices: list[Any], schema: list[Any], state: State) -> list[Slice]:
    """Section 7, and labels as in 9.2."""
    found = []
    for one in slices:
        if len(one) == 3:
            name, dtype, *_ = schema[one[0]]
            start, stop = one[1:]
            whole = (start, stop) == (0, state[name].size)
            text = name if whole else f"{name}[{start}:{stop}]"
            found.append(Slice(name, dtype, text, state[name][start:stop]))
        else:
            rows = schema[one[0] : one[0] + one[1]]
            found += [
                Slice(name, dtype, name, state[name]) for name, dtype, _, alias in rows if alias is None
            ]
    return found


def empty(dtype: str, shape: list[int]) -> np.ndarray:
    """Zeros for the lanes of a tensor (section 6)."""
    size = BITS[dtype]
    for n in shape:
        size *= n
    return np.zeros(size // BITS[dtype], f"<u{BITS[dtype] // 8}")


def digest(name: str, lanes: np.ndarray) -> int:
    """Section 8."""
    data = lanes.tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    key = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    x = words + key + (np.arange(words.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return int((x ^ x >> np.uint64(31)).sum(dtype=np.uint64))


def number(word: bytes) -> int:
    """A 64-bit word of a record."""
    return int.from_bytes(word, "big")
