"""The kernels, each on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_samples import DTYPES, declared, digest_of, pair, part_spec, whole_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deltastore.codec import kernels, twin
from deltastore.codec.types import Sparse, uint
from deltastore.errors import BadShard, SchemaMismatch, Unsupported
from deltastore.protocol.digest import MASK, Lanes

BLOCK = kernels.BLOCK
quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)


@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.integers(0, 40),
    density=st.sampled_from((0.0, 0.1, 0.5, 1.0)),
    seed=seeds,
)
@quick
def test_diff_moves_the_base_and_undo_takes_it_back(
    dtype: str, lanes: int, density: float, seed: int
) -> None:
    spec, before, after = pair(np.random.default_rng(seed), whole_spec(dtype, lanes), density, "random")
    base = before.copy()
    found = kernels.diff(spec, base, after)
    np.testing.assert_array_equal(base, after)
    np.testing.assert_array_equal(found.positions, np.flatnonzero(before != after))
    np.testing.assert_array_equal(found.old, before[found.positions])
    np.testing.assert_array_equal(found.new, after[found.positions])
    assert found.state_delta == (digest_of(spec, after) - digest_of(spec, before)) & MASK
    assert (found.whole is not None) == (0 < spec.lanes <= 4 * found.changed)
    found.undo(base)
    np.testing.assert_array_equal(base, before)


@pytest.mark.req("DS-DIGEST-3")
@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.integers(0, 40),
    start=st.sampled_from((0, 8, 2**33)),
    density=st.sampled_from((0.0, 0.1, 0.5, 1.0)),
    seed=seeds,
)
@quick
def test_patch_delta_is_the_change_of_the_digest(
    dtype: str, lanes: int, start: int, density: float, seed: int
) -> None:
    spec = part_spec(dtype, start, start + lanes, start + lanes)
    item = pair(np.random.default_rng(seed), spec, density, "random")
    found = kernels.diff(spec, item[1].copy(), item[2])
    change = Sparse(found.positions, found.new, relative=False)
    assert declared(change, spec, item[1]) == found.state_delta
    assert found.state_delta == (digest_of(spec, item[2]) - digest_of(spec, item[1])) & MASK


def test_gathering_reads_every_word_once_and_nothing_beyond_the_slice() -> None:
    spec = whole_spec("BF16", 10)
    lanes = np.arange(100, 110, dtype=np.uint16)
    asked: list[NDArray[np.int64]] = []

    def read(at: NDArray[np.int64]) -> Lanes:
        asked.append(at)
        return lanes[at]

    gathered = kernels.gather_words(spec, read, np.array([1, 2, 9]))
    assert [at.tolist() for at in asked] == [[0, 1, 2, 3, 8, 9]]
    assert gathered.old.tolist() == [101, 102, 109]
    assert gathered.words.tolist() == [0, 2]


def test_a_slice_that_ends_inside_a_word_is_refused() -> None:
    spec = part_spec("BF16", 0, 3, 8)
    lanes = np.zeros(3, np.uint16)
    with pytest.raises(Unsupported, match=r"w\[0:3\]"):
        kernels.diff(spec, lanes, lanes)
    with pytest.raises(Unsupported, match=r"w\[0:3\]"):
        declared(Sparse(np.array([1]), lanes[:1], relative=False), spec, lanes)


@pytest.mark.parametrize(
    "lanes",
    [np.zeros(5, np.uint16), np.zeros(4, np.uint8), np.zeros((2, 2), np.uint16)],
    ids=["length", "width", "shape"],
)
def test_a_wrong_array_moves_nothing(lanes: Lanes) -> None:
    spec = whole_spec("BF16", 4)
    base = np.arange(4, dtype=np.uint16)
    with pytest.raises(SchemaMismatch, match="'w'"):
        kernels.diff(spec, base, lanes)
    assert base.tolist() == [0, 1, 2, 3]


def test_a_strided_array_is_refused() -> None:
    with pytest.raises(SchemaMismatch):
        kernels.diff(whole_spec("BF16", 4), np.zeros(4, np.uint16), np.zeros(8, np.uint16)[::2])


@pytest.mark.req("DS-GAP-3")
@given(
    lanes=st.sampled_from((1, 300, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 5)),
    count=st.sampled_from((1, 2, 50, 3000)),
    width=st.sampled_from((1, 2)),
    seed=seeds,
)
@quick
def test_gaps_follow_the_rule_of_the_spec(lanes: int, count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = np.unique(rng.integers(0, lanes, count))
    changes = kernels.per_block(positions, kernels.block_ends(lanes))
    symbols, counts = kernels.gap_encode(positions, changes, width)
    assert symbols.dtype == uint(width)
    largest, at, found = 256**width - 1, 0, []
    for block, number in enumerate(counts.tolist()):
        p = block * BLOCK
        for symbol in symbols[at : at + number].tolist():
            p += symbol
            if symbol != largest:
                found.append(p)
                p += 1
        at += number
    assert found == positions.tolist()
    np.testing.assert_array_equal(kernels.gap_decode(symbols, counts, changes, lanes), positions)


@pytest.mark.req("DS-GAP-3")
@pytest.mark.parametrize(
    ("symbols", "counts", "changes", "lanes"),
    [
        ([3, 255], [2], [1], 600),
        ([3, 4], [2], [1], 600),
        ([3, 255, 7], [1, 2], [2, 0], BLOCK + 600),
        ([3, 255, 7], [2, 1], [1, 1], BLOCK + 600),
        ([10], [1], [1], 10),
        ([5, 4], [2], [2], 10),
        ([255, 45], [2], [1], 300),
    ],
    ids=["trailing", "more", "other block", "run over a block", "first", "second", "escaped"],
)
def test_gaps_that_do_not_fit_their_block_are_refused(
    symbols: list[int], counts: list[int], changes: list[int], lanes: int
) -> None:
    with pytest.raises(BadShard):
        kernels.gap_decode(np.array(symbols, np.uint8), np.array(counts), np.array(changes), lanes)


def test_codes_are_packed_least_significant_first_with_a_fresh_byte_per_block() -> None:
    codes = np.array([1, 0, 2, 2, 1, 2, 1], np.uint8)
    counts = np.array([5, 0, 2])
    packed = twin.pack2(codes, counts)
    assert packed.tolist() == [0b10100001, 0b01, 0b0110]
    np.testing.assert_array_equal(twin.unpack2(packed, counts), codes)


@pytest.mark.req("DS-ULP-1")
@pytest.mark.parametrize("bit", range(4, 8))
def test_padding_bits_of_codes_are_zero(bit: int) -> None:
    with pytest.raises(BadShard, match="padding"):
        twin.unpack2(np.array([0b0110 | 1 << bit], np.uint8), np.array([2]))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_zigzag_orders_steps_by_size_and_comes_back(width: int) -> None:
    edge = 1 << (8 * width - 1)
    steps = [0, -1, 1, -2, 2, -100, 100, edge - 1, -edge]
    lanes = np.array([step % (2 * edge) for step in steps], uint(width))
    numbers = twin.zigzag(lanes)
    assert numbers.tolist() == [0, 1, 2, 3, 4, 199, 200, 2 * edge - 2, 2 * edge - 1]
    np.testing.assert_array_equal(twin.unzigzag(numbers), lanes)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_plane_i_holds_byte_i(width: int) -> None:
    lanes = np.frombuffer(bytes(range(3 * width)), uint(width))
    planes = kernels.split_planes(lanes)
    assert [plane.tolist() for plane in planes] == [[i, width + i, 2 * width + i] for i in range(width)]
    np.testing.assert_array_equal(kernels.merge_planes(planes), lanes)


def test_new_bits_wrap_around() -> None:
    old = np.array([0, 65535], np.uint16)
    steps = Sparse(np.array([0, 1]), np.array([65535, 2], np.uint16), relative=True)
    assert kernels.new_bits(steps, old).tolist() == [65535, 1]


def test_weights_that_change_meanwhile_make_one_diff_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = whole_spec("F32", 64)
    base, after = np.zeros(64, np.uint32), np.arange(1, 65, dtype=np.uint32)
    delta = twin._delta

    def meddling(*args: Any) -> int:
        after[7] = 1000
        return delta(*args)

    monkeypatch.setattr(twin, "_delta", meddling)
    found = twin.diff(spec, base, after)
    assert found.whole is not None
    np.testing.assert_array_equal(found.whole, np.arange(1, 65))
    np.testing.assert_array_equal(found.whole, base)
    assert found.state_delta == (digest_of(spec, base) - digest_of(spec, np.zeros(64, np.uint32))) & MASK
