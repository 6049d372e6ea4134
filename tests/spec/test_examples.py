"""Test values, the worked example and the tables of the specification, computed with the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import plain_ctx
import pytest

from deltastore import codec
from deltastore.codec import contexts, ctx_reading, frames, kernels, shard
from deltastore.codec.types import InMemory, SliceSpec, Sparse
from deltastore.protocol import dtypes, features, limits, wire
from deltastore.protocol.digest import MASK, digest, tensor_key
from deltastore.protocol.identity import Identity
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState

TEXT = (Path(__file__).parents[2] / "spec" / "deltastore-v1.md").read_text()
TABLES = ("M", "D")
LANES = SliceSpec("w", "BF16", (2, 10), 0, 20, 20)
CTX_LANES = SliceSpec("w", "BF16", (2, 12), 0, 24, 24)


def section(number: str) -> str:
    """The text under a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(number)}\.? .*?\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


def prose(number: str) -> str:
    """The same with its lines joined."""
    return " ".join(section(number).split())


def rows(number: str, columns: int) -> list[list[str]]:
    """Rows of the tables of a section, without backquotes."""
    lines = [line.strip("|").split("|") for line in section(number).splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line] for line in lines if len(line) == columns]


def digests() -> list[tuple[str, int, bytes, int]]:
    found = rows("8", 4)[2:]
    return [(name, int(j), bytes.fromhex(data), int(value, 16)) for name, j, data, value in found]


@pytest.mark.req("DS-DIGEST-1", "DS-DIGEST-2")
@pytest.mark.parametrize(("name", "first", "data", "expected"), digests())
def test_digest_test_value(name: str, first: int, data: bytes, expected: int) -> None:
    assert digest(np.frombuffer(data, np.uint8), tensor_key(name), first) == expected
    assert plainly(name, data, first) == expected


@pytest.mark.req("DS-DIGEST-1")
def test_tensor_key_test_value() -> None:
    assert f'`k("w")` is `{tensor_key("w"):016x}`' in prose("8")


@pytest.mark.req("DS-DIGEST-4")
def test_state_digest_test_value_is_the_sum_over_owners_without_aliases() -> None:
    known = {name: value for name, _, data, value in digests() if data == b"\x01"}
    one = np.array([1], np.uint8)
    schema = Schema.of(
        [TensorSpec("a", "U8", (1,)), TensorSpec("b", "U8", (1,)), TensorSpec("c", "U8", (1,), "a")]
    )
    state = HostState(schema, {"a": one, "b": one.copy()}).digest()
    assert state == (known["a"] + known["b"]) & MASK
    assert f"has the digest `{state:016x}`" in prose("8")


@pytest.mark.req("DS-DIGEST-3")
def test_change_of_the_digest_is_after_minus_before() -> None:
    old, new = example()
    diff = kernels.diff(LANES, old.copy(), new)
    before, after = (plainly("w", lanes.tobytes(), 0) for lanes in (old, new))
    assert diff.state_delta == (after - before) & MASK


def plainly(name: str, data: bytes, first: int) -> int:
    """The formula of section 8, word by word."""
    key, total = tensor_key(name), 0
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little")
        x = (word + key + (first + at // 8 + 1) * 0x9E3779B97F4A7C15) & MASK
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
        total += x ^ x >> 31
    return total & MASK


def example() -> tuple[np.ndarray, np.ndarray]:
    """The states before and after of the example for `ulp`."""
    old = np.full(20, 0x3F80, np.uint16)
    new = old.copy()
    steps = {2: 1, 3: -1, 9: 2, 15: 0x8000, 19: -3}
    for lane, step in steps.items():
        new[lane] = (int(old[lane]) + step) % 2**16
    return old, new


def streams(number: str = "9.5") -> dict[str, bytes]:
    """Raw streams of the example of a codec."""
    return {name: bytes.fromhex(data) for name, data, _ in rows(number, 3) if re.fullmatch("[0-9a-f]+", data)}


@pytest.mark.req("DS-GAP-1", "DS-GAP-2", "DS-GAP-3", "DS-ULP-1", "DS-ULP-2")
def test_ulp_example_is_what_the_codec_writes() -> None:
    old, new = example()
    encoded = codec.DELTA["ulp"].encode([codec.DELTA["ulp"].diff(LANES, old.copy(), new)], nonce=bytes(16))
    file = shard.parse(encoded.data)
    raw = {
        name: frames.decompress(memoryview(tensor.data), file.meta.frames[name], file.meta.raw[name])
        for name, tensor in file.tensors.items()
        if name not in TABLES
    }
    assert raw | {name: bytes(file.tensors[name].data) for name in TABLES} == streams()
    assert streams()["D"] == encoded.state_delta.to_bytes(8, "little")
    assert f"`raw_size` is {encoded.raw_size}." in prose("9.5")


@pytest.mark.req("DS-GAP-3", "DS-ULP-1")
def test_ulp_example_decodes_to_the_state_after() -> None:
    old, new = example()
    stored = {name: frames.compress(data) for name, data in streams().items() if name not in TABLES}
    tensors = {name: streams()[name] for name in TABLES} | {name: data for name, (data, _) in stored.items()}
    meta = shard.Meta(
        codec="ulp",
        nonce="00" * 16,
        frames={name: sizes for name, (_, sizes) in stored.items()},
        raw={name: len(streams()[name]) for name in stored},
    )
    data = shard.build(meta, [(n, shard.Tensor("U8", (len(d),), d)) for n, d in tensors.items()])
    decoded = codec.DELTA["ulp"].decode(data, [LANES], raw_size=37)
    assert decoded.changed == [5]
    (change,) = decoded.changes
    assert isinstance(change, Sparse)
    assert change.positions.tolist() == [2, 3, 9, 15, 19]
    result = old.copy()
    result[change.positions] = kernels.new_bits(change, old[change.positions])
    assert result.tolist() == new.tolist()


def ctx_example() -> tuple[np.ndarray, np.ndarray]:
    """The states before and after of the example for `ctx`."""
    match = re.search("Lanes before: `([0-9a-f ]+)`", prose("9.11"))
    assert match
    old = np.array([int(lane, 16) for lane in match[1].split()], np.uint16)
    new = old.copy()
    steps = {1: 1, 3: -1, 5: -2, 15: 0x8000, 17: 2, 20: -300}
    for lane, step in steps.items():
        new[lane] = (int(old[lane]) + step) % 2**16
    return old, new


def ctx_shard() -> tuple[shard.Meta, bytes]:
    """Metadata and `S` of the example for `ctx`, with no stream compressed."""
    raw = {name: len(data) for name, data in streams("9.11").items()}
    meta = shard.Meta(codec="ctx", nonce="00" * 16, frames=dict.fromkeys(raw, ()), raw=raw)
    return meta, b"".join(streams("9.11").values())


@pytest.mark.req("DS-CTX-1", "DS-CTX-4", "DS-CTX-5")
def test_ctx_example_is_what_the_kernel_writes() -> None:
    """Origin and dense classes are the example's: they are the writer's choice."""
    old, new = ctx_example()
    positions = np.flatnonzero(old != new)
    raw = streams("9.11")
    run = contexts.Run(new, contexts.field_of("BF16"), np.frombuffer(raw["E"], np.uint8))
    coded = kernels.ctx_encode([run], [(positions, (new - old)[positions])], raw["M"][-1])
    written = {
        "M": bytes([contexts.Mode.CODED, 5]),
        "T": coded.row.pack(),
        "E": bytes([114]),
        **dict(zip(contexts.DENSE, coded.dense, strict=False)),
        "G": coded.unary,
        "U": coded.codes,
        "X": coded.near,
        "L": coded.low,
        "Y": coded.far,
        "W": coded.wide,
    }
    assert {name: bytes(data) for name, data in written.items() if data} == raw
    assert [name for name in ctx_reading.STREAMS if name in raw] == list(raw)


@pytest.mark.req("DS-CTX-1", "DS-CTX-2")
def test_ctx_example_decodes_to_the_state_after() -> None:
    old, new = ctx_example()
    meta, stored = ctx_shard()
    data = shard.build(meta, [("S", shard.Tensor("U8", (len(stored),), stored))])
    decoded = codec.DELTA["ctx"].decode(data, [CTX_LANES], raw_size=len(stored), base=InMemory([old]))
    (change,) = decoded.changes
    assert isinstance(change, Sparse)
    result = old.copy()
    result[change.positions] = kernels.new_bits(change, old[change.positions])
    assert result.tolist() == new.tolist()
    before, after = (plainly("w", lanes.tobytes(), 0) for lanes in (old, new))
    said = f"`raw_size` is {len(stored)}, and `state_delta` is `{(after - before) & MASK:016x}`"
    assert said in prose("9.11")


@pytest.mark.req("DS-CTX-1")
def test_ctx_example_is_read_by_the_plain_reader() -> None:
    lanes, new = ctx_example()
    meta, stored = ctx_shard()
    plain = {"frames": dict(meta.frames), "raw": dict(meta.raw)}
    assert plain_ctx.apply(plain, stored, [("BF16", lanes)]) == 112
    assert lanes.tolist() == new.tolist()


@pytest.mark.req("DS-LIMIT-1")
def test_table_of_limits_is_that_of_the_code() -> None:
    listed = {name: int(value) for name, value, _ in rows("15", 3)[2:]}
    assert listed == {name: value for name, value in vars(limits).items() if isinstance(value, int)}


@pytest.mark.req("DS-SCHEMA-3")
def test_table_of_dtypes_is_that_of_the_code() -> None:
    listed = {name: int(bits) for bits, names in rows("6", 2)[2:] for name in names.split("` `")}
    assert listed == dtypes.BITS


@pytest.mark.req("DS-STORE-1")
def test_example_of_store_json_is_read() -> None:
    match = re.search(r"```json\n(.*?)```", section("5.7"), re.DOTALL)
    assert match
    assert Identity.from_bytes(match[1].encode()) == Identity(store="00112233445566778899aabbccddeeff")


@pytest.mark.req("DS-SIG-2")
def test_example_of_signed_bytes() -> None:
    assert f"is `{wire.signed_bytes('edge', b'abc').decode()}`." in prose("5.2")


@pytest.mark.req("DS-CODEC-1")
def test_table_of_codecs_is_that_of_the_code() -> None:
    listed = {name: kind for name, kind, *_ in rows("9.2", 4)[2:]}
    assert listed == {id_: codec.get(id_).kind for id_ in (*codec.DELTA, *codec.ANCHOR)}


@pytest.mark.req("DS-FEAT-1")
def test_no_features_are_known_in_version_1() -> None:
    assert "Version 1 defines none." in prose("14")
    assert frozenset() == features.KNOWN
