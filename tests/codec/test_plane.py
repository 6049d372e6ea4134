"""Codec `plane`, and the planes that it shares with the full mode of deltas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from codec_samples import NONCE, dense, part_spec, random_lanes, whole_spec

from deltastore.codec import frames, planes, shard
from deltastore.codec.plane import Plane
from deltastore.codec.types import Dense, SliceSpec, Whole
from deltastore.errors import BadShard, LimitExceeded
from deltastore.protocol.digest import Lanes

PLANE = Plane()
BF16 = whole_spec("BF16", 3, "a")
U8 = whole_spec("U8", 2, "b")
DIGESTS = bytes([1, *bytes(7)]) * 2
GOOD = {"P0": b"\x7f\x80\x81\x05\x06", "P1": b"\x00\x01\x82"}


def craft(
    parts: Mapping[str, bytes],
    *,
    compressed: Sequence[str] = (),
    raw: Mapping[str, int] | None = None,
    digests: bytes = DIGESTS,
) -> bytes:
    """A shard with any streams at all."""
    sizes, tensors = {}, []
    parts = {"D": digests, **parts} if digests else parts
    for name, part in parts.items():
        stored = part
        if name in compressed:
            stored, sizes[name] = frames.compress(part)
        tensors.append((name, shard.Tensor("U8", (len(stored),), stored)))
    declared = {name: len(parts[name]) for name in compressed} | dict(raw or {})
    meta = shard.Meta("plane", NONCE.hex(), frames=sizes, raw=declared)
    return shard.build(meta, tensors)


def decode(data: bytes, raw_size: int = 24, specs: Sequence[SliceSpec] = (BF16, U8)) -> list[list[int]]:
    changes = PLANE.decode(data, specs, raw_size=raw_size).changes
    assert all(isinstance(change, Whole) for change in changes)
    return [change.lanes.tolist() for change in changes if isinstance(change, Whole)]


@pytest.mark.req("DS-PLANE-1", "DS-PLANE-2")
@pytest.mark.parametrize("compressed", [(), ("P0",), ("P1",), ("P0", "P1")])
def test_each_plane_is_read_in_either_form(compressed: Sequence[str]) -> None:
    # 0x7f00 is 0x3f80 rotated: the value 1.0, its exponent in the first plane and its sign in the last bit.
    assert decode(craft(GOOD, compressed=compressed)) == [[0x3F80, 0xC000, 0x40C1], [5, 6]]


@pytest.mark.req("DS-PLANE-1", "DS-PLANE-3")
def test_the_golden_shard_is_what_is_written() -> None:
    lanes = np.array([0x3F80, 0xC000, 0x40C1], np.uint16)
    denses = [Dense(BF16, lanes, 1), Dense(U8, np.array([5, 6], np.uint8), 1)]
    encoded = PLANE.encode(denses, nonce=NONCE)
    assert encoded.data == craft(GOOD)
    assert (encoded.raw_size, encoded.changed, encoded.state_delta) == (24, 5, 2)


@pytest.mark.req("DS-PLANE-1")
@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("BF16", 0x3F80, [0x7F, 0x00]),
        ("BF16", 0xFF81, [0xFF, 0x03]),
        ("F16", 0x8001, [0x00, 0x03]),
        ("F32", 0xBF800001, [0x7F, 0x00, 0x00, 0x03]),
        ("F64", 0xBFF0000000000001, [0xFF, 0, 0, 0, 0, 0, 0, 0x1B]),
        ("I32", 0x01020304, [1, 2, 3, 4]),
        ("F8_E4M3", 0x9A, [0x9A]),
    ],
)
def test_floats_are_rotated_and_the_first_plane_is_the_highest(
    dtype: str, bits: int, expected: list[int]
) -> None:
    spec = whole_spec(dtype, 1)
    found = planes.split(spec, np.array([bits], spec.uint))
    assert [list(part) for part in found.values()] == [[byte] for byte in expected]
    assert list(found) == [f"P{i}" for i in range(spec.lane_bytes)]


def weights(count: int) -> Lanes:
    values = np.random.default_rng(0).normal(0, 0.02, count).astype(np.float32)
    lanes: Lanes = (values.view(np.uint32) >> 16).astype(np.uint16)
    return lanes


@pytest.mark.req("DS-PLANE-2")
@pytest.mark.parametrize("count", [1 << 16, 3 << 20])
def test_exponents_are_compressed_and_mantissas_are_not(count: int) -> None:
    spec = whole_spec("BF16", count)
    encoded = PLANE.encode([dense(spec, weights(count))], nonce=NONCE)
    file = shard.parse(encoded.data)
    assert file.meta.raw == {"P0": count}
    assert len(file.tensors["P1"].data) == count
    assert len(encoded.data) < 0.67 * spec.nbytes


def test_a_mantissa_that_compresses_is_compressed() -> None:
    spec = whole_spec("BF16", 2 << 20)
    encoded = PLANE.encode([dense(spec, np.full(spec.lanes, 0x3F81, np.uint16))], nonce=NONCE)
    assert shard.parse(encoded.data).meta.raw.keys() == {"P0", "P1"}
    assert len(encoded.data) < 2000


def test_a_part_of_a_tensor_comes_back() -> None:
    spec = part_spec("F32", 2, 6, 8)
    lanes = random_lanes(np.random.default_rng(2), spec)
    encoded = PLANE.encode([dense(spec, lanes)], nonce=NONCE)
    assert decode(encoded.data, 24, [spec]) == [lanes.tolist()]


@pytest.mark.req("DS-PLANE-3", "DS-CODEC-3")
@pytest.mark.parametrize(
    "broken",
    [
        {"P0": GOOD["P0"][:-1]},
        {"P0": GOOD["P0"] + b"\0"},
        {"P1": GOOD["P1"] + b"\0"},
        {"P2": b"\0"},
        {"F0": b"\0"},
        {"M": b"\0\0"},
    ],
    ids=str,
)
@pytest.mark.parametrize("compressed", [(), ("P0", "P1")])
def test_planes_of_other_slices_are_refused(broken: dict[str, bytes], compressed: Sequence[str]) -> None:
    with pytest.raises(BadShard):
        decode(craft({**GOOD, **broken}, compressed=compressed))


@pytest.mark.req("DS-PLANE-3", "DS-CODEC-3")
@pytest.mark.parametrize("name", GOOD)
def test_a_missing_plane_is_refused(name: str) -> None:
    rest = {other: part for other, part in GOOD.items() if other != name}
    with pytest.raises(BadShard, match=name):
        decode(craft(rest), 24 - len(GOOD[name]))


@pytest.mark.req("DS-FRAME-2")
@pytest.mark.parametrize("size", [0, 1, 4, 6, 2**53 - 1])
def test_another_raw_size_is_refused_before_inflating(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = craft(GOOD, compressed=["P0", "P1"], raw={"P0": size})
    monkeypatch.setattr(frames, "decompress", None)
    with pytest.raises(BadShard if size < 10**6 else LimitExceeded, match=r"P0|raw size"):
        decode(data, 16 + size + len(GOOD["P1"]))


@pytest.mark.req("DS-CODEC-2")
def test_another_raw_size_than_the_descriptors_is_refused() -> None:
    for raw_size, error in ((0, BadShard), (23, BadShard), (25, BadShard), (2**60, LimitExceeded)):
        with pytest.raises(error):
            decode(craft(GOOD), raw_size)


@pytest.mark.req("DS-STREAM-1")
def test_a_slice_without_lanes_has_no_digest() -> None:
    none = whole_spec("F32", 0, "none")
    specs = [none, BF16, none, U8]
    decoded = PLANE.decode(craft(GOOD), specs, raw_size=24)
    assert (decoded.deltas, decoded.changed) == ([0, 1, 0, 1], [0, 3, 0, 2])
    encoded = PLANE.encode([dense(none, np.empty(0, np.uint32))], nonce=NONCE)
    assert (shard.parse(encoded.data).tensors, encoded.raw_size) == ({}, 0)
    with pytest.raises(BadShard, match="'D'"):
        PLANE.decode(craft({}, digests=bytes(8)), [none], raw_size=8)
