"""Codec ulp, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from codec_samples import NONCE, STYLES, dense, diff, encode, pair, whole_spec

from deltastore import codec as codecs
from deltastore.codec import frames, kernels, shard, twin_steps
from deltastore.codec.types import Encoded, SliceSpec, Sparse, Whole
from deltastore.codec.ulp import Steps
from deltastore.errors import BadShard, DeltaStoreError, LimitExceeded, UsageError
from deltastore.protocol.digest import Lanes

ULP = codecs.DELTA["ulp"]
Streams = Mapping[str, bytes]
BLOCK = kernels.BLOCK


def streams(encoded: Encoded) -> dict[str, bytes]:
    """The raw streams of a shard, but for the digests."""
    file = shard.parse(encoded.data)
    result = {name: bytes(tensor.data) for name, tensor in file.tensors.items() if name != "D"}
    for name, raw in file.meta.raw.items():
        result[name] = frames.decompress(memoryview(result[name]), file.meta.frames[name], raw)
    return result


def craft(parts: Streams) -> Encoded:
    """A shard with any streams at all."""
    sizes, raw, tensors = {}, {}, []
    for name, part in parts.items():
        stored = part
        if name not in {"M", "D"}:
            stored, sizes[name] = frames.compress(part)
            raw[name] = len(part)
        tensors.append((name, shard.Tensor("U8", (len(stored),), stored)))
    meta = shard.Meta("ulp", NONCE.hex(), frames=sizes, raw=raw)
    total = sum(map(len, parts.values()))
    return Encoded(shard.build(meta, tensors), total, 0, 0)


def steps(lanes: int, changes: Mapping[int, int], dtype: str = "BF16") -> Steps:
    spec = whole_spec(dtype, lanes)
    base = np.full(lanes, 100, spec.uint)
    new = base.copy()
    for at, step in changes.items():
        new[at] = (100 + step) % (1 << 8 * spec.lane_bytes)
    return diff("ulp", spec, base, new)  # type: ignore[no-any-return]


def test_gaps_codes_and_escapes_are_written_as_specified() -> None:
    encoded = ULP.encode([steps(1000, {0: 1, 3: -1, 300: 2, 301: 200, 999: -1})], nonce=NONCE)
    assert streams(encoded) == {
        "M": b"\x01",
        "T": bytes.fromhex("08000000 05000000 02000000 01000000"),
        "G": bytes.fromhex("00 02 ff29 00 ffffbb"),
        "U": bytes([0b10_10_00_01, 0b00]),
        "X": bytes.fromhex("01 ff"),
        "Y": bytes.fromhex("c800"),
    }
    assert encoded.raw_size == 1 + 8 + 16 + 8 + 2 + 2 + 2


@pytest.mark.req("DS-GAP-1")
def test_rare_changes_have_gaps_of_16_bits_in_two_planes() -> None:
    encoded = ULP.encode([steps(70_000, {10: 1, 69_000: -1})], nonce=NONCE)
    assert streams(encoded) == {
        "M": b"\x02",
        "T": bytes.fromhex("03000000 02000000 00000000 00000000"),
        "H": bytes.fromhex("0a ff 7e"),
        "I": bytes.fromhex("00 ff 0d"),
        "U": b"\x01",
    }


def test_slices_follow_one_another_in_every_stream() -> None:
    diffs = [
        steps(8, {7: 1}),
        steps(8, {}),
        steps(2, {0: 1000, 1: -3}, "U32"),
        steps(20, {19: -1, 1: -2}, "U8"),
    ]
    assert streams(ULP.encode(diffs, nonce=NONCE)) == {
        "M": bytes([1, 0, 3, 1]),
        "T": bytes.fromhex("01000000 01000000 00000000 00000000 02000000 02000000 01000000 00000000"),
        "G": bytes([7, 1, 17]),
        "U": bytes([1, 2]),
        "X": bytes([0]),
        "P0": bytes(2),
        "P1": bytes(2),
        "P2": bytes([4, 0]),
        "P3": bytes([0x4C, 97]),
    }


@pytest.mark.req("DS-GAP-3")
def test_the_cursor_starts_again_at_every_block() -> None:
    block = 1 << 18
    lanes = 2 * block + 3
    encoded = ULP.encode([steps(lanes, {block - 1: 1, 2 * block + 2: 1})], nonce=NONCE)
    found = streams(encoded)
    assert np.frombuffer(found["T"], "<u4").reshape(3, 4).tolist() == [
        [5, 1, 0, 0],
        [0, 0, 0, 0],
        [1, 1, 0, 0],
    ]
    symbols = np.frombuffer(found["H"], np.uint8) + 256 * np.frombuffer(found["I"], np.uint8).astype(int)
    assert symbols.tolist() == [65535] * 4 + [3, 2]
    assert found["U"] == b"\x01\x01"


@pytest.mark.parametrize(
    ("lanes", "changed", "mode"), [(3840, 10, 1), (3841, 10, 2), (100, 0, 0), (400, 90, 1)]
)
def test_density_chooses_the_mode(lanes: int, changed: int, mode: int) -> None:
    encoded = ULP.encode([steps(lanes, dict.fromkeys(range(changed), 1))], nonce=NONCE)
    assert streams(encoded)["M"] == bytes([mode])


@pytest.mark.parametrize("codec", ["ulp", "abs", "ctx"])
@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8"])
@pytest.mark.parametrize("density", [0.2, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("style", STYLES)
def test_no_delta_is_larger_than_the_anchor(codec: str, dtype: str, density: float, style: str) -> None:
    spec, base, new = pair(np.random.default_rng(8), whole_spec(dtype, 20_000), density, style)
    anchor = codecs.ANCHOR["plane"].encode([dense(spec, new)], nonce=NONCE)
    delta = encode(codec, [(spec, base, new)])
    assert len(delta.data) <= len(anchor.data) + 400


def test_a_slice_is_stored_whole_where_that_is_smaller() -> None:
    spec, rng = whole_spec("BF16", 4000), np.random.default_rng(1)
    base, other = (
        (rng.normal(0, 0.02, spec.lanes).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for _ in range(2)
    )
    for new, kind in ((base + np.uint16(1), Sparse), (other, Whole)):
        encoded = ULP.encode([diff("ulp", spec, base, new)], nonce=NONCE)
        (change,) = ULP.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
        assert isinstance(change, kind)


def test_without_the_whole_slice_changes_are_stored_whatever_they_take() -> None:
    item = steps(8, dict.fromkeys(range(8), 1000))
    assert item.whole is not None
    assert streams(ULP.encode([item], nonce=NONCE))["M"] == b"\x03"
    assert streams(ULP.encode([replace(item, whole=None)], nonce=NONCE))["M"] == b"\x01"


def test_a_lane_that_did_not_change_is_no_change() -> None:
    spec = whole_spec("BF16", 8)
    written = twin_steps.steps_encode(spec, np.array([1, 3]), np.array([1, 0], np.uint16))
    encoded = ULP.encode([Steps(spec, written, 2, 1)], nonce=NONCE)
    with pytest.raises(BadShard, match="shortest"):
        ULP.decode(encoded.data, [spec], raw_size=encoded.raw_size)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 1.0])
@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
def test_a_delta_says_what_it_decodes_to_and_can_be_undone(dtype: str, density: float) -> None:
    spec, base, new = pair(np.random.default_rng(3), whole_spec(dtype, 5000), density, "random")
    moved = base.copy()
    delta = ULP.diff(spec, moved, new)
    np.testing.assert_array_equal(moved, new)
    encoded = ULP.encode([delta], nonce=NONCE)
    (change,) = ULP.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
    assert delta.says(change)
    if isinstance(change, Whole):
        assert not delta.says(Whole(base))
    elif delta.changed:
        assert not delta.says(Sparse(change.positions, change.values + spec.uint.type(1), relative=True))
        assert not delta.says(Sparse(change.positions[1:], change.values[1:], relative=True))
        assert not delta.says(Sparse(change.positions, change.values, relative=False))
    assert not delta.says(Sparse(np.array([4999, 5000]), np.ones(2, spec.uint), relative=True))
    delta.undo(moved)
    np.testing.assert_array_equal(moved, base)


def test_nothing_that_changed_says_so() -> None:
    spec = whole_spec("BF16", 8)
    for delta in (ULP.unchanged(spec), steps(8, {})):
        assert (delta.changed, delta.state_delta, delta.nonfinite, delta.whole) == (0, 0, 0, None)
        assert streams(ULP.encode([delta], nonce=NONCE)) == {"M": b"\0"}


@pytest.mark.parametrize(
    ("dtype", "bits", "count"),
    [
        ("BF16", [0x7F80, 0xFF80, 0x7F81, 0x7F7F], 3),
        ("F16", [0x7C00, 0xFFFF, 0x7BFF, 0x7F80], 3),
        ("F32", [0x7F800000, 0x7FC00000, 0x7F7FFFFF, 1], 2),
        ("U16", [0x7F80, 0xFF80, 0x7F81, 0x7F7F], 0),
        ("C64", [0x7F800000 << 32, 0x7FC00000, 0x7F7FFFFF, 0x7F8000017F800001], 4),
    ],
)
@pytest.mark.parametrize("codec", codecs.DELTA)
def test_new_values_that_are_not_finite_are_counted(
    codec: str, dtype: str, bits: list[int], count: int
) -> None:
    spec = whole_spec(dtype, 50)
    base, new = np.zeros(50, spec.uint), np.zeros(50, spec.uint)
    new[[1, 2, 30, 49]] = bits
    assert diff(codec, spec, base, new).nonfinite == count


def test_a_nonce_has_16_bytes() -> None:
    with pytest.raises(UsageError, match="nonce"):
        ULP.encode([steps(8, {1: 1})], nonce=b"short")


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_size_is_near_the_order_0_bound(density: float) -> None:
    rng = np.random.default_rng(11)
    spec = whole_spec("BF16", 1 << 22)
    base = np.zeros(spec.lanes, np.uint16)
    where = rng.random(spec.lanes) < density
    new = np.where(where, rng.choice(np.array([1, 65535], np.uint16), spec.lanes), base)
    encoded = ULP.encode([diff("ulp", spec, base, new)], nonce=NONCE)
    p = encoded.changed / spec.lanes
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)) * spec.lanes + encoded.changed
    assert len(encoded.data) < 1.05 * entropy / 8 + 1024


GOOD: Streams = {
    "M": b"\x01",
    "D": bytes(8),
    "T": bytes.fromhex("03000000 03000000 02000000 01000000"),
    "G": bytes([0, 1, 2]),
    "U": bytes([0b10_10_01]),
    "X": bytes([0, 255]),
    "Y": bytes.fromhex("c800"),
}
SPEC = whole_spec("BF16", 9)


def table(*counts: int) -> bytes:
    return np.array(counts, "<u4").tobytes()


def decode(parts: Streams, spec: SliceSpec = SPEC) -> Lanes:
    encoded = craft({name: part for name, part in parts.items() if part})
    (change,) = ULP.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
    assert isinstance(change, Sparse)
    return change.values


def test_the_crafted_shard_is_good() -> None:
    assert decode(GOOD).tolist() == [1, 65534, 200]


@pytest.mark.req("DS-GAP-1", "DS-GAP-2", "DS-GAP-3", "DS-ULP-1", "DS-ULP-2", "DS-CODEC-3", "DS-STREAM-2")
@pytest.mark.parametrize(
    "broken",
    [
        {"M": b"\x00"},
        {"M": b"\x02"},
        {"M": b"\x03"},
        {"M": b"\x04"},
        {"M": b"\x01\x00"},
        {"M": b""},
        {"M": b"\x00", "D": b""},
        {"D": b""},
        {"D": bytes(7)},
        {"D": bytes(9)},
        {"D": bytes(16)},
        {"T": table(2, 3, 2, 1)},
        {"T": table(4, 3, 2, 1)},
        {"T": table(3, 2, 2, 1)},
        {"T": table(3, 3, 1, 1)},
        {"T": table(3, 3, 4, 1)},
        {"T": table(3, 3, 2, 2)},
        {"T": table(3, 3, 2, 3)},
        {"T": table(0, 3, 2, 1)},
        {"T": table(3, 0, 0, 0)},
        {"T": table(0, 0, 0, 0)},
        {"T": table(0, 0, 0, 0), "G": b"", "U": b"", "X": b"", "Y": b""},
        {"T": table(2**32 - 1, 3, 2, 1)},
        {"T": table(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)},
        {"T": table(3, 3, 2, 1) * 2},
        {"T": table(3, 3, 2)},
        {"T": b""},
        {"G": bytes([0, 1, 6])},
        {"G": bytes([0, 1, 255])},
        {"G": bytes([0, 1])},
        {"G": bytes([0, 1, 2, 0])},
        {"U": bytes([0b11_10_01])},
        {"U": bytes([0b01_10_01])},
        {"U": bytes([0b01_10_10_01])},
        {"U": bytes([0b10_10_01, 0])},
        {"U": b""},
        {"X": bytes([255, 255])},
        {"X": bytes([0, 0])},
        {"X": bytes([0])},
        {"Y": bytes.fromhex("0000")},
        {"Y": bytes.fromhex("0100")},
        {"Y": bytes.fromhex("ffff")},
        {"Y": bytes.fromhex("8000")},
        {"Y": bytes.fromhex("c8")},
        {"Y": bytes.fromhex("c80000")},
        {"Y": b""},
        {"H": b"\x00"},
        {"Q": b"\x00"},
        {"P0": b"\x00"},
    ],
    ids=str,
)
def test_streams_that_break_a_rule_are_refused(broken: Streams) -> None:
    with pytest.raises(BadShard):
        decode({**GOOD, **broken})


@pytest.mark.req("DS-ULP-2")
@pytest.mark.req("DS-GAP-2", "DS-ULP-1")
@pytest.mark.parametrize(
    ("name", "row", "column", "count"),
    [
        ("a", 0, 0, 0),
        ("a", 0, 1, 3),
        ("a", 0, 2, 3),
        ("b", 1, 0, BLOCK + 1),
        ("b", 1, 3, 1),
        ("b", 2, 1, 1),
        ("b", 3, 0, 10),
        ("d", 4, 1, 2**32 - 1),
        ("d", 4, 3, 2**32 - 1),
    ],
)
def test_the_slice_whose_counts_are_impossible_is_named(name: str, row: int, column: int, count: int) -> None:
    specs = [
        whole_spec("U8", 20, "a"),
        whole_spec("BF16", 2 * BLOCK + 9, "b"),
        whole_spec("F32", 3, "c"),
        whole_spec("F64", 7, "d"),
    ]
    found = []
    for spec, positions in zip(specs, [[3, 9], [0, BLOCK - 1, 2 * BLOCK + 8], [], [6]], strict=True):
        base, new = np.zeros((2, spec.lanes), spec.uint)
        new[positions] = 1
        found.append(diff("ulp", spec, base, new))
    parts = streams(good := ULP.encode(found, nonce=NONCE))
    assert ULP.decode(good.data, specs, raw_size=good.raw_size).changed == [2, 3, 0, 1]
    counts = np.frombuffer(parts["T"], "<u4").reshape(-1, 4).copy()
    counts[row, column] = count
    bad = craft({**parts, "T": counts.tobytes(), "D": bytes(8 * 3)})
    with pytest.raises(BadShard, match=f"blocks of slice '{name}' are impossible"):
        ULP.decode(bad.data, specs, raw_size=bad.raw_size)


@pytest.mark.req("DS-GAP-2")
def test_a_slice_in_whose_blocks_nothing_changes_is_named() -> None:
    specs = [whole_spec("BF16", lanes, name) for name, lanes in (("a", 9), ("b", BLOCK + 1), ("c", 9))]
    rows = table(3, 3, 2, 1) + bytes(32) + table(3, 3, 2, 1)
    twice = {name: 2 * GOOD[name] for name in "GUXY"}
    bad = craft({"M": b"\1\1\1", "D": bytes(24), "T": rows, **twice})
    with pytest.raises(BadShard, match="blocks of slice 'b' are impossible"):
        ULP.decode(bad.data, specs, raw_size=bad.raw_size)


def test_the_smallest_full_escapes_are_accepted() -> None:
    # zigzag(129) - 3 = 255 and zigzag(-130) - 3 = 256.
    for step, text in ((129, "8100"), (65536 - 130, "7eff")):
        assert decode({**GOOD, "Y": bytes.fromhex(text)}).tolist()[2] == step


@pytest.mark.req("DS-ULP-2")
@pytest.mark.parametrize("value", [253, 254, 255])
def test_an_escape_wider_than_a_one_byte_lane_is_refused(value: int) -> None:
    parts = {"M": b"\x01", "D": bytes(8), "G": b"\x04", "U": b"\x02", "X": bytes([value])}
    parts |= {"T": table(1, 1, 1, int(value == 255)), "Y": b"\x80" if value == 255 else b""}
    spec = whole_spec("U8", 9)
    with pytest.raises(BadShard, match="shortest"):
        decode(parts, spec)
    assert decode({**parts, "X": b"\xfc", "Y": b"", "T": table(1, 1, 1, 0)}, spec) == [128]


@pytest.mark.req("DS-GAP-2")
def test_an_empty_block_has_no_symbols() -> None:
    spec = whole_spec("BF16", (1 << 18) + 4)
    parts = {"M": b"\x01", "D": bytes(8), "G": b"\x01\xff", "U": b"\x01"}
    with pytest.raises(BadShard):
        decode({**parts, "T": table(1, 1, 0, 0) + table(1, 0, 0, 0)}, spec)


def with_meta(edit: Callable[[dict[str, int]], None]) -> Encoded:
    encoded = craft(GOOD)
    file = shard.parse(encoded.data)
    raw = dict(file.meta.raw)
    edit(raw)
    data = shard.build(replace(file.meta, raw=raw), list(file.tensors.items()))
    return Encoded(data, sum(raw.values()) + 9, 0, 3)


@pytest.mark.req("DS-FRAME-2")
@pytest.mark.parametrize("name", ["T", "G", "U", "X", "Y"])
@pytest.mark.parametrize("size", [0, 7, 1000, 2**40, 2**53 - 1])
def test_a_raw_size_that_is_not_needed_is_refused_before_inflating(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflated: list[int] = []
    real = frames.decompress

    def spy(data: memoryview, sizes: list[int], raw: int) -> bytes:
        inflated.append(raw)
        return real(data, sizes, raw)

    monkeypatch.setattr(frames, "decompress", spy)
    encoded = with_meta(lambda raw: raw.update({name: size}))
    with pytest.raises(LimitExceeded if size > 10**6 else BadShard):
        ULP.decode(encoded.data, [SPEC], raw_size=encoded.raw_size)
    assert max(inflated, default=0) <= 16


@pytest.mark.req("DS-CODEC-2")
@pytest.mark.parametrize("raw_size", [0, 25, 32, 34, 10**6, 2**63])
def test_a_raw_size_other_than_the_descriptors_is_refused(raw_size: int) -> None:
    encoded = craft(GOOD)
    assert encoded.raw_size == 33
    with pytest.raises(DeltaStoreError) as caught:
        ULP.decode(encoded.data, [SPEC], raw_size=raw_size)
    assert isinstance(caught.value, LimitExceeded if raw_size > 10**5 else BadShard)


def test_steps_of_successive_deltas_add() -> None:
    rng = np.random.default_rng(2)
    spec, first, second = pair(rng, whole_spec("F16", 5000), 0.1, "steps")
    third = pair(rng, spec, 0.1, "steps")[2]
    total = np.zeros(spec.lanes, np.uint16)
    for old, new in ((first, second), (second, third)):
        encoded = ULP.encode([diff("ulp", spec, old, new)], nonce=NONCE)
        (change,) = ULP.decode(encoded.data, [spec], raw_size=encoded.raw_size).changes
        if isinstance(change, Sparse):
            total[change.positions] += change.values
        else:
            total += change.lanes - old
    np.testing.assert_array_equal(first + total, third)
