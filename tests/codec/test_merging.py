"""Merged shards are what the two ends would be encoded as, and nothing hostile passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from codec_samples import NONCE, apply, declared, diff, digest_of, part_spec, random_lanes, whole_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore import codec as codecs
from deltastore.codec import frames, gaps, kernels, shard
from deltastore.codec.merging import Stored, merge
from deltastore.codec.types import Encoded, SliceSpec
from deltastore.errors import BadShard, LimitExceeded, Unsupported, UsageError
from deltastore.protocol.digest import MASK, Lanes

ULP = codecs.DELTA["ulp"]
State = list[Lanes]
BLOCK = 1 << 18


def encoded(specs: Sequence[SliceSpec], base: State, new: State, codec: str = "ulp") -> Encoded:
    deltas = [diff(codec, *item) for item in zip(specs, base, new, strict=True)]
    return codecs.DELTA[codec].encode(deltas, nonce=NONCE)


def stored(one: Encoded, codec: str = "ulp") -> Stored:
    return Stored(one.data, codec, one.raw_size, one.state_delta)


def chain(specs: Sequence[SliceSpec], states: Sequence[State]) -> list[Stored]:
    return [stored(encoded(specs, old, new)) for old, new in itertools.pairwise(states)]


def modes(data: bytes) -> bytes:
    return bytes(shard.parse(data).tensors["M"].data)


def check(specs: Sequence[SliceSpec], states: Sequence[State]) -> Encoded:
    """Merges all steps; the result leads from the first state to the last, and is what these two would give.

    But for whole slices: one that is whole in a step is so in the sum, and only such.
    """
    steps = chain(specs, states)
    merged = merge(steps, specs, nonce=NONCE)
    decoded = ULP.decode(merged.data, specs, raw_size=merged.raw_size)
    direct = encoded(specs, states[0], states[-1])
    found = modes(merged.data)
    one_step = [modes(step.data) for step in steps]
    for i, (spec, base, new, change, delta) in enumerate(
        zip(specs, states[0], states[-1], decoded.changes, decoded.deltas, strict=True)
    ):
        np.testing.assert_array_equal(apply(change, base), new)
        assert delta == (digest_of(spec, new) - digest_of(spec, base)) & MASK == declared(change, spec, base)
        if gaps.Mode.FULL in [step[i] for step in one_step]:
            assert found[i] == gaps.Mode.FULL
        else:
            assert found[i] != gaps.Mode.FULL
            assert found[i] == modes(direct.data)[i] or modes(direct.data)[i] == gaps.Mode.FULL
    assert merged.state_delta == direct.state_delta
    assert merged.changed == sum(decoded.changed)
    if found == modes(direct.data):
        assert merged.data == direct.data
        assert merged.raw_size == direct.raw_size
    return merged


# --- Any states --------------------------------------------------------------------------------------

KINDS = ("none", "few", "some", "dense", "wild", "back")


def moved(rng: np.random.Generator, kind: str, spec: SliceSpec, earlier: Sequence[Lanes]) -> Lanes:
    """A slice after one more step of some kind; `back` is to an earlier state."""
    if kind == "none":
        return earlier[-1]
    if kind == "back":
        return earlier[int(rng.integers(len(earlier)))]
    if kind == "wild":
        return random_lanes(rng, spec)
    density = {"few": 0.002, "some": 0.05, "dense": 0.9}[kind]
    steps = rng.choice(np.array([-1, 1, 1, -1, 2, -2, 100, -200, 300]), spec.lanes)
    steps[rng.random(spec.lanes) >= density] = 0
    after: Lanes = earlier[-1] + steps.astype(np.int64).astype(spec.uint)
    return after


@st.composite
def slices(draw: st.DrawFn) -> list[SliceSpec]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(["U8", "F8_E4M3", "BF16", "F16", "F32", "I64", "F64", "C64", "F4"]))
        name = f"t{number}"
        lanes = draw(st.sampled_from([0, 1, 7, 64, 999, 6000, BLOCK + 3]))
        if draw(st.booleans()) and lanes:
            found.append(part_spec(dtype, 8 * 5, 8 * 5 + lanes, 8 * 5 + lanes, name))
        else:
            found.append(whole_spec(dtype, lanes, name))
    return found


@given(specs=slices(), plan=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_merged_steps_are_one_delta_of_the_ends(
    specs: list[SliceSpec], plan: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    states = [[random_lanes(rng, spec) for spec in specs]]
    for _ in range(plan.draw(st.integers(1, 5))):
        kinds = [plan.draw(st.sampled_from(KINDS)) for _ in specs]
        columns = zip(kinds, specs, zip(*states, strict=True), strict=True)
        states.append([moved(rng, kind, spec, list(earlier)) for kind, spec, earlier in columns])
    check(specs, states)


# --- Byte for byte -----------------------------------------------------------------------------------


def walk(kinds: Sequence[str], specs: Sequence[SliceSpec], seed: int = 1) -> list[State]:
    rng = np.random.default_rng(seed)
    states = [[random_lanes(rng, spec) for spec in specs]]
    for kind in kinds:
        columns = zip(specs, zip(*states, strict=True), strict=True)
        states.append([moved(rng, kind, spec, list(earlier)) for spec, earlier in columns])
    return states


ALL_WIDTHS = [whole_spec(dtype, 40_000, dtype) for dtype in ("U8", "BF16", "F32", "F64")]


@pytest.mark.req("DS-SKIP-2")
@pytest.mark.parametrize("kinds", [["some"] * 2, ["few"] * 8, ["few", "some", "none", "few"]])
def test_sparse_steps_merge_into_the_very_bytes_of_the_direct_delta(kinds: list[str]) -> None:
    specs = [
        *ALL_WIDTHS,
        whole_spec("BF16", 2 * BLOCK + 9, "long"),
        part_spec("BF16", 80, 9_000, 9_000, "part"),
    ]
    states = walk(kinds, specs)
    assert check(specs, states).data == encoded(specs, states[0], states[-1]).data


@pytest.mark.req("DS-SKIP-2")
def test_wide_gaps_are_read_and_written_where_a_direct_delta_has_them() -> None:
    spec = whole_spec("BF16", 100_000)
    base = random_lanes(np.random.default_rng(1), spec)
    states = [[base]]
    for at in (5, 99_000, 40_000, 7):
        after = states[-1][0].copy()
        after[at : at + 100] += 1
        states.append([after])
    steps = chain([spec], states)
    assert {modes(step.data)[0] for step in steps} == {gaps.Mode.GAPS16}
    two = merge(steps[:2], [spec], nonce=NONCE)
    assert modes(two.data)[0] == gaps.Mode.GAPS16
    assert modes(check([spec], states).data)[0] == gaps.Mode.GAPS8
    back = [*states, [base.copy()]]
    back[-1][0][3] ^= 9
    assert modes(check([spec], back).data)[0] == gaps.Mode.GAPS16


@pytest.mark.req("DS-SKIP-2", "DS-SKIP-3")
def test_a_whole_slice_replaces_what_was_before_and_takes_on_what_comes_after() -> None:
    specs = [*ALL_WIDTHS, whole_spec("BF16", 9, "tiny")]
    for kinds in (
        ["wild"],
        ["some", "wild"],
        ["wild", "some"],
        ["few", "wild", "few", "wild", "some", "few"],
    ):
        states = walk(kinds, specs)
        merged = check(specs, states)
        assert set(modes(merged.data)) == {gaps.Mode.FULL}
        assert merged.data == encoded(specs, states[0], states[-1]).data


@pytest.mark.req("DS-SKIP-3")
def test_a_whole_slice_stays_whole_though_hardly_a_lane_is_another() -> None:
    states = walk(["wild"], ALL_WIDTHS)
    nearly = [lanes.copy() for lanes in states[0]]
    for lanes in nearly:
        lanes[17] += 1
    assert set(modes(check(ALL_WIDTHS, [*states, nearly]).data)) == {gaps.Mode.FULL}
    same = check(ALL_WIDTHS, [*states, states[0]])
    assert set(modes(same.data)) == {gaps.Mode.FULL}
    assert same.state_delta == 0


def test_steps_that_only_add_up_to_a_dense_slice_stay_sparse() -> None:
    spec = whole_spec("BF16", 30_000)
    states = walk([], [spec])
    for part in range(6):
        after = states[-1][0].copy()
        after[part::6] = 7
        states.append([after])
    assert modes(encoded([spec], states[0], states[-1]).data)[0] == gaps.Mode.FULL
    assert modes(check([spec], states).data)[0] == gaps.Mode.GAPS8


@pytest.mark.req("DS-SKIP-2")
def test_what_cancels_out_is_unchanged() -> None:
    states = walk(["some", "few"], ALL_WIDTHS)
    merged = check(ALL_WIDTHS, [*states, states[0]])
    assert set(modes(merged.data)) == {gaps.Mode.UNCHANGED}
    assert merged.changed == merged.state_delta == 0


def test_merges_of_merges_are_merges() -> None:
    states = walk(["some", "few", "few", "some", "none", "few", "few", "few"], ALL_WIDTHS)
    steps = chain(ALL_WIDTHS, states)
    pairs = [stored(merge(steps[i : i + 2], ALL_WIDTHS, nonce=NONCE)) for i in range(0, 8, 2)]
    at_once = merge(steps, ALL_WIDTHS, nonce=NONCE)
    assert merge(pairs, ALL_WIDTHS, nonce=NONCE) == at_once
    assert merge([stored(at_once)], ALL_WIDTHS, nonce=NONCE) == at_once


def test_no_slices_and_empty_ones_can_be_merged() -> None:
    assert merge(chain([], [[], [], []]), [], nonce=NONCE) == encoded([], [], [])
    specs = [whole_spec("F32", 0, "nothing"), whole_spec("BF16", 0, "void")]
    nothing = [np.empty(0, spec.uint) for spec in specs]
    assert merge(chain(specs, [nothing] * 3), specs, nonce=NONCE) == encoded(specs, nothing, nothing)


def test_streams_are_inflated_as_slices_need_them_and_compressed_as_they_fill_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "FRAME", 4096)
    specs = [whole_spec("U8", 300_000, name) for name in "abcd"]
    states = walk(["some", "some"], specs)
    steps = chain(specs, states)
    direct = encoded(specs, states[0], states[-1])
    events: list[str] = []

    def noted(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            events.append(event)
            return function(*args)

        return call

    monkeypatch.setattr(frames, "_inflate", noted("frame in", frames._inflate))
    monkeypatch.setattr(frames, "_compress", noted("frame out", frames._compress))
    monkeypatch.setattr(kernels, "steps_merge", noted("slice", kernels.steps_merge))
    merged = merge(steps, specs, nonce=NONCE)
    merges = [i for i, event in enumerate(events) if event == "slice"]
    assert len(merges) == 4
    for a, b in itertools.pairwise(merges):
        assert {"frame in", "frame out"} <= set(events[a:b])
    assert merged.data == direct.data


# --- What is refused ---------------------------------------------------------------------------------


def test_a_merge_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no shards"):
        merge([], [whole_spec("U8", 3)], nonce=NONCE)


@pytest.mark.req("DS-SKIP-1")
@pytest.mark.parametrize("codec", ["abs", "coo", "ctx", "plain", "lz77"])
def test_other_codecs_are_refused_by_name(codec: str) -> None:
    spec = whole_spec("BF16", 100)
    base, new = walk(["some"], [spec])
    good = stored(encoded([spec], base, new))
    other = (
        stored(encoded([spec], new, base, codec), codec)
        if codec in {"abs", "coo"}
        else replace(good, codec=codec)
    )
    with pytest.raises(Unsupported, match=f"'{codec}' cannot be merged"):
        merge([good, other], [spec], nonce=NONCE)


def test_a_shard_of_another_codec_than_it_is_said_to_be_is_refused() -> None:
    spec = whole_spec("BF16", 100)
    base, new = walk(["some"], [spec])
    with pytest.raises(BadShard, match="codec 'abs'"):
        merge([stored(encoded([spec], base, new, "abs"))], [spec], nonce=NONCE)


@pytest.mark.req("DS-SKIP-2")
def test_steps_that_cancel_out_with_digests_that_do_not_are_refused() -> None:
    spec = whole_spec("BF16", 100)
    one, two = walk(["some"], [spec])
    there = encoded([spec], one, two)
    other = random_lanes(np.random.default_rng(5), spec)
    back = encoded([spec], [other], [other - (two[0] - one[0])])
    with pytest.raises(BadShard, match="cancel out"):
        merge([stored(there), stored(back)], [spec], nonce=NONCE)


def test_slices_that_do_not_add_up_to_the_descriptor_are_refused() -> None:
    spec = whole_spec("BF16", 100)
    base, new = walk(["some"], [spec])
    good = stored(encoded([spec], base, new))
    for bad in (replace(good, state_delta=good.state_delta ^ 1), replace(good, raw_size=good.raw_size + 1)):
        with pytest.raises(BadShard):
            merge([good, bad], [spec], nonce=NONCE)


def test_a_size_over_the_limit_is_refused() -> None:
    spec = whole_spec("BF16", 100)
    base, new = walk(["some"], [spec])
    good = stored(encoded([spec], base, new))
    with pytest.raises(LimitExceeded):
        merge([good, replace(good, raw_size=1 << 40)], [spec], nonce=NONCE)


def test_shards_of_other_slices_are_refused() -> None:
    specs = [whole_spec("BF16", 100), whole_spec("BF16", 30, "b")]
    states = walk(["some"], specs)
    steps = chain(specs, states)
    for others in ([], specs[:1], [*specs, specs[0]]):
        with pytest.raises((BadShard, LimitExceeded)):
            merge(steps, others, nonce=NONCE)


OURS = (BadShard, LimitExceeded, Unsupported)
SAMPLE = [
    whole_spec("BF16", 300, "sparse"),
    whole_spec("BF16", 12, "idle"),
    whole_spec("F32", 900, "wide"),
    whole_spec("U8", 11, "whole"),
]


def sample() -> list[Encoded]:
    """Two steps that have slices in all modes; in the second some that the first has not."""
    rng = np.random.default_rng(4)
    base = [random_lanes(rng, spec) for spec in SAMPLE]
    first, second = ([lanes.copy() for lanes in base] for _ in range(2))
    first[0][[2, 9, 250]] += 1
    first[2][700] += 5
    first[3] = random_lanes(rng, SAMPLE[3])
    second[0][[9, 11, 250]] -= 300
    second[1][3] ^= 7
    second[3] = first[3].copy()
    second[3][4] += 1
    return [encoded(SAMPLE, base, first), encoded(SAMPLE, first, second)]


def failure_of(work: Callable[[], object]) -> type[BaseException] | None:
    try:
        work()
    except OURS as error:
        return type(error)
    return None


def test_the_sample_has_every_mode() -> None:
    assert {mode for one in sample() for mode in modes(one.data)} == {0, 1, 2, 3}


@pytest.mark.parametrize("which", [0, 1])
def test_what_a_reader_refuses_no_merge_takes(which: int) -> None:
    steps = sample()
    true = steps[which]
    kinds = set()
    for bit in range(which, 8 * len(true.data), 5):
        data = bytearray(true.data)
        data[bit // 8] ^= 1 << bit % 8
        inputs = [stored(one) for one in steps]
        inputs[which] = replace(inputs[which], data=bytes(data))
        refused = failure_of(lambda d=bytes(data): ULP.decode(d, SAMPLE, raw_size=true.raw_size))  # type: ignore[misc]
        merged = failure_of(lambda i=inputs: merge(i, SAMPLE, nonce=NONCE))  # type: ignore[misc]
        kinds.add(refused)
        assert refused in {None, merged}
        if merged is None:
            one = merge(inputs, SAMPLE, nonce=NONCE)
            ULP.decode(one.data, SAMPLE, raw_size=one.raw_size)
    assert {None, BadShard, LimitExceeded} <= kinds


@pytest.mark.parametrize("which", [0, 1])
def test_a_shard_cut_anywhere_is_refused(which: int) -> None:
    steps = sample()
    for size in range(len(steps[which].data)):
        inputs = [stored(one) for one in steps]
        inputs[which] = replace(inputs[which], data=steps[which].data[:size])
        with pytest.raises(OURS):
            merge(inputs, SAMPLE, nonce=NONCE)
