"""The planner against brute force: never dearer than the best path, and only over edges that it may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import shard

from deltastore.errors import NoPath
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base
from deltastore.protocol.planning import REQUEST_BYTES, Plan, cheapest, cost, identity_edge

HELD: set[Base] = {"none"}


def edge(base: Base, target: int, size: int, shards: int = 1, name: object = "") -> Edge:
    parts = tuple(shard((base, target, size, i, name), 0, size=size // shards) for i in range(shards))
    return Edge(base, None if base == "none" else 0, target, 0, parts)


def planned(
    edges: Iterable[Edge], target: int, held: Iterable[Base] = HELD, avoid: Iterable[Edge] = ()
) -> Plan:
    listed = list(edges)
    asked: list[int] = []

    def edges_into(version: int) -> Iterator[Edge]:
        asked.append(version)
        return (one for one in listed if one.target == version)

    plan = cheapest(target, held=set(held), edges_into=edges_into, avoid=set(avoid))
    assert len(set(asked)) == len(asked), "a version's record was read twice"
    return plan


def brute_force(edges: list[Edge], target: int, held: set[Base]) -> int | None:
    """The cost of the best of all paths, by trying them all."""
    if target in held:
        return 0
    best = None
    for one in edges:
        if one.target != target:
            continue
        rest = (
            0
            if one.base in held
            else brute_force(edges, one.base, held)
            if isinstance(one.base, int)
            else None
        )
        if rest is not None and (best is None or rest + cost(one) < best):
            best = rest + cost(one)
    return best


@st.composite
def graphs(draw: st.DrawFn) -> list[Edge]:
    found = []
    for i in range(draw(st.integers(0, 14))):
        target = draw(st.integers(0, 6))
        base = draw(st.sampled_from(["none", "external", *range(target)]))
        shards = draw(st.integers(0, 3))
        found.append(
            edge(base, target, draw(st.integers(0, 4)) * 200_000, shards, i)
            if shards
            else edge_of_nothing(base, target)
        )
    return found


def edge_of_nothing(base: Base, target: int) -> Edge:
    return Edge(base, None if base == "none" else 0, target, 0, ())


@pytest.mark.req("DS-PLAN-1")
@settings(max_examples=400, deadline=None)
@given(
    graphs(),
    st.integers(0, 6),
    st.sets(st.sampled_from(["none", "external", 0, 1, 2, 3, 4, 5]), max_size=3),
    st.data(),
)
def test_the_plan_is_the_cheapest_of_all_paths(
    edges: list[Edge], target: int, held: set[Base], draw: st.DataObject
) -> None:
    avoid = draw.draw(st.sets(st.sampled_from(edges), max_size=3)) if edges else set()
    best = brute_force([one for one in edges if one not in avoid], target, held)
    if best is None:
        with pytest.raises(NoPath):
            planned(edges, target, held, avoid)
        return
    plan = planned(edges, target, held, avoid)
    assert plan.cost == best == sum(cost(one) for one in plan.edges)
    assert plan.size == sum(one.size for one in plan.edges)
    assert plan.start in held
    assert not set(plan.edges) & avoid
    at = plan.start
    for one in plan.edges:
        assert one.base == at
        at = one.target
    assert at == target


def test_a_request_costs_a_quarter_of_a_mebibyte() -> None:
    assert REQUEST_BYTES == 2**18
    assert cost(edge(0, 1, 1000, shards=2)) == 1000 + 2 * 2**18
    assert cost(identity_edge(3, 4, 9)) == 0


def test_what_is_held_costs_nothing() -> None:
    assert planned([], 5, {5}) == Plan(5, (), 0)


def test_a_chain_of_small_deltas_beats_an_anchor_and_a_long_one_does_not() -> None:
    deltas = [edge(i, i + 1, 10_000) for i in range(40)]
    first, late = edge("none", 0, 5_000_000), edge("none", 40, 5_000_000)
    assert planned([first, late, *deltas], 40, {"none", 30}).edges == tuple(deltas[30:])
    assert planned([first, late, *deltas], 40).edges == (late,)
    assert planned([first, *deltas], 40).edges == (first, *deltas)


@pytest.mark.req("DS-PLAN-1")
def test_a_skip_is_taken_where_it_is_cheaper_and_routed_around_where_it_failed() -> None:
    deltas = [edge(i, i + 1, 10_000) for i in range(8)]
    skip = edge(0, 8, 30_000)
    assert planned([*deltas, skip], 8, {0}).edges == (skip,)
    assert planned([*deltas, skip], 8, {0}, {skip}).edges == tuple(deltas)
    assert planned([*deltas, skip], 8, {3}).edges == tuple(deltas[3:])
    with pytest.raises(NoPath):
        planned([*deltas, skip], 8, {0}, {skip, deltas[4]})


@pytest.mark.req("DS-PLAN-1")
def test_claims_are_crossed_for_nothing() -> None:
    plan = planned([edge(0, 1, 100), identity_edge(1, 2, 0), edge(2, 3, 100)], 3, {0})
    assert [one.target for one in plan.edges] == [1, 2, 3]
    assert plan.size == 200


@pytest.mark.req("DS-PLAN-1")
def test_the_external_base_is_a_start_only_for_those_who_have_it() -> None:
    external, anchor = edge("external", 1, 100), edge("none", 1, 9_000_000)
    assert planned([external, anchor], 1, {"none", "external"}).start == "external"
    assert planned([external, anchor], 1).start == "none"
    with pytest.raises(NoPath):
        planned([external], 1)


@pytest.mark.req("DS-PLAN-1")
def test_no_path_names_the_version() -> None:
    with pytest.raises(NoPath, match="version 7") as caught:
        planned([edge(5, 6, 1)], 7)
    assert caught.value.fields["version"] == 7


def test_only_the_records_on_the_way_are_read() -> None:
    asked = []

    def edges_into(version: int) -> Iterator[Edge]:
        asked.append(version)
        yield edge(version - 1, version, 1)
        if version == 98:
            yield edge("none", version, 10)

    assert len(cheapest(100, held={"none"}, edges_into=edges_into).edges) == 3
    assert min(asked) > 90


def test_ten_thousand_versions_are_planned_without_recursion() -> None:
    plan = cheapest(10_000, held={0}, edges_into=lambda v: [edge(v - 1, v, 1)] if v else [])
    assert len(plan.edges) == 10_000
