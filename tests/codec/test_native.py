"""The compiled kernels write what numpy writes, with any number of threads, and survive any input."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from codec_samples import STYLES, pair, part_spec, random_lanes, whole_spec
from numpy.typing import NDArray

from deltastore import threads as threading
from deltastore.codec import kernels, twin, twin_steps
from deltastore.codec.types import Coded, Diff, Over, SliceSpec, Sparse, Streams
from deltastore.errors import BadShard, SchemaMismatch, Unsupported
from deltastore.protocol.digest import MASK, Lanes, digest, tensor_key

if TYPE_CHECKING or importlib.util.find_spec("deltastore.codec._native") is not None:
    from deltastore.codec import _native, native

    BUILT = True
else:
    _native = native = None
    BUILT = False

built = pytest.mark.skipif(not BUILT, reason="the compiled kernels are not built here")

DTYPES = ("U8", "BF16", "F16", "F32", "F64", "C64")
SIZES = (0, 1, 7, 63, 64, 65, 16383, 16384, 16385, 2**18 - 1, 2**18, 2**18 + 1, 700_001)
DENSITIES = (0.0, 1e-5, 0.001, 0.02, 0.3, 1.0)
FAR = 2**36
"""Where a slice starts whose first word is beyond 32 bits, in every width."""


@pytest.fixture(params=["1", "2", "5"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """So many threads, and pieces of work that are small enough for all of them."""
    count = str(request.param)
    monkeypatch.setenv("DELTASTORE_THREADS", count)
    monkeypatch.setattr(threading, "PIECE", 1 << 18)
    return count


def specs(dtype: str) -> list[SliceSpec]:
    return [
        *(whole_spec(dtype, size) for size in SIZES),
        part_spec(dtype, FAR, FAR + 16385, FAR + 16385),
        part_spec(dtype, FAR, FAR + 700_000, FAR + 800_000),
    ]


def same_diff(one: Diff, two: Diff) -> None:
    for left, right in ((one.positions, two.positions), (one.old, two.old), (one.new, two.new)):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert (one.state_delta, one.nonfinite) == (two.state_delta, two.nonfinite)
    assert (one.whole is None) == (two.whole is None)
    if one.whole is not None and two.whole is not None:
        np.testing.assert_array_equal(one.whole, two.whole)


def plain(streams: Streams) -> Coded:
    table, gaps, codes, near, far = streams
    return Coded(table, gaps, b"", codes, near, far)


def changes(coded: Coded) -> int:
    return int(np.frombuffer(coded.table, "<u4")[1::4].sum(dtype=np.int64))


def test_the_kernels_are_built_where_they_must_be() -> None:
    if os.environ.get("DELTASTORE_REQUIRE_NATIVE") == "1":
        assert BUILT, "DELTASTORE_REQUIRE_NATIVE=1, and deltastore.codec._native is not there"
    forced = os.environ.get("DELTASTORE_KERNELS") == "numpy"
    assert (kernels.NAME == "native") == (BUILT and not forced)


@built
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [*SIZES, 3_000_001])
@pytest.mark.parametrize("first", [0, 1, 2**33, 2**61 - 1, 2**64 - 5])
def test_digests_are_the_same(size: int, first: int) -> None:
    data = np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8)
    assert native.digest(data, tensor_key("w"), first) == digest(data, tensor_key("w"), first)


@built
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_deltas_are_the_same_from_end_to_end(dtype: str, density: float) -> None:
    rng = np.random.default_rng(3)
    for number, spec in enumerate(specs(dtype)):
        _, base, new = pair(rng, spec, density, STYLES[number % len(STYLES)])
        moved, there = base.copy(), base.copy()
        same_diff(native.diff(spec, moved, new), twin.diff(spec, base.copy(), new))
        np.testing.assert_array_equal(moved, new)
        found = native.steps_diff(spec, there, new)
        np.testing.assert_array_equal(there, new)
        assert found == twin_steps.steps_diff(spec, base.copy(), new)
        assert native.widen(found.streams) == twin_steps.widen(found.streams)
        where = np.flatnonzero(base != new)
        for encode in (native.steps_encode, twin_steps.steps_encode):
            assert encode(spec, where, new[where] - base[where]) == found.streams
        for coded in (plain(found.streams), native.widen(found.streams)):
            same_changes(spec, coded, base, new)


def same_changes(spec: SliceSpec, coded: Coded, base: Lanes, new: Lanes) -> None:
    """Both read a delta as the same change, patch it to the same bits, and write these to the same places."""
    count = int(np.count_nonzero(base != new))
    positions, steps = native.steps_decode(spec, coded, count)
    for left, right in zip((positions, steps), twin_steps.steps_decode(spec, coded, count), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    key, first = tensor_key(spec.name), spec.first_word
    gain = (digest(new, key, first) - digest(base, key, first)) & MASK
    for module, index in ((native, np.int32), (native, np.int64), (twin_steps, np.int64)):
        over = Over(base, np.empty(count, index), np.empty(count, base.dtype))
        assert module.steps_patch(spec, coded, over) == gain
        np.testing.assert_array_equal(over.positions, positions)
        np.testing.assert_array_equal(over.values, new[positions])
    for change in (
        Sparse(positions, steps, relative=True),
        Sparse(positions, new[positions], relative=False),
    ):
        values, delta = native.patch(spec, base, change)
        expected, same = twin.patch(spec, base, change)
        np.testing.assert_array_equal(values, expected)
        assert delta == same
        for scatter, gather, index in (
            (native.scatter, native.gather, np.int32),
            (native.scatter, native.gather, np.int64),
            (twin.scatter, twin.gather, np.int64),
        ):
            lanes = base.copy()
            scatter(lanes, positions.astype(index), values)
            np.testing.assert_array_equal(lanes, new)
            np.testing.assert_array_equal(gather(lanes, positions.astype(index)), values)


@built
@pytest.mark.parametrize("rotation", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_planes_are_the_same(width: int, rotation: int) -> None:
    rng = np.random.default_rng(width)
    for size in SIZES:
        lanes = random_lanes(rng, whole_spec({1: "U8", 2: "U16", 4: "U32", 8: "U64"}[width], size))
        planes = native.split_planes(lanes, rotation=rotation)
        for left, right in zip(planes, twin.split_planes(lanes, rotation=rotation), strict=True):
            np.testing.assert_array_equal(left, right)
        for merge in (native.merge_planes, twin.merge_planes):
            merged = merge(planes, rotation=rotation)
            assert merged.dtype == lanes.dtype
            np.testing.assert_array_equal(merged, lanes)


# --- Merging -----------------------------------------------------------------------------------------


def walk(rng: np.random.Generator, spec: SliceSpec, count: int, density: float) -> list[Lanes]:
    """States, each a step from the one before; every third step takes a part of the one before back."""
    states = [random_lanes(rng, spec)]
    for number in range(count):
        new = states[-1] + _steps(rng, spec, density)
        if number % 3 == 2:
            back = rng.random(spec.lanes) < 0.5
            new = np.where(back, states[-2], new)
        states.append(np.ascontiguousarray(new))
    return states


def _steps(rng: np.random.Generator, spec: SliceSpec, density: float) -> Lanes:
    steps = rng.choice(np.array([-1, 1, -1, 1, 2, -2, 127, -200, 130]), spec.lanes)
    steps[rng.random(spec.lanes) >= density] = 0
    lanes: Lanes = steps.astype(np.int64).astype(spec.uint)
    return lanes


@built
@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
def test_merged_deltas_are_the_delta_of_the_ends(dtype: str, count: int) -> None:
    rng = np.random.default_rng(count)
    for size, density in ((0, 1.0), (1, 1.0), (65, 0.5), (16385, 0.001), (2**18, 0.02), (2**18 + 1, 0.3)):
        spec = whole_spec(dtype, size)
        states = walk(rng, spec, count, density)
        inputs = []
        for number, (old, new) in enumerate(itertools.pairwise(states)):
            streams = twin_steps.steps_diff(spec, old.copy(), new).streams
            inputs.append(twin_steps.widen(streams) if number % 2 else plain(streams))
        direct = twin_steps.steps_diff(spec, states[0].copy(), states[-1])
        for merge in (native.steps_merge, twin_steps.steps_merge):
            assert merge(spec, inputs) == (direct.streams, direct.changed)


@built
@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
def test_changes_that_cancel_leave_nothing(dtype: str) -> None:
    spec = whole_spec(dtype, 2**18 + 5)
    one, two = walk(np.random.default_rng(1), spec, 1, 0.1)
    there, back = (twin_steps.steps_diff(spec, a.copy(), b) for a, b in ((one, two), (two, one)))
    for merge in (native.steps_merge, twin_steps.steps_merge):
        streams, changed = merge(spec, [plain(there.streams), plain(back.streams)])
        assert changed == 0
        assert streams == Streams(bytes(32), b"", b"", b"", b"")


# --- Hostile input -----------------------------------------------------------------------------------

Answer = tuple[Any, ...] | type[BaseException]


def decoded(module: Any, spec: SliceSpec, coded: Coded, count: int) -> Answer:
    try:
        positions, steps = module.steps_decode(spec, coded, count)
    except (BadShard, ValueError) as error:
        return type(error)
    return positions.tobytes(), steps.tobytes()


def patched(spec: SliceSpec, coded: Coded, count: int) -> Answer:
    over = Over(zeros(spec.lanes, spec.uint), np.empty(count, np.int64), np.empty(count, spec.uint))
    try:
        native.steps_patch(spec, coded, over)
    except (BadShard, ValueError) as error:
        return type(error)
    return over.positions.tobytes(), over.values.tobytes()


zeros = cache(np.zeros)


def merged(module: Any, spec: SliceSpec, inputs: Sequence[Coded]) -> Answer:
    try:
        streams, changed = module.steps_merge(spec, inputs)
    except (BadShard, ValueError) as error:
        return type(error)
    return streams, changed


def both(spec: SliceSpec, coded: Coded, count: int) -> Answer:
    """What both make of some streams, which must be the same."""
    found = decoded(native, spec, coded, count)
    assert found == decoded(twin_steps, spec, coded, count)
    assert patched(spec, coded, count) == found
    merge = merged(native, spec, [coded, coded])
    assert merge == merged(twin_steps, spec, [coded, coded])
    return found


def sample(dtype: str, *, wide: bool) -> tuple[SliceSpec, Coded, int]:
    """Two blocks, the second of few lanes, with escapes of both lengths."""
    spec = whole_spec(dtype, 2**18 + 300)
    rng = np.random.default_rng(6)
    near = np.flatnonzero(rng.random(300) < 0.1)
    positions = np.concatenate((near * 400, near + 2**18))
    steps = rng.choice(np.array([-1, 1, 2, 100, 3000]), positions.size).astype(spec.uint)
    if dtype == "U8":
        steps[steps == 0] = 1
    streams = twin_steps.steps_encode(spec, positions, steps)
    return spec, twin_steps.widen(streams) if wide else plain(streams), positions.size


@built
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["U8", "BF16", "F64"])
def test_no_flipped_bit_crashes_and_both_take_it_alike(dtype: str, wide: bool) -> None:
    spec, coded, count = sample(dtype, wide=wide)
    refused = 0
    for name in Coded._fields:
        raw = bytes(getattr(coded, name))
        for bit in range(0, 8 * len(raw), 1 if name == "table" else 5):
            data = bytearray(raw)
            data[bit // 8] ^= 1 << bit % 8
            found = both(spec, coded._replace(**{name: bytes(data)}), count)
            assert found is not ValueError
            refused += found is BadShard
            assert found is BadShard or name != "table"
    assert refused > 250


@built
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["U8", "BF16", "F64"])
def test_streams_that_are_cut_or_go_on_are_refused(dtype: str, wide: bool) -> None:
    spec, coded, count = sample(dtype, wide=wide)
    assert isinstance(both(spec, coded, count), tuple)
    for name in ("low", "codes", "near", "far"):
        raw = bytes(getattr(coded, name))
        for data in (*(raw[:size] for size in range(len(raw))), raw + b"\0", raw + raw + b"\1"):
            parts = {name: data}
            if name == "low" and wide:
                parts["high"] = bytes(coded.high)[: len(data)].ljust(len(data), b"\0")
            assert both(spec, coded._replace(**parts), count) is BadShard


@built
@pytest.mark.parametrize("number", [0, 1, 2, 3, 255, 2**18, 2**18 + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("row", range(2))
def test_wrong_counts_in_the_table_are_refused(row: int, column: int, number: int) -> None:
    spec, coded, count = sample("BF16", wide=False)
    table = np.frombuffer(coded.table, "<u4").reshape(-1, 4).copy()
    assert table[row, column] != number
    table[row, column] = number
    assert both(spec, coded._replace(table=table.tobytes()), count) is BadShard
    changed = int(table[:, 1].sum(dtype=np.int64))
    if changed < 2**20:  # what the table says is what there is room for
        assert both(spec, coded._replace(table=table.tobytes()), changed) is BadShard


@built
def test_noise_is_taken_alike() -> None:
    rng = np.random.default_rng(9)
    for _ in range(500):
        spec = whole_spec("BF16", int(rng.integers(1, 40)))
        symbols, changed, near, far = (int(n) for n in rng.integers(0, 6, 4))
        parts = (rng.integers(0, 7, n).astype(np.uint8).tobytes() for n in (symbols, -(-changed // 4)))
        low, codes = parts
        table = np.array([symbols, changed, near, far], "<u4").tobytes()
        noise = rng.choice(np.array([0, 254, 255], np.uint8), near).tobytes()
        both(spec, Coded(table, low, b"", codes, noise, rng.bytes(2 * far)), changed)


@built
def test_a_table_of_other_blocks_is_no_argument() -> None:
    spec, coded, count = sample("BF16", wide=False)
    for table in (coded.table[:16], bytes(coded.table) + bytes(16), coded.table[:-1], b""):
        other = coded._replace(table=table)
        assert decoded(native, spec, other, count) is ValueError
        assert decoded(twin_steps, spec, other, count) is ValueError
        assert merged(native, spec, [other]) is ValueError


@built
def test_buffers_of_wrong_sizes_are_refused() -> None:
    lanes, one = np.zeros(8, np.uint16), np.zeros(1, np.uint16)
    at = np.zeros(1, np.int64)
    row, none = np.zeros(4, "<u4"), b""

    def decode(**other: Any) -> None:
        given: dict[str, Any] = {"table": row, "low": none, "high": none, "lanes": 8, "width": 2}
        given |= {"positions": at[:0], "steps": one[:0], **other}
        ends = (given["lanes"], given["width"], given["positions"], given["steps"])
        _native.ulp_decode((given["table"], given["low"], given["high"], none, none, none), *ends)

    def over(
        old: object = lanes, width: int = 2, positions: object = at[:0], values: object = one[:0]
    ) -> None:
        _native.ulp_patch((row, *[none] * 5), old, width, 0, 0, positions, values)  # type: ignore[arg-type]

    decode()
    over()
    relative = False
    wrong: list[Callable[[], object]] = [
        lambda: _native.ulp_diff(lanes, lanes[:7].copy(), 2, 0, 0, 0, 1),
        lambda: _native.ulp_diff(lanes, lanes, 3, 0, 0, 0, 1),
        lambda: _native.ulp_diff(np.zeros(7, np.uint8), np.zeros(7, np.uint8), 2, 0, 0, 0, 1),
        lambda: _native.ulp_encode(at, one, 8, 3),
        lambda: _native.ulp_encode(at, one, -1, 2),
        lambda: _native.ulp_encode(at, one, 0, 2),
        lambda: _native.ulp_encode(at, lanes, 8, 2),
        lambda: _native.ulp_encode(at + 8, one, 8, 2),
        lambda: _native.ulp_encode(at - 1, one, 8, 2),
        lambda: _native.ulp_encode(np.array([2, 2]), lanes[:2], 8, 2),
        lambda: _native.ulp_encode(np.array([3, 2]), lanes[:2], 8, 2),
        lambda: _native.ulp_encode(np.zeros(7, np.uint8), one, 8, 2),
        lambda: _native.ulp_widen(b"\1", bytearray(15)),
        lambda: _native.ulp_widen(b"\1", bytearray(b"\2" + bytes(15))),
        lambda: decode(table=row[:3].copy()),
        lambda: decode(high=b"\0"),
        lambda: decode(lanes=-1),
        lambda: decode(width=0),
        lambda: decode(width=16),
        lambda: decode(steps=one),
        lambda: decode(positions=at),
        lambda: decode(positions=np.zeros(4, np.uint8)),
        lambda: decode(lanes=2**62),
        lambda: over(np.zeros(7, np.uint8)),
        lambda: over(width=3),
        lambda: over(np.zeros(2**18 + 1, np.uint16)),
        lambda: over(positions=at),
        lambda: over(values=one),
        lambda: over(values=one, positions=at.astype(np.int16)),
        lambda: over(values=np.zeros(3, np.uint8)),
        lambda: _native.ulp_decode((row, *[none] * 4), 8, 2, at[:0], one[:0]),
        lambda: _native.ulp_check((row, *[none] * 4), 8, 2, 0),
        lambda: _native.ulp_check((row, *[none] * 5), 8, 2, -1),
        lambda: _native.ulp_merge((), 8, 2),
        lambda: _native.ulp_merge(((row, none, none, none, none),), 8, 2),
        lambda: _native.ulp_merge(((row, none, b"\0", none, none, none),), 8, 2),
        lambda: _native.ulp_merge(((row, none, none, none, none, none),), -1, 2),
        lambda: _native.patch(lanes, 2, at, lanes, relative, 0, 0, lanes),
        lambda: _native.patch(lanes, 2, at, one, relative, 0, 0, lanes),
        lambda: _native.patch(lanes, 2, at + 8, one, relative, 0, 0, one),
        lambda: _native.patch(lanes, 2, at - 1, one, relative, 0, 0, one),
        lambda: _native.scatter(lanes, 2, at, lanes),
        lambda: _native.scatter(lanes, 2, at + 8, one),
        lambda: _native.scatter(lanes, 2, at - 1, one),
        lambda: _native.scatter(lanes, 2, at.astype(np.int32) - 1, one),
        lambda: _native.scatter(lanes, 2, at.astype(np.int16), one),
        lambda: _native.scatter(lanes, 3, at, np.zeros(3, np.uint8)),
        lambda: _native.gather(lanes, 2, at + 8, one),
        lambda: _native.gather(lanes, 2, at.astype(np.int32) + 8, one),
        lambda: _native.gather(lanes, 2, at, one.view(np.uint8)[:1]),
        lambda: _native.split(lanes, 2, 16, lanes.copy()),
        lambda: _native.split(lanes, 2, -1, lanes.copy()),
        lambda: _native.split(lanes, 3, 0, lanes.copy()),
        lambda: _native.merge(lanes, 2, 0, one),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match=r"must|not of th|fit together|needs|tuple|symbols"):
            call()
    assert not lanes.any()


@built
def test_a_read_only_array_is_not_written_to() -> None:
    lanes: NDArray[np.uint16] = np.zeros(8, np.uint16)
    lanes.flags.writeable = False
    spec = whole_spec("BF16", 8)
    with pytest.raises((BufferError, TypeError, ValueError)):
        native.steps_diff(spec, lanes, np.ones(8, np.uint16))
    with pytest.raises((BufferError, TypeError, ValueError)):
        native.scatter(lanes, np.array([1]), np.array([1], np.uint16))
    assert not lanes.any()


@built
def test_arguments_that_numpy_refuses_are_refused() -> None:
    short, spec = np.zeros(3, np.uint16), part_spec("BF16", 0, 3, 8)
    with pytest.raises(Unsupported):
        native.steps_diff(spec, short, short)
    with pytest.raises(SchemaMismatch):
        native.steps_diff(whole_spec("BF16", 4), short, short)
    with pytest.raises(SchemaMismatch, match="uint8"):
        native.scatter(short, np.array([1]), np.array([1], np.uint8))
