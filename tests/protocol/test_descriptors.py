"""Descriptors and slices: in order, inside, on word boundaries, and every lane exactly once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import shard

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol import limits
from deltastore.protocol.descriptors import (
    Descriptor,
    Part,
    Run,
    ShardDescriptor,
    Slice,
    Slices,
    check_cover,
    compress,
    resolve,
)
from deltastore.protocol.digest import digest, tensor_key
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.protocol.wire import Fields
from deltastore.shards import dense, make_anchor

MODEL = Schema.of(
    [
        TensorSpec("a", "BF16", (10, 10)),
        TensorSpec("b", "U8", (21,)),
        TensorSpec("c", "BF16", (10, 10), "a"),
        TensorSpec("d", "F32", (0, 4)),
        TensorSpec("e", "F64", (8,)),
        TensorSpec("f", "F4", (2, 9)),
    ]
)
A, B, C, D, E, F = range(6)


def resolved(*slices: Run | Part) -> list[tuple[str, int, int]]:
    return [(one.tensor.name, one.start, one.stop) for one in resolve(MODEL, slices)]


def cover(*shards: Slices, raw_size: int = 10) -> None:
    check_cover(MODEL, [shard(i, 0, raw_size=raw_size, slices=slices) for i, slices in enumerate(shards)])


def test_runs_are_whole_owners_and_parts_are_ranges() -> None:
    assert resolved(Run(A, 6)) == [("a", 0, 100), ("b", 0, 21), ("d", 0, 0), ("e", 0, 8), ("f", 0, 9)]
    assert resolved(Part(A, 0, 4), Part(A, 4, 100), Run(B, 1)) == [("a", 0, 4), ("a", 4, 100), ("b", 0, 21)]
    assert resolved(Run(C, 1)) == []
    assert resolved() == []


@pytest.mark.req("DS-DESC-3")
@pytest.mark.parametrize(
    "slices",
    [
        (Run(B, 1), Run(A, 1)),
        (Run(A, 1), Run(A, 1)),
        (Run(A, 2), Run(B, 1)),
        (Run(A, 1), Part(A, 0, 4)),
        (Part(A, 0, 4), Run(A, 1)),
        (Part(A, 4, 8), Part(A, 0, 4)),
        (Part(A, 0, 8), Part(A, 4, 12)),
        (Part(A, 0, 4), Part(A, 0, 4)),
        (Part(B, 0, 8), Part(A, 0, 4)),
        (Run(A, 3), Part(B, 16, 21)),
        (Run(A, 7),),
        (Run(6, 1),),
        (Run(0, limits.MAX_INT),),
        (Run(limits.MAX_INT, 1),),
        (Part(6, 0, 8),),
        (Part(limits.MAX_INT, 0, 8),),
        (Part(A, 0, 104),),
        (Part(A, 96, 104),),
        (Part(A, 104, 108),),
        (Part(A, 0, limits.MAX_INT),),
        (Part(C, 0, 4),),
        (Part(D, 0, 2),),
        (Part(A, 1, 4),),
        (Part(A, 0, 3),),
        (Part(A, 2, 100),),
        (Part(B, 4, 21),),
        (Part(B, 0, 20),),
        (Part(F, 0, 4),),
        (Part(F, 0, 10),),
    ],
    ids=str,
)
def test_slices_that_break_a_rule_are_refused(slices: Slices) -> None:
    with pytest.raises(BadRecord):
        resolved(*slices)


@pytest.mark.req("DS-DESC-3")
@pytest.mark.parametrize(
    "part", [Part(A, 96, 100), Part(B, 16, 21), Part(B, 0, 8), Part(E, 1, 2), Part(F, 8, 9), Part(F, 0, 8)]
)
def test_parts_on_word_boundaries_or_up_to_the_end_are_allowed(part: Part) -> None:
    assert resolved(part) == [(MODEL.tensors[part.tensor].name, part.start, part.stop)]


@pytest.mark.req("DS-DESC-4")
def test_each_lane_of_each_owner_is_covered_once() -> None:
    cover((Run(0, 6),))
    cover((Run(A, 1), Run(D, 3)), (Run(B, 2),))
    cover((Part(A, 48, 100),), (Part(A, 0, 48), Run(B, 5)))
    cover((Run(D, 3),), (Run(A, 1),), (Run(C, 1),), (Run(B, 1),), ())


@pytest.mark.req("DS-DESC-4")
@pytest.mark.parametrize(
    "shards",
    [
        (),
        ((),),
        ((Run(A, 5),),),
        ((Run(B, 5),),),
        ((Run(A, 2), Run(E, 2)),),
        ((Run(A, 6),), (Run(A, 1),)),
        ((Run(A, 6),), (Run(D, 1),)),
        ((Run(A, 6),), (Run(A, 6),)),
        ((Part(A, 0, 96), Run(B, 5)),),
        ((Part(A, 4, 100), Run(B, 5)),),
        ((Part(A, 0, 48), Part(A, 52, 100), Run(B, 5)),),
        ((Part(A, 0, 52), Run(B, 5)), (Part(A, 48, 100),)),
        ((Run(A, 6),), (Part(A, 0, 4),)),
        ((Part(A, 0, 48), Run(B, 5)), (Part(A, 0, 48),)),
        ((Part(A, 0, 48), Run(B, 1), Run(D, 3)), (Part(A, 0, 48), Part(B, 0, 8))),
    ],
    ids=str,
)
def test_lanes_that_are_left_out_or_covered_twice_are_refused(shards: tuple[Slices, ...]) -> None:
    with pytest.raises(BadRecord, match="exactly once"):
        cover(*shards)


@pytest.mark.req("DS-DESC-4")
def test_nothing_covers_a_schema_of_nothing() -> None:
    check_cover(Schema(()), [])
    check_cover(Schema(()), [shard("x", 0, slices=())])


@st.composite
def cuts(draw: st.DrawFn) -> list[list[Slice]]:
    """The owners of a model cut at random word boundaries and dealt out to some shards."""
    shards: list[list[Slice]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for tensor in MODEL.owners:
        words = 8 // tensor.lane_bytes
        marks = draw(st.sets(st.integers(1, max(1, (tensor.lanes - 1) // words)), max_size=3))
        bounds = sorted({0, tensor.lanes} | {m * words for m in marks if 0 < m * words < tensor.lanes})
        pieces = list(pairwise(bounds)) or [(0, 0)]
        for start, stop in pieces:
            shards[draw(st.integers(0, len(shards) - 1))].append(Slice(tensor, start, stop))
    return shards


def described(groups: list[list[Slice]]) -> list[ShardDescriptor]:
    return [shard(i, 0, slices=compress(MODEL, group)) for i, group in enumerate(groups)]


@pytest.mark.req("DS-DESC-3", "DS-DESC-4")
@settings(max_examples=150, deadline=None)
@given(cuts())
def test_any_cut_is_coded_and_read_back_and_covers(groups: list[list[Slice]]) -> None:
    for group in groups:
        assert list(resolve(MODEL, compress(MODEL, group))) == group
    check_cover(MODEL, described(groups))


@pytest.mark.req("DS-DESC-4")
@settings(max_examples=150, deadline=None)
@given(cuts(), st.data())
def test_a_cut_with_one_slice_less_or_twice_is_refused(
    groups: list[list[Slice]], draw: st.DataObject
) -> None:
    full = [i for i, group in enumerate(groups) if group]
    group = groups[draw.draw(st.sampled_from(full))]
    at = draw.draw(st.integers(0, len(group) - 1))
    if draw.draw(st.booleans()):
        groups.append([group[at]])
    else:
        del group[at]
    with pytest.raises(BadRecord):
        check_cover(MODEL, described(groups))


@pytest.mark.req("DS-DESC-5", "DS-LIMIT-1")
def test_what_a_shard_inflates_to_is_bounded_by_what_it_covers() -> None:
    most = 10 * MODEL.nbytes + 4096 * 5 + 65536
    cover((Run(A, 6),), raw_size=most)
    with pytest.raises(LimitExceeded):
        cover((Run(A, 6),), raw_size=most + 1)
    with pytest.raises(LimitExceeded):
        check_cover(MODEL, [shard(0, 0, slices=(Run(A, 6),)), shard(1, 0, slices=(), raw_size=65537)])


@pytest.mark.req("DS-DESC-5")
def test_a_run_of_aliases_counts_as_no_slice() -> None:
    shards = [shard(0, 0, slices=(Run(A, 2), Run(D, 3))), shard(1, 0, slices=(Run(C, 1),), raw_size=65536)]
    check_cover(MODEL, shards)
    with pytest.raises(LimitExceeded):
        check_cover(MODEL, [shards[0], replace(shards[1], raw_size=65537)])


def test_more_than_2_32_lanes_are_covered_exactly() -> None:
    lanes = 2**33 + 5
    big = Schema.of([TensorSpec("w", "BF16", (lanes,))])
    parts: Slices = (Part(0, 0, 2**32), Part(0, 2**32, lanes))
    check_cover(big, [shard(0, 0, slices=parts)])
    with pytest.raises(BadRecord):
        check_cover(big, [shard(0, 0, slices=(Part(0, 0, 2**32), Part(0, 2**32 + 4, lanes)))])


@pytest.mark.req("DS-DESC-1")
def test_descriptors_are_read_as_they_were_stored() -> None:
    plain = Descriptor("ab" * 32, 5)
    value = plain.to_value()
    assert value == {"sha256": bytes.fromhex("ab" * 32), "size": 5}
    assert Descriptor.read(Fields(value, "it")) == plain


@pytest.mark.req("DS-DESC-1", "DS-DESC-2")
def test_a_shard_is_described_by_its_stored_bytes_and_its_slices() -> None:
    rng = np.random.default_rng(3)
    whole = Slice(MODEL["a"], 0, 100)
    part = Slice(MODEL["b"], 16, 21)
    lanes = [rng.integers(0, 2**16, 100, np.uint16), rng.integers(0, 2**8, 5, np.uint8)]
    denses = [dense(one, values) for one, values in zip((whole, part), lanes, strict=True)]
    made = make_anchor("plain", MODEL, [whole, part], denses, nonce=bytes(16), check=True)
    assert made.descriptor.sha256 == hashlib.sha256(made.data).hexdigest()
    assert made.descriptor.size == len(made.data)
    assert made.descriptor.xxh3 == xxhash.xxh3_64(made.data, seed=0).intdigest()
    assert made.descriptor.raw_size == 205
    digests = [digest(lanes[0], tensor_key("a")), digest(lanes[1], tensor_key("b"), 2)]
    assert made.descriptor.state_delta == sum(digests) % 2**64
    assert made.descriptor.slices == (Run(A, 1), Part(B, 16, 21))


@pytest.mark.req("DS-DESC-2")
def test_words_of_a_shard_descriptor_are_big_endian() -> None:
    value = shard("x", -2).to_value()
    assert isinstance(value, dict)
    assert value["xxh3"] == bytes(7) + b"\x07"
    assert value["state_delta"] == b"\xff" * 7 + b"\xfe"
