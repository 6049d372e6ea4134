"""Edges and their records: sums that add up, bases below their targets, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import OTHER, SCHEMA, STORE, anchor, body_of, claim, delta, edited, shard, slot, with_body

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol.edges import Edge, EdgeRecord, parse_edge
from deltastore.protocol.features import Requires
from deltastore.protocol.limits import MAX_INT

WORD = st.integers(0, 2**64 - 1)
SKIP = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=delta(3, 2**64 - 5, 11, 7))


def stored(edge: Edge) -> bytes:
    return replace(SKIP, edge=edge).to_bytes()


def edge_of(data: bytes) -> Edge:
    return parse_edge(data, store=STORE).edge


@pytest.mark.req("DS-EDGE-3")
@settings(max_examples=100, deadline=None)
@given(st.integers(1, MAX_INT), st.data(), st.lists(WORD, min_size=1, max_size=4), st.sampled_from([0, 1, 2]))
def test_edge_records_round_trip(target: int, draw: st.DataObject, deltas: list[int], kind: int) -> None:
    shards = tuple(shard(i, one) for i, one in enumerate(deltas))
    start = draw.draw(WORD) if kind else 0
    base: Any = ["none", "external", draw.draw(st.integers(0, target - 1))][kind]
    edge = Edge(base, start if kind else None, target, (start + sum(deltas)) % 2**64, shards)
    record = replace(SKIP, edge=edge, requires=Requires(gc=frozenset({"x"})))
    assert parse_edge(record.to_bytes(), store=STORE) == record


@pytest.mark.req("DS-EDGE-1")
@pytest.mark.parametrize(
    "edge",
    [
        replace(anchor(4, 9), base_state=0),
        replace(delta(3, 5, 4, 9), base_state=None),
        replace(delta(3, 0, 4, 9), base="external", base_state=None),
        delta(4, 5, 4, 9),
        delta(5, 5, 4, 9),
    ],
    ids=["anchor with a base state", "delta without", "external without", "onto itself", "backwards"],
)
def test_a_base_that_cannot_be_is_refused(edge: Edge) -> None:
    with pytest.raises(BadRecord):
        edge_of(stored(edge))


@pytest.mark.req("DS-EDGE-1")
@pytest.mark.parametrize("base", ["anchor", "None", "", b"none", None, True, -1, 1.0, 2**53, [1]])
def test_other_bases_are_refused(base: object) -> None:
    with pytest.raises(BadRecord):
        edge_of(edited(SKIP.to_bytes(), lambda b: b["edge"].update(base=base)))


@pytest.mark.req("DS-EDGE-2")
@settings(max_examples=60, deadline=None)
@given(st.lists(WORD, max_size=4), WORD, st.integers(1, 2**64 - 1))
def test_states_that_do_not_add_up_are_refused(deltas: list[int], start: int, off: int) -> None:
    shards = tuple(shard(i, one) for i, one in enumerate(deltas))
    right = Edge(1, start, 2, (start + sum(deltas)) % 2**64, shards)
    assert edge_of(stored(right)) == right
    with pytest.raises(BadRecord):
        edge_of(stored(replace(right, state=(right.state + off) % 2**64)))
    whole = Edge("none", None, 2, sum(deltas) % 2**64, shards)
    assert edge_of(stored(whole)) == whole
    with pytest.raises(BadRecord):
        edge_of(stored(replace(whole, state=(whole.state + off) % 2**64)))


@pytest.mark.req("DS-EDGE-2")
def test_an_edge_without_shards_is_the_identity() -> None:
    same = Edge(1, 77, 2, 77, ())
    assert edge_of(stored(same)) == same
    with pytest.raises(BadRecord):
        edge_of(stored(replace(same, state=78)))


@pytest.mark.req("DS-STORE-3")
def test_an_edge_record_of_another_store_is_refused() -> None:
    with pytest.raises(BadRecord, match=OTHER):
        parse_edge(SKIP.to_bytes(), store=OTHER)


@pytest.mark.req("DS-SIG-1")
def test_only_an_edge_may_be_under_the_key_of_an_edge() -> None:
    for data in (
        slot(claim(None)).data,
        msgpack.packb({**msgpack.unpackb(SKIP.to_bytes()), "type": "version"}),
    ):
        with pytest.raises(BadRecord):
            edge_of(data)


BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "spec 2": lambda b: b.update(spec=2),
    "short store": lambda b: b.update(store=b"x"),
    "schema as text": lambda b: b.update(schema="5c" * 32),
    "edge as array": lambda b: b.update(edge=[]),
    "edge nil": lambda b: b.update(edge=None),
    "requires as array": lambda b: b.update(requires=[]),
    "requires without gc": lambda b: b["requires"].pop("gc"),
    "feature as number": lambda b: b["requires"].update(read=[1]),
    "shard nil": lambda b: b["edge"].update(shards=[None]),
    "target as text": lambda b: b["edge"].update(target="11"),
    "state of 7 bytes": lambda b: b["edge"].update(state=bytes(7)),
    "slice of one number": lambda b: b["edge"]["shards"][0].update(slices=[[1]]),
    "slice of four numbers": lambda b: b["edge"]["shards"][0].update(slices=[[1, 2, 3, 4]]),
    "empty run": lambda b: b["edge"]["shards"][0].update(slices=[[1, 0]]),
    "empty part": lambda b: b["edge"]["shards"][0].update(slices=[[1, 8, 8]]),
    "backward part": lambda b: b["edge"]["shards"][0].update(slices=[[1, 8, 0]]),
    "negative slice": lambda b: b["edge"]["shards"][0].update(slices=[[-1, 1]]),
    "slice of booleans": lambda b: b["edge"]["shards"][0].update(slices=[[False, True]]),
    "slice of floats": lambda b: b["edge"]["shards"][0].update(slices=[[0.0, 1.0]]),
    "slice past 2^53": lambda b: b["edge"]["shards"][0].update(slices=[[2**53, 1]]),
    "codec too long": lambda b: b["edge"]["shards"][0].update(codec="x" * 65),
}


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize("name", BREAKS)
def test_malformed_edge_records_are_refused(name: str) -> None:
    with pytest.raises((BadRecord, LimitExceeded)):
        edge_of(edited(SKIP.to_bytes(), BREAKS[name]))


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize("name", sorted(body_of(SKIP.to_bytes())))
def test_each_field_of_an_edge_record_must_be_there(name: str) -> None:
    body = body_of(SKIP.to_bytes())
    del body[name]
    with pytest.raises(BadRecord):
        edge_of(with_body(SKIP.to_bytes(), body))


def test_the_size_of_an_edge_is_what_there_is_to_fetch() -> None:
    assert Edge(1, 0, 2, 3, (shard("a", 1, size=10), shard("b", 2, size=32))).size == 42
