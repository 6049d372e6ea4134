"""Codecs coo and plain, as other tools see them; and abs, to the byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from codec_samples import DTYPES, NONCE, dense, diff, part_spec, whole_spec
from numpy.typing import NDArray
from safetensors.numpy import load

from deltastore import codec as codecs
from deltastore.codec import frames, shard
from deltastore.codec.types import Dense, Diff, SliceSpec, Sparse, Whole
from deltastore.errors import BadShard, LimitExceeded, SchemaMismatch, Unsupported
from deltastore.protocol.digest import Lanes
from deltastore.protocol.dtypes import BITS

ABS, COO = codecs.DELTA["abs"], codecs.DELTA["coo"]
PLAIN = codecs.ANCHOR["plain"]
Tensors = Mapping[str, shard.Tensor]


def changed(spec: SliceSpec, *at: int) -> Diff:
    base = np.zeros(spec.lanes, spec.uint)
    new = base.copy()
    new[list(at)] = 1 + np.arange(len(at))
    return diff("coo", spec, base, new)  # type: ignore[no-any-return]


# --- coo ---------------------------------------------------------------------------------------------


@pytest.mark.req("DS-COO-1")
def test_coo_is_indices_of_the_whole_tensor_and_values_of_its_own_dtype() -> None:
    diffs = [
        changed(SliceSpec("a", "F16", (3, 4), 0, 12, 12), 2, 11),
        changed(whole_spec("F32", 5, "same")),
        changed(part_spec("I32", 8, 16, 100, "b"), 0, 3),
        changed(part_spec("U8", 2**33, 2**33 + 8, 2**33 + 8, "c"), 7),
    ]
    encoded = COO.encode(diffs, nonce=NONCE)
    found: dict[str, NDArray[Any]] = load(encoded.data)
    assert {name: (array.dtype.name, array.tolist()) for name, array in found.items()} == {
        "a.indices": ("int32", [2, 11]),
        "a.values": ("float16", np.array([1, 2], np.uint16).view(np.float16).tolist()),
        "b[8:16].indices": ("int32", [8, 11]),
        "b[8:16].values": ("int32", [1, 2]),
        f"c[{2**33}:{2**33 + 8}].indices": ("int64", [2**33 + 7]),
        f"c[{2**33}:{2**33 + 8}].values": ("uint8", [1]),
    }
    assert encoded.raw_size == 2 * 4 + 2 * 2 + 2 * 4 + 2 * 4 + 8 + 1


def test_coo_values_of_packed_elements_are_bytes() -> None:
    encoded = COO.encode([changed(whole_spec("F4", 9), 1)], nonce=NONCE)
    assert shard.parse(encoded.data).tensors["w.values"].dtype == "U8"


@pytest.mark.parametrize(
    ("total", "dtype"), [(2**31 - 1, "I32"), (2**31, "I64")], ids=["at 2^31 - 1", "at 2^31"]
)
def test_coo_indices_are_as_wide_as_the_tensor_needs(total: int, dtype: str) -> None:
    spec = part_spec("U8", total - total % 8 - 8, total, total)
    encoded = COO.encode([changed(spec, 3)], nonce=NONCE)
    assert shard.parse(encoded.data).tensors[f"{spec.label}.indices"].dtype == dtype


def test_coo_refuses_names_that_collide() -> None:
    first = changed(part_spec("U8", 0, 8, 16, "a"), 1)
    second = changed(whole_spec("U8", 8, "a[0:8]"), 1)
    with pytest.raises(Unsupported, match=r"a\[0:8\]"):
        COO.encode([first, second], nonce=NONCE)


@pytest.mark.req("DS-COO-2")
def test_coo_refuses_slices_of_one_label_even_where_one_does_not_change() -> None:
    slices = [part_spec("U8", 0, 8, 16, "a"), whole_spec("U8", 8, "a[0:8]")]
    with pytest.raises(Unsupported, match=r"a\[0:8\]"):
        COO.encode([changed(slices[0], 1), changed(slices[1])], nonce=NONCE)
    indices = shard.Tensor("I32", (1,), np.array([1], "<i4").tobytes())
    tensors = [("a[0:8].indices", indices), ("a[0:8].values", shard.Tensor("U8", (1,), b"x"))]
    data = shard.build(shard.Meta("coo", NONCE.hex(), (1, 1)), tensors)
    with pytest.raises(BadShard, match="tensors"):
        COO.decode(data, slices, raw_size=5)


COO_SPEC = part_spec("U16", 8, 16, 24, "a")
INDICES = np.array([8, 10, 15], "<i4")
VALUES = np.array([1, 2, 3], "<u2")


def coo(
    indices: NDArray[Any], values: NDArray[Any], digest: Sequence[int] = (1,), **other: shard.Tensor
) -> bytes:
    names = {np.dtype(np.int32): "I32", np.dtype(np.int64): "I64", np.dtype(np.uint16): "U16"}
    tensors = {
        f"a[8:16].{name}": shard.Tensor(names.get(a.dtype, "I16"), a.shape, a.tobytes())
        for name, a in (("indices", indices), ("values", values))
    }
    meta = shard.Meta("coo", NONCE.hex(), digest)
    return shard.build(meta, list({**tensors, **other}.items()))


def decode_coo(data: bytes, spec: SliceSpec = COO_SPEC) -> Sparse:
    size = sum(len(tensor.data) for tensor in shard.parse(data).tensors.values())
    (change,) = COO.decode(data, [spec], raw_size=size).changes
    assert isinstance(change, Sparse)
    return change


def test_the_crafted_coo_is_good() -> None:
    change = decode_coo(coo(INDICES, VALUES))
    assert change.positions.tolist() == [0, 2, 7]
    assert change.values.tolist() == [1, 2, 3]
    assert not change.relative


@pytest.mark.req("DS-COO-1")
@pytest.mark.parametrize(
    "indices",
    [[7, 10, 15], [8, 10, 16], [8, 8, 15], [10, 8, 15], [8, 15, 10], [-1, 10, 15], [8, -9, 15]],
    ids=str,
)
def test_coo_indices_ascend_within_their_slice(indices: list[int]) -> None:
    with pytest.raises(BadShard, match="ascend"):
        decode_coo(coo(np.array(indices, "<i4"), VALUES))


@pytest.mark.req("DS-COO-1")
@pytest.mark.parametrize("index", [-(2**63), -1, 2**63 - 1, 2**62])
def test_coo_wide_indices_cannot_wrap_into_range(index: int) -> None:
    spec = part_spec("U16", 8, 16, 2**40, "a")
    indices = INDICES.astype(np.int64)
    assert decode_coo(coo(indices, VALUES), spec).positions.tolist() == [0, 2, 7]
    for at in range(3):
        broken = indices.copy()
        broken[at] = index
        with pytest.raises(BadShard, match="ascend"):
            decode_coo(coo(broken, VALUES), spec)


def without(name: str) -> bytes:
    file = shard.parse(coo(INDICES, VALUES))
    return shard.build(file.meta, [item for item in file.tensors.items() if item[0] != name])


@pytest.mark.req("DS-CODEC-3", "DS-COO-1", "DS-COO-2")
def test_coo_tensors_are_exactly_those_expected() -> None:
    one = shard.Tensor("U8", (1,), b"x")
    cases = {
        "wide": coo(INDICES.astype(np.int64), VALUES),
        "dtype": coo(INDICES, VALUES.astype(np.int16)),
        "fewer indices": coo(INDICES[:2], VALUES),
        "fewer values": coo(INDICES, VALUES[:2]),
        "shape": coo(INDICES, VALUES.reshape(3, 1)),
        "more": coo(INDICES, VALUES, extra=one),
        "empty": coo(INDICES[:0], VALUES[:0]),
        "no indices": without("a[8:16].indices"),
        "no values": without("a[8:16].values"),
    }
    for data in cases.values():
        with pytest.raises(BadShard):
            decode_coo(data)
    with pytest.raises(BadShard):
        decode_coo(coo(INDICES, VALUES), part_spec("U16", 8, 20, 24, "a"))


@pytest.mark.req("DS-SHARD-3")
@pytest.mark.parametrize("digest", [(), (1, 1)], ids=str)
def test_coo_has_a_digest_for_each_slice(digest: Sequence[int]) -> None:
    with pytest.raises(BadShard, match="digests"):
        decode_coo(coo(INDICES, VALUES, digest))


@pytest.mark.req("DS-SHARD-3")
def test_a_slice_that_changes_nothing_has_no_digest() -> None:
    for codec, spec in (("coo", COO_SPEC), ("plain", SliceSpec("a", "U16", (0,), 0, 0, 0))):
        tensors = [("a", shard.Tensor("U16", (0,), b""))] if codec == "plain" else []
        for digest in (0, 1):
            data = shard.build(shard.Meta(codec, NONCE.hex(), (digest,)), tensors)
            if not digest:
                assert codecs.get(codec).decode(data, [spec], raw_size=0).changed == [0]
                continue
            with pytest.raises(BadShard, match="changes no lane"):
                codecs.get(codec).decode(data, [spec], raw_size=0)


@pytest.mark.req("DS-COO-2")
def test_coo_changes_as_many_lanes_as_it_has_indices() -> None:
    decoded = COO.decode(coo(INDICES, VALUES), [COO_SPEC], raw_size=18)
    assert (decoded.changed, decoded.deltas) == ([3], [1])


# --- plain -------------------------------------------------------------------------------------------


@pytest.mark.req("DS-PLAIN-1")
@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 2), (6,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_keeps_names_dtypes_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    lanes, rest = divmod(math.prod(shape) * BITS[dtype], 8 * max(1, BITS[dtype] // 8))
    if rest:
        shape, lanes = (2, 4), BITS[dtype]
    spec = SliceSpec("a.b", dtype, shape, 0, lanes, lanes)
    bits = np.arange(lanes).astype(spec.uint)
    encoded = PLAIN.encode([dense(spec, bits)], nonce=NONCE)
    (tensor,) = shard.parse(encoded.data).tensors.values()
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    (change,) = PLAIN.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
    assert isinstance(change, Whole)
    np.testing.assert_array_equal(change.lanes, bits)


def test_plain_is_a_checkpoint_that_other_tools_load() -> None:
    spec = SliceSpec("a", "F32", (2, 3), 0, 6, 6)
    values = np.arange(6, dtype=np.float32)
    encoded = PLAIN.encode([dense(spec, values.view(np.uint32))], nonce=NONCE)
    np.testing.assert_array_equal(load(encoded.data)["a"], values.reshape(2, 3))


def test_plain_parts_are_flat_and_packed_ones_bytes() -> None:
    specs = [part_spec("BF16", 4, 8, 8, "a"), part_spec("F6_E2M3", 8, 16, 24, "b")]
    denses = [dense(spec, np.zeros(spec.lanes, spec.uint)) for spec in specs]
    found = shard.parse(PLAIN.encode(denses, nonce=NONCE).data).tensors
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        "a[4:8]": ("BF16", (4,)),
        "b[8:16]": ("U8", (8,)),
    }


def test_plain_reads_views_without_copying() -> None:
    spec = whole_spec("BF16", 64)
    encoded = PLAIN.encode([dense(spec, np.zeros(64, np.uint16))], nonce=NONCE)
    (change,) = PLAIN.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
    assert isinstance(change, Whole)
    assert np.shares_memory(change.lanes, np.frombuffer(encoded.data, np.uint8))
    assert not change.lanes.flags.writeable


def test_plain_reads_a_file_whose_data_are_not_aligned() -> None:
    spec = whole_spec("F32", 2)
    data = PLAIN.encode([dense(spec, np.array([1, 2], np.uint32))], nonce=NONCE).data
    length = int.from_bytes(data[:8], "little") + 1
    shifted = length.to_bytes(8, "little") + data[8 : 7 + length] + b" " + data[7 + length :]
    (change,) = PLAIN.decode(shifted, [spec], raw_size=8).changes
    assert isinstance(change, Whole)
    assert change.lanes.flags.aligned
    assert change.lanes.tolist() == [1, 2]


def test_plain_refuses_names_that_collide() -> None:
    lanes = np.zeros(8, np.uint8)
    specs = [part_spec("U8", 0, 8, 16, "a"), whole_spec("U8", 8, "a[0:8]")]
    with pytest.raises(Unsupported, match=r"a\[0:8\]"):
        PLAIN.encode([Dense(spec, lanes, 0) for spec in specs], nonce=NONCE)


def test_plain_refuses_lanes_that_are_not_of_the_slice() -> None:
    with pytest.raises(SchemaMismatch):
        PLAIN.encode([Dense(whole_spec("U8", 8), np.zeros(7, np.uint8), 0)], nonce=NONCE)


@pytest.mark.req("DS-PLAIN-1")
def test_plain_of_other_slices_is_refused() -> None:
    spec = SliceSpec("a", "U16", (2, 2), 0, 4, 4)
    data = PLAIN.encode([dense(spec, np.zeros(4, np.uint16))], nonce=NONCE).data
    others = [
        SliceSpec("b", "U16", (2, 2), 0, 4, 4),
        SliceSpec("a", "I16", (2, 2), 0, 4, 4),
        SliceSpec("a", "U16", (4,), 0, 4, 4),
        SliceSpec("a", "U16", (2, 2), 0, 4, 8),
        SliceSpec("a", "U16", (2, 2), 0, 5, 5),
        SliceSpec("a", "U16", (2, 2), 0, 3, 3),
    ]
    for other in others:
        with pytest.raises(BadShard):
            PLAIN.decode(data, [other], raw_size=8)
    for specs in ([], [spec, spec]):
        with pytest.raises(BadShard):
            PLAIN.decode(data, specs, raw_size=8)
    for raw_size in (0, 7, 9):
        with pytest.raises(BadShard):
            PLAIN.decode(data, [spec], raw_size=raw_size)
    with pytest.raises(LimitExceeded):
        PLAIN.decode(data, [spec], raw_size=2**40)


# --- abs ---------------------------------------------------------------------------------------------


def raw(data: bytes) -> dict[str, bytes]:
    file = shard.parse(data)
    return {
        name: frames.decompress(memoryview(tensor.data), file.meta.frames[name], file.meta.raw[name])
        if name in file.meta.raw
        else bytes(tensor.data)
        for name, tensor in file.tensors.items()
    }


def with_bits(spec: SliceSpec, at: int, bits: int) -> tuple[SliceSpec, Lanes, Lanes]:
    new = np.zeros(spec.lanes, spec.uint)
    new[at] = bits
    return spec, np.zeros(spec.lanes, spec.uint), new


@pytest.mark.req("DS-ABS-1")
def test_abs_writes_new_bits_in_planes_of_all_slices() -> None:
    diffs = [
        diff("abs", *with_bits(whole_spec("BF16", 100, "a"), 7, 0x7FC1)),
        diff("abs", *with_bits(whole_spec("U8", 100, "b"), 99, 0x42)),
        diff("abs", *with_bits(whole_spec("U32", 1, "c"), 0, 0x01020304)),
    ]
    encoded = ABS.encode(diffs, nonce=NONCE)
    assert raw(encoded.data) == {
        "T": bytes.fromhex("01000000 01000000 01000000 01000000"),
        "G": bytes([7, 99]),
        "M": bytes([1, 1, 3]),
        "D": b"".join(item.state_delta.to_bytes(8, "little") for item in diffs),
        "V0": bytes([0xFF, 0x42]),
        "V1": bytes([0x82]),
        "P0": b"\x01",
        "P1": b"\x02",
        "P2": b"\x03",
        "P3": b"\x04",
    }


@pytest.mark.req("DS-ABS-1")
def test_abs_applied_twice_does_no_harm() -> None:
    spec, base, new = with_bits(whole_spec("BF16", 100), 7, 0x7FC1)
    encoded = ABS.encode([diff("abs", spec, base, new)], nonce=NONCE)
    (change,) = ABS.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
    assert isinstance(change, Sparse)
    assert not change.relative
    assert change.values.tolist() == [0x7FC1]
