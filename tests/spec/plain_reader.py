"""A reader written from the specification alone: no line of it uses the library.

It knows directories only (`file://`), reads a version from its newest anchor, and checks what the text
says that it must: SHA-256 of objects, parents of records, sums of edges, digests of states.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zstandard

MASK = 2**64 - 1
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "I64": 64}
ROTATION = {"BF16": 1, "F16": 1, "F32": 1, "F64": 4}
BLOCK = 2**18

State = dict[str, np.ndarray]


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
        assert meta["codec"] == descriptor["codec"]
        assert len(meta.get("digest", [])) == (len(slices) if meta["codec"] in {"coo", "plain"} else 0)
        digests = [int(text, 16) for text in meta.get("digest", [])]
        digests += [int(word) for word in tensors.get("D", np.empty(0, np.uint8)).view("<u8")]
        assert sum(digests) & MASK == number(descriptor["state_delta"])
        if meta["codec"] == "plain":
            for name, start, stop in slices:
                state[name][start:stop] = tensors[label(name, start, stop, state)].view(state[name].dtype)
        elif meta["codec"] == "coo":
            for name, start, stop in slices:
                base = label(name, start, stop, state)
                if f"{base}.indices" in tensors:
                    values = tensors[f"{base}.values"].view(state[name].dtype)
                    index = tensors[f"{base}.indices"]
                    state[name][index.view("<i4" if index.size == 4 * values.size else "<i8")] = values
        else:
            dtypes = {name: dtype for name, dtype, _, _ in schema}
            streams = Streams(meta, tensors)
            assert streams.raw + len(slices) + 8 * len(digests) == descriptor["raw_size"]
            assert sum(mode > 0 for mode in (tensors["M"] if slices else b"")) == len(digests)
            for mode, (name, start, stop) in zip(tensors["M"] if slices else b"", slices, strict=True):
                streams.apply(int(mode), state[name][start:stop], ROTATION.get(dtypes[name], 0))


class Streams:
    """Sections 9.3 to 9.6 and 9.9: streams, inflated where they are compressed, with a cursor each."""

    def __init__(self, meta: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.codec = meta["codec"]
        self.data: dict[str, bytes] = {}
        self.raw = 0
        for name in tensors.keys() - {"M", "D"} - meta.get("frames", {}).keys():
            assert name[0] in "PV"
            self.data[name] = tensors[name].tobytes()
            self.raw += tensors[name].size
        for name, sizes in meta.get("frames", {}).items():
            stored, at, parts = tensors[name].tobytes(), 0, []
            for size in sizes:
                parts.append(zstandard.ZstdDecompressor().decompress(stored[at : at + size]))
                at += size
            assert all(len(part) == 2**20 for part in parts[:-1])
            self.data[name] = b"".join(parts)
            assert len(self.data[name]) == meta["raw"][name]
            self.raw += meta["raw"][name]

    def take(self, name: str, size: int) -> bytes:
        taken, self.data[name] = self.data.get(name, b"")[:size], self.data.get(name, b"")[size:]
        assert len(taken) == size
        return taken

    def apply(self, mode: int, lanes: np.ndarray, rotation: int) -> None:
        width = lanes.dtype.itemsize
        if mode == 3:
            lanes[:] = self.planes("P", lanes.size, width, rotation)
        if mode not in {1, 2}:
            return
        columns = 4 if self.codec == "ulp" else 2
        for first in range(0, lanes.size, BLOCK):
            symbols, changes, *rest = struct.unpack(f"<{columns}I", self.take("T", 4 * columns))
            where = self.positions(mode, symbols, first)
            assert len(where) == changes
            if self.codec == "ulp":
                for lane, step in zip(where, self.steps(changes, rest, width), strict=True):
                    lanes[lane] = (int(lanes[lane]) + step) % 2 ** (8 * width)
            else:
                lanes[where] = self.planes("V", changes, width, rotation)

    def planes(self, kind: str, count: int, width: int, rotation: int) -> list[int]:
        """Section 9.9, lane by lane."""
        planes = [self.take(f"{kind}{i}", count) for i in range(width)]
        rotated = (int.from_bytes(row, "big") for row in zip(*planes, strict=True))
        return [(x >> rotation | x << 8 * width - rotation) % 2 ** (8 * width) for x in rotated]

    def positions(self, mode: int, symbols: int, first: int) -> list[int]:
        if mode == 1:
            gaps = list(self.take("G", symbols))
        else:
            low, high = self.take("H", symbols), self.take("I", symbols)
            gaps = [a + 256 * b for a, b in zip(low, high, strict=True)]
        where, p = [], first
        for s in gaps:
            p += s
            if s != (255 if mode == 1 else 65535):
                where.append(p)
                p += 1
        return where

    def steps(self, changes: int, counts: list[int], width: int) -> list[int]:
        packed = self.take("U", -(-changes // 4))
        codes = [packed[i // 4] >> 2 * (i % 4) & 3 for i in range(changes)]
        near = iter(self.take("X", counts[0]))
        far = iter(np.frombuffer(self.take("Y", counts[1] * width), f"<i{width}"))
        steps = []
        for code in codes:
            if code < 2:
                steps.append((-1, 1)[code])
            elif (x := next(near)) == 255:
                steps.append(int(next(far)))
            else:
                z = x + 3
                steps.append(z // 2 if z % 2 == 0 else -(z + 1) // 2)
        assert next(near, None) is None
        assert next(far, None) is None
        return steps


def container(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Section 9.1."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    meta = json.loads(header.pop("__metadata__")["deltastore"])
    assert meta["format"] == 1
    body = np.frombuffer(data, np.uint8)[8 + length :]
    return meta, {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}


def resolve(slices: list[Any], schema: list[Any], state: State) -> list[tuple[str, int, int]]:
    """Section 7."""
    found = []
    for one in slices:
        if len(one) == 3:
            found.append((schema[one[0]][0], one[1], one[2]))
        else:
            rows = schema[one[0] : one[0] + one[1]]
            found += [(name, 0, state[name].size) for name, _, _, alias in rows if alias is None]
    return found


def label(name: str, start: int, stop: int, state: State) -> str:
    """Section 9.2."""
    return name if (start, stop) == (0, state[name].size) else f"{name}[{start}:{stop}]"


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
