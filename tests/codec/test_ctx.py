"""What readers of `ctx` refuse, what origins do, and that both kernels write the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from codec_samples import (
    NONCE,
    Pair,
    apply,
    decode,
    diff,
    encode,
    pair,
    part_spec,
    total,
    whole_spec,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore import codec as codecs
from deltastore.codec import bundle, contexts, ctx_reading, kernels, shard, twin_ctx
from deltastore.codec.contexts import CLASSES, ROW, SEGMENT, Changes, CodedSegment, Mode, Row, Run, field_of
from deltastore.codec.twin import BLOCK
from deltastore.codec.types import Encoded, SliceSpec, Sparse, Whole
from deltastore.errors import BadShard, DeltaStoreError, UsageError
from deltastore.protocol.digest import Lanes

CTX = codecs.DELTA["ctx"]
built = pytest.mark.skipif(kernels.NAME != "native", reason="the compiled kernels are not in use")


def weights(rng: np.random.Generator, spec: SliceSpec) -> Lanes:
    """Lanes with exponents like those of a trained model."""
    values = (rng.normal(0, 0.02, spec.lanes) * np.exp(rng.normal(0, 1.5, spec.lanes))).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def trained(rng: np.random.Generator, spec: SliceSpec, rate: float = 1e-6) -> Pair:
    """A slice before and after a step of about the same size for all weights."""
    base = weights(rng, spec)
    wide = base.astype(np.uint32) << 16
    moved = wide.view(np.float32) + rng.normal(0, rate, spec.lanes).astype(np.float32)
    new = ((moved.view(np.uint32) + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    return spec, base, new


def sample() -> tuple[Encoded, list[Pair]]:
    """A shard with all modes, dense and sparse classes, escapes of all kinds, and lanes of three widths."""
    rng = np.random.default_rng(6)
    first = trained(rng, whole_spec("BF16", 30_000, "a"))
    first[2][[5, 700]] ^= 0x8000
    pairs = [
        first,
        pair(rng, whole_spec("BF16", 12, "b"), 0.0, "steps"),
        pair(rng, whole_spec("I32", 900, "c"), 0.01, "steps"),
        pair(rng, whole_spec("BF16", 300, "d"), 1.0, "random"),
        pair(rng, whole_spec("U8", 200, "e"), 0.02, "steps"),
    ]
    return encode("ctx", pairs), pairs


def streams(encoded: Encoded, pairs: Sequence[Pair]) -> dict[str, bytes]:
    """Raw streams of a shard."""
    meta = shard.parse(encoded.data).meta
    specs = [spec for spec, _, _ in pairs]
    reader = bundle.Reader(
        encoded.data, specs, codec="ctx", names=ctx_reading.STREAMS, raw_size=encoded.raw_size
    )
    return {name: bytes(reader.read(name, size)) for name, size in meta.raw.items()}


def rebuilt(parts: dict[str, bytes]) -> Encoded:
    """A shard of these streams, in their order."""
    writer = bundle.Writer()
    for name in ctx_reading.STREAMS:
        writer.add(name, [parts.get(name, b"")])
    return writer.finish(codec="ctx", nonce=NONCE, state_delta=0, changed=0)


def refused(parts: dict[str, bytes], pairs: Sequence[Pair], match: str) -> None:
    encoded = rebuilt(parts)
    with pytest.raises(BadShard, match=match):
        decode("ctx", encoded.data, pairs, raw_size=encoded.raw_size)


def rows(parts: dict[str, bytes]) -> list[Row]:
    table = parts["T"]
    return [Row.parse(table[at : at + ROW.size]) for at in range(0, len(table), ROW.size)]


def with_row(parts: dict[str, bytes], number: int, **fields: Any) -> dict[str, bytes]:
    found = rows(parts)
    found[number] = found[number]._replace(**fields)
    return parts | {"T": b"".join(row.pack() for row in found)}


# --- Round trips -------------------------------------------------------------------------------------


@pytest.mark.req("DS-CTX-1")
def test_all_modes_come_back_and_each_change_is_put_on_the_old_bits() -> None:
    encoded, pairs = sample()
    decoded = decode("ctx", encoded.data, pairs, raw_size=encoded.raw_size)
    for (_, base, new), change in zip(pairs, decoded.changes, strict=True):
        np.testing.assert_array_equal(apply(change, base), new)
    assert isinstance(decoded.changes[0], Sparse)
    assert decoded.changes[0].relative
    assert isinstance(decoded.changes[3], Whole)
    assert decoded.deltas == [None] * len(pairs)
    parts = streams(encoded, pairs)
    assert set(parts["M"][:-1]) == {Mode.UNCHANGED, Mode.CODED, Mode.FULL}
    assert 0 < parts["M"][-1] < CLASSES
    assert {"T", "E", "C0", "G", "U", "X", "P0", "P1", "L", "W"} <= parts.keys()


def test_a_slice_that_lies_in_several_segments_comes_back() -> None:
    rng, end = np.random.default_rng(1), 64 + SEGMENT + 3 * BLOCK + 5
    pairs = [
        trained(rng, whole_spec("BF16", 1000, "a")),
        trained(rng, part_spec("BF16", 64, end, end, "b")),
        trained(rng, whole_spec("BF16", BLOCK + 1, "c")),
    ]
    encoded = encode("ctx", pairs)
    decoded = decode("ctx", encoded.data, pairs, raw_size=encoded.raw_size)
    for (_, base, new), change in zip(pairs, decoded.changes, strict=True):
        np.testing.assert_array_equal(apply(change, base), new)
    assert len(rows(streams(encoded, pairs))) == 2


def test_it_is_a_quarter_smaller_than_ulp_on_weights_like_real_ones() -> None:
    item = trained(np.random.default_rng(2), whole_spec("BF16", 1 << 20))
    assert 0.005 < np.count_nonzero(item[1] != item[2]) / item[0].lanes < 0.05
    assert len(encode("ctx", [item]).data) < 0.76 * len(encode("ulp", [item]).data)


def test_without_the_base_nothing_is_written_or_read() -> None:
    encoded, pairs = sample()
    with pytest.raises(UsageError, match="base"):
        CTX.encode([diff("ctx", *item) for item in pairs], nonce=NONCE)
    with pytest.raises(BadShard, match="base"):
        CTX.decode(encoded.data, [spec for spec, _, _ in pairs], raw_size=encoded.raw_size)


# --- Segments and origins ----------------------------------------------------------------------------


def test_segments_take_narrow_lanes_first_and_end_where_they_are_full() -> None:
    specs = [
        whole_spec("F32", 10, "a"),
        whole_spec("BF16", SEGMENT - BLOCK, "b"),
        whole_spec("BF16", 7, "c"),
        whole_spec("BF16", 2 * BLOCK, "d"),
        whole_spec("BF16", 3 * SEGMENT, "e"),
        whole_spec("U8", 5, "f"),
    ]
    found = [
        [(part.index, part.start, part.stop) for part in segment]
        for segment in contexts.segments(specs, [0, 1, 2, 3, 4, 5])
    ]
    rest = SEGMENT - 2 * BLOCK
    assert found == [
        [(5, 0, 5)],
        [(1, 0, SEGMENT - BLOCK), (2, 0, 7)],
        [(3, 0, 2 * BLOCK), (4, 0, rest)],
        [(4, rest, rest + SEGMENT)],
        [(4, rest + SEGMENT, rest + 2 * SEGMENT)],
        [(4, rest + 2 * SEGMENT, 3 * SEGMENT)],
        [(0, 0, 10)],
    ]
    parts = [part for segment in contexts.segments(specs, range(6)) for part in segment]
    assert [part.block for part in parts] == [0, 1, 16, 17, 19, 33, 49, 65, 67]


def test_origins_follow_the_scale_of_a_block() -> None:
    spec = whole_spec("BF16", 2 * BLOCK)
    _, base, new = trained(np.random.default_rng(3), spec)
    # Sixteen times the size, and the same share of each exponent changes.
    base[BLOCK:], new[BLOCK:] = base[:BLOCK] + np.uint16(4 << 7), new[:BLOCK] + np.uint16(4 << 7)
    positions = np.flatnonzero(base != new)
    counts = kernels.ctx_count(new, field_of("BF16"), (positions, (new - base)[positions]))
    chosen, dense = contexts.origins(*counts)
    assert chosen[1] - chosen[0] == 4
    assert 2 <= dense <= 7


def test_where_there_is_nothing_to_choose_an_origin_is_still_one() -> None:
    none = np.zeros((0, 256), np.int64)
    assert contexts.origins(none, none)[0].size == 0
    still = np.zeros((1, 256), np.int64)
    still[0, 255] = 9
    assert contexts.origins(still, 0 * still)[1] == 0


# --- Refusals ----------------------------------------------------------------------------------------


@pytest.mark.req("DS-CTX-2")
def test_other_streams_than_those_that_are_needed_are_refused() -> None:
    encoded, pairs = sample()
    parts = streams(encoded, pairs)
    for name, data in parts.items():
        refused(parts | {name: data[:-1]}, pairs, "raw bytes|modes|counts")
        refused(parts | {name: data + b"\0"}, pairs, "raw bytes")
        refused({other: part for other, part in parts.items() if other != name}, pairs, "raw bytes")
    refused(parts | {"C15": b"\0"}, pairs, "C15")
    refused(parts | {"P7": b"\0"}, pairs, "P7")


@pytest.mark.req("DS-CTX-2")
def test_what_does_not_fill_its_tensor_is_refused() -> None:
    encoded, pairs = sample()
    file = shard.parse(encoded.data)
    body = bytes(file.tensors["S"].data)
    flat = shard.Tensor("U8", (len(body),), body)

    def built_of(meta: shard.Meta, tensors: Sequence[tuple[str, shard.Tensor]], match: str) -> None:
        with pytest.raises(BadShard, match=match):
            decode("ctx", shard.build(meta, tensors), pairs, raw_size=sum(meta.raw.values()))

    longer = shard.Tensor("U8", (len(body) + 1,), body + b"\0")
    built_of(file.meta, [("S", longer)], "take")
    built_of(file.meta, [("S", shard.Tensor("U8", (len(body) - 1,), body[:-1]))], "take")
    built_of(file.meta, [("S", shard.Tensor("U8", (1, len(body)), body))], "flat")
    built_of(file.meta, [("S", flat), ("T", shard.Tensor("U8", (0,), b""))], "one that holds")
    built_of(file.meta, [], "one that holds")
    named = {("Q" if name == "G" else name): size for name, size in file.meta.raw.items()}
    listed = {("Q" if name == "G" else name): sizes for name, sizes in file.meta.frames.items()}
    built_of(replace(file.meta, raw=named, frames=listed), [("S", flat)], "not those of its codec")
    built_of(replace(file.meta, digest=(1,)), [("S", flat)], "digests")


@pytest.mark.req("DS-CTX-2")
def test_segments_that_have_no_row_are_not_even_listed() -> None:
    spec = part_spec("BF16", 0, 2**50, 2**50)
    encoded = rebuilt({"M": bytes([Mode.CODED, 0])})
    nothing = np.empty(0, np.uint16)
    with pytest.raises(BadShard, match="'T' has 0 raw bytes, where 96"):
        decode("ctx", encoded.data, [(spec, nothing, nothing)], raw_size=encoded.raw_size)


@pytest.mark.req("DS-CTX-3")
def test_impossible_modes_and_rows_are_refused() -> None:
    encoded, pairs = sample()
    parts = streams(encoded, pairs)
    modes, dense = parts["M"][:-1], parts["M"][-1]
    refused(parts | {"M": bytes([2]) + parts["M"][1:]}, pairs, "mode")
    refused(parts | {"M": modes + bytes([CLASSES + 1])}, pairs, "dense")
    number = next(i for i, row in enumerate(rows(parts)) if any(row.counts[:dense]) and row.changes(dense))
    row = rows(parts)[number]
    first = next(k for k in range(dense, CLASSES) if row.counts[k])
    idle = next((k for k in range(dense, CLASSES) if not row.counts[k]), None)

    def counts(k: int, n: int) -> tuple[int, ...]:
        return (*row.counts[:k], n, *row.counts[k + 1 :])

    def rices(k: int, r: int) -> tuple[int, ...]:
        return (*row.rices[:k], r, *row.rices[k + 1 :])

    wrong: list[dict[str, Any]] = [
        {"counts": counts(first, 2**32 - 1)},
        {"counts": counts(0, 40_000)},
        {"unary": 4000},
        {"near": row.changes(dense) + 1},
        {"far": row.near + 1},
        {"wide": sum(row.counts[:dense]) + 1},
        {"rices": rices(first, 25)},
        {"rices": rices(0, 1)},
    ]
    if idle is not None:
        wrong.append({"rices": rices(idle, 1)})
    for fields in wrong:
        refused(
            with_row(parts, number, **fields),
            pairs,
            "slices 'a' to 'a': the counts of a segment are impossible",
        )


@pytest.mark.req("DS-CTX-3")
def test_a_coded_slice_without_a_change_is_refused() -> None:
    spec, lanes = whole_spec("BF16", 8), np.full(8, 0x3F80, np.uint16)
    row = Row(0, 0, 0, 0, (0,) * CLASSES, (0,) * CLASSES)
    refused(
        {"M": bytes([Mode.CODED, 0]), "T": row.pack(), "E": b"\0"}, [(spec, lanes, lanes)], "nothing changes"
    )


@pytest.mark.req("DS-CTX-3")
@pytest.mark.parametrize("mode", [Mode.CODED, Mode.FULL])
def test_a_slice_without_lanes_has_mode_0(mode: Mode) -> None:
    lanes = np.empty(0, np.uint16)
    refused({"M": bytes([mode, 0])}, [(whole_spec("BF16", 0), lanes, lanes)], "no lanes")


@pytest.mark.req("DS-CTX-2")
def test_a_shard_without_slices_has_no_streams() -> None:
    encoded = encode("ctx", [])
    assert not shard.parse(encoded.data).tensors
    assert decode("ctx", encoded.data, [], raw_size=0).changes == []
    refused({"M": b"\0"}, [], "raw bytes")


def segment() -> tuple[list[Run], list[Changes], CodedSegment]:
    """A segment of two runs with dense and sparse classes and escapes of all kinds."""
    rng = np.random.default_rng(9)
    runs, changes = [], []
    for lanes in (5000, 700):
        _, base, new = trained(rng, whole_spec("BF16", lanes))
        new[[3, 44, 120]] = base[[3, 44, 120]] + np.array([9000, 300, 9], np.uint16)
        new[np.argmin(base & 0x7FFF)] += np.uint16(9000)
        positions = np.flatnonzero(base != new)
        steps = (new - base)[positions]
        counts = kernels.ctx_count(new, field_of("BF16"), (positions, steps))
        runs.append(Run(new, field_of("BF16"), contexts.origins(*counts)[0]))
        changes.append((positions, steps))
    return runs, changes, kernels.ctx_encode(runs, changes, 6)


def before(runs: Sequence[Run], changes: Sequence[Changes]) -> list[Run]:
    old = [run.lanes.copy() for run in runs]
    for lanes, (positions, steps) in zip(old, changes, strict=True):
        lanes[positions] -= steps
    return [run._replace(lanes=lanes) for run, lanes in zip(runs, old, strict=True)]


def wrong_segments() -> list[tuple[str, Callable[[CodedSegment], CodedSegment]]]:
    def dense(one: CodedSegment, k: int, change: Callable[[bytes], bytes]) -> CodedSegment:
        symbols = [bytes(part) for part in one.dense]
        symbols[k] = change(symbols[k])
        return one._replace(dense=symbols)

    def shift(one: CodedSegment, k: int, by: int) -> CodedSegment:
        counts = list(one.row.counts)
        counts[k] += by
        return one._replace(row=one.row._replace(counts=tuple(counts)))

    return [
        ("gaps", lambda one: one._replace(unary=bytes(one.unary)[:-1])),
        ("gaps", lambda one: one._replace(unary=bytes(one.unary) + b"\0")),
        ("gaps", lambda one: one._replace(unary=bytes(one.unary) + b"\1")),
        ("past the last", lambda one: one._replace(unary=bytes(4000) + bytes(one.unary))),
        ("padding", lambda one: one._replace(low=bytes(one.low)[:-1] + bytes([bytes(one.low)[-1] | 0x80]))),
        ("code 3", lambda one: one._replace(codes=bytes([bytes(one.codes)[0] | 3]) + bytes(one.codes)[1:])),
        ("escapes", lambda one: one._replace(near=bytes(one.near)[:-1])),
        ("escapes", lambda one: one._replace(near=bytes(one.near) + b"\0")),
        ("escapes", lambda one: one._replace(far=b"")),
        ("escapes", lambda one: one._replace(far=bytes(one.far) + b"\x00\x90")),
        ("shortest", lambda one: one._replace(far=b"\1\0" * (len(one.far) // 2))),
        ("escapes", lambda one: one._replace(wide=b"")),
        ("escapes", lambda one: one._replace(wide=bytes(one.wide) + b"\x00\x90")),
        ("shortest", lambda one: one._replace(wide=b"\1\0" * (len(one.wide) // 2))),
        ("other lanes", lambda one: dense(one, 3, lambda part: part[:-1])),
        ("other lanes", lambda one: dense(one, 3, lambda part: part + b"\0")),
    ]


@pytest.mark.req("DS-CTX-4")
@pytest.mark.req("DS-CTX-5")
@pytest.mark.parametrize(("match", "change"), wrong_segments())
def test_segments_that_break_a_rule_are_refused(
    match: str, change: Callable[[CodedSegment], CodedSegment]
) -> None:
    runs, changes, coded = segment()
    assert coded.far
    assert coded.wide
    old = before(runs, changes)
    for (at, by), (positions, steps) in zip(kernels.ctx_decode(old, coded), changes, strict=True):
        np.testing.assert_array_equal(at, positions)
        np.testing.assert_array_equal(by, steps)
    with pytest.raises(BadShard, match=match):
        kernels.ctx_decode(old, change(coded))
    with pytest.raises(BadShard, match=match):
        twin_ctx.ctx_decode(old, change(coded))


@pytest.mark.req("DS-CTX-1")
def test_a_base_of_other_classes_is_refused_or_changes_the_digest() -> None:
    encoded, pairs = sample()
    spec, base, new = pairs[0]
    refusals = 0
    for lane in range(60):
        other = base.copy()
        other[lane] ^= 0x1F80 if lane % 2 else 0x80
        held = [(spec, other, new), *pairs[1:]]
        try:
            decoded = decode("ctx", encoded.data, held, raw_size=encoded.raw_size)
            assert isinstance(decoded.changes[0], Sparse)
        except BadShard:
            refusals += 1
        else:
            # Where the wrong lane hides no change and shifts no rank after which there is one, nothing shows.
            misled = not np.array_equal(decoded.changes[0].positions, np.flatnonzero(base != new))
            assert misled == (total(decoded, held) != encoded.state_delta)
    assert 0 < refusals < 60


# --- Both kernels ------------------------------------------------------------------------------------


def same(one: CodedSegment, two: CodedSegment) -> bool:
    parts = zip(one[1:7], two[1:7], strict=True)
    return (
        one.row == two.row
        and all(bytes(a) == bytes(b) for a, b in parts)
        and [bytes(a) for a in one.dense] == [bytes(b) for b in two.dense]
    )


@st.composite
def segments_of_runs(draw: st.DrawFn) -> tuple[list[Run], list[Changes], int]:
    dtype = draw(st.sampled_from(["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I8", "I64", "F64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    runs, changes = [], []
    for lanes in draw(st.lists(st.sampled_from([1, 63, 64, 65, 700, BLOCK + 3]), min_size=1, max_size=3)):
        spec, base, new = pair(
            rng,
            whole_spec(dtype, lanes),
            draw(st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.0])),
            draw(st.sampled_from(["steps", "random", "special"])),
        )
        positions = np.flatnonzero(base != new)
        origins = rng.integers(0, 256, -(-spec.lanes // BLOCK)).astype(np.uint8)
        runs.append(Run(new, field_of(dtype), origins))
        changes.append((positions, (new - base)[positions]))
    return runs, changes, draw(st.integers(0, CLASSES))


@given(found=segments_of_runs())
@settings(max_examples=80, deadline=None)
def test_segments_come_back_and_both_kernels_agree(found: tuple[list[Run], list[Changes], int]) -> None:
    runs, changes, dense = found
    one, two = kernels.ctx_encode(runs, changes, dense), twin_ctx.ctx_encode(runs, changes, dense)
    assert same(one, two)
    for run, of in zip(runs, changes, strict=True):
        for mine, theirs in zip(
            kernels.ctx_count(run.lanes, run.field, of),
            twin_ctx.ctx_count(run.lanes, run.field, of),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, theirs)
    old = before(runs, changes)
    for kind in (kernels, twin_ctx):
        for (at, by), (positions, steps) in zip(kind.ctx_decode(old, one), changes, strict=True):
            np.testing.assert_array_equal(at, positions)
            np.testing.assert_array_equal(by, steps)


def outcome(kind: ModuleType, runs: Sequence[Run], coded: CodedSegment) -> object:
    try:
        return [(p.tolist(), s.tolist()) for p, s in kind.ctx_decode(runs, coded)]
    except DeltaStoreError as error:
        return type(error)


@built
@given(seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_both_kernels_make_the_same_of_damaged_segments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs, changes, coded = segment()
    old = before(runs, changes)
    name = str(rng.choice(["unary", "low", "codes", "near", "far", "wide", "dense"]))
    k = int(rng.choice([k for k, part in enumerate(coded.dense) if len(part)]))
    part = bytearray(coded.dense[k] if name == "dense" else getattr(coded, name))
    for _ in range(int(rng.integers(1, 4))):
        part[int(rng.integers(0, len(part)))] ^= 1 << int(rng.integers(0, 8))
    if name == "dense":
        coded = coded._replace(dense=[*coded.dense[:k], bytes(part), *coded.dense[k + 1 :]])
    else:
        fields: dict[str, Any] = {name: bytes(part)}
        coded = coded._replace(**fields)
    assert outcome(kernels, old, coded) == outcome(twin_ctx, old, coded)


@built
def test_buffers_that_do_not_fit_are_refused() -> None:
    from deltastore.codec import _native

    lanes, at, step = np.zeros(8, np.uint16), np.zeros(1, np.int64), np.ones(1, np.uint16)
    run = (lanes, 7, 255, b"\0", at, step)
    seen, large = np.zeros(256, np.uint32), np.zeros(SEGMENT + 1, np.uint8)
    row, none = bytes(ROW.size), b""
    coded = (row, none, none, none, none, none, none, ())
    counts = np.zeros(1, np.int64)
    _native.ctx_encode((run,), 2, 0)
    assert _native.ctx_decode((run[:4],), 2, coded, at[:0], step[:0], counts) == 0
    wrong: list[Callable[[], object]] = [
        lambda: _native.ctx_encode((run,), 3, 0),
        lambda: _native.ctx_encode((run,), 2, 17),
        lambda: _native.ctx_encode((run,), 2, -1),
        lambda: _native.ctx_encode(((lanes, 16, 255, b"\0", at, step),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 256, b"\0", at, step),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 255, b"", at, step),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 255, b"\0", at + 8, step),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 255, b"\0", at - 1, step),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 255, b"\0", np.array([1, 1]), lanes[:2]),), 2, 0),
        lambda: _native.ctx_encode(((lanes, 7, 255, b"\0", at, lanes),), 2, 0),
        lambda: _native.ctx_encode(((large, 0, 0, bytes(17), at, b"\1"),), 1, 0),
        lambda: _native.ctx_decode((run[:4],), 2, (row[:-1], *coded[1:]), at[:0], step[:0], counts),
        lambda: _native.ctx_decode((run[:4],), 2, coded, at, step[:0], counts),
        lambda: _native.ctx_decode((run[:4],), 2, coded, at[:0], step[:0], counts[:0]),
        lambda: _native.ctx_decode((run[:4],), 2, (*coded[:7], (none,) * 17), at[:0], step[:0], counts),
        lambda: _native.ctx_count(lanes, 2, 7, 255, at, step, seen, seen[:5]),
        lambda: _native.ctx_count(lanes, 2, 7, 255, at + 8, step, seen, seen),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match=r"fit together|dense|bytes|lanes|row"):
            call()
