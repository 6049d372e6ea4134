"""Anchors that the producer adds behind its versions: when, how readers find them, and what if they fail."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
import torch
from support import (
    State,
    all_bits,
    blank,
    consumer,
    failing,
    new_store,
    producer,
    read,
    record,
    reopened,
    shard_keys,
    small,
    stepped,
)

from deltastore import AnyOf, CatchUpBytes, MaxChain, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import AuthError, BadEdge, Diverged, NoPath
from deltastore.maintenance import anchors as maintenance
from deltastore.maintenance.anchors import add_anchor
from deltastore.parallel import INLINE, Workers
from deltastore.producer.anchors import REFRESH
from deltastore.protocol import keys
from deltastore.protocol.edges import EdgeRecord
from deltastore.shards import dense
from deltastore.testing import FaultBackend


def anchors(store: Store) -> list[int]:
    """Versions that have an edge record of an anchor."""
    found = [keys.parse_edge(info.key) for info in store.access.backend.list("edges/")]
    return [target for target, base, _ in found if base == "none"]


def publish_many(store: Store, count: int, **options: object) -> list[State]:
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store, **options) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


@pytest.mark.req("DS-ANCHOR-2")
def test_embedded_anchors_have_records_too(store: Store) -> None:
    publish_many(store, 3)
    with producer(store) as out:
        out.reset(small(), step=3)
    assert anchors(store) == [1, 5]
    for info in store.access.backend.list("edges/"):
        target, _, _ = keys.parse_edge(info.key)
        assert store.edge(info.key).edge == record(store, target).embedded


def test_an_anchor_every_so_many_versions(store: Store) -> None:
    publish_many(store, 11, anchors=MaxChain(4))
    assert anchors(store) == [1, 5, 9]
    assert record(store, 11).last_anchor == 9
    assert [record(store, v).last_anchor for v in (1, 4, 5, 6)] == [1, 1, 1, 5]


def test_an_anchor_when_replaying_costs_as_much(store: Store) -> None:
    publish_many(store, 40, anchors=CatchUpBytes(1.0))
    found = anchors(store)
    assert 2 < len(found) < 20
    for first, second in itertools.pairwise(found):
        deltas = sum(_bytes(store, v) for v in range(first + 1, second + 1))
        before = deltas - _bytes(store, second)
        size = sum(i.size for k in _anchor_keys(store, first) for i in [store.access.backend.head(k)])
        assert before <= size < deltas


def _bytes(store: Store, version: int) -> int:
    edge = record(store, version).embedded
    assert edge is not None
    return edge.size


def _anchor_keys(store: Store, version: int) -> list[str]:
    for info in store.access.backend.list(keys.edges_of(version)):
        edge = store.edge(info.key).edge
        if edge.is_anchor:
            return [f"objects/{s.sha256[:2]}/{s.sha256}" for s in edge.shards]
    raise AssertionError(version)


def test_without_a_policy_there_are_none(store: Store) -> None:
    publish_many(store, 20, anchors=None)
    assert anchors(store) == [1]


@pytest.mark.parametrize("threads", [0, 3])
def test_late_joiners_start_from_the_newest_anchor(store: Store, threads: int) -> None:
    policy = AnyOf((MaxChain(3), CatchUpBytes(100)))
    states = publish_many(store, 9, anchors=policy, workers=Workers(threads))
    newest = anchors(store)[-1]
    assert newest > 3
    for version in range(1, newest):
        store.access.backend.delete(shard_keys(store, version))
    assert read(store) == all_bits(states[-1])
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    assert all_bits(target) == all_bits(states[-1])


@pytest.mark.req("DS-PLAN-1", "DS-READ-6")
def test_an_older_anchor_serves_where_the_newest_is_lost(store: Store) -> None:
    states = publish_many(store, 10, anchors=MaxChain(3))
    assert anchors(store) == [1, 4, 7, 10]
    store.access.backend.delete([*shard_keys(store, 1), *shard_keys(store, 2)])
    store.access.backend.delete([*_anchor_keys(store, 10), *_anchor_keys(store, 7)])
    assert read(store) == all_bits(states[-1])
    store.access.backend.delete(shard_keys(store, 5))
    with pytest.raises(NoPath):
        read(store)


@pytest.mark.req("DS-EDGE-4", "DS-ANCHOR-1")
def test_an_anchor_record_that_lies_is_passed_over(store: Store) -> None:
    states = publish_many(store, 4)
    edge = record(store, 1).embedded
    assert edge is not None
    schema = record(store, 1).schema
    assert schema is not None
    lie = replace(edge, target=3)
    store.add_edge(EdgeRecord(store=store.identity.store, schema=schema.sha256, edge=lie))
    store.access.backend.put(keys.edge(4, "none", "0" * 64), b"garbage")
    assert read(store, 3) == all_bits(states[2])
    assert read(store) == all_bits(states[3])


@pytest.mark.req("DS-ANCHOR-1")
def test_a_wrong_anchor_is_refused_by_its_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_many(store, 4)
    newest = store.log.newest()
    assert newest is not None
    lying = replace(newest, record=replace(record(store, 4), state=1))
    with pytest.raises((BadEdge, Diverged, NoPath)):
        add_anchor(store, lying, workers=INLINE)
    real = dense
    monkeypatch.setattr(maintenance, "dense", lambda one, lanes: real(one, lanes ^ lanes.dtype.type(1)))
    with pytest.raises(BadEdge, match="not the version's"):
        add_anchor(store, newest, workers=INLINE)
    assert anchors(store) == [1]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_failing_anchor_hurts_nobody(threads: int) -> None:
    inner = MemoryBackend()
    new_store(inner)
    plan = failing("put", AuthError("no edges for you"), key="edges/")
    store = reopened(new_or(inner), FaultBackend(inner, plan))
    states = publish_many(store, 8, anchors=MaxChain(2), workers=Workers(threads))
    assert anchors(store) == []
    assert store.find().version == 8
    assert read(store) == all_bits(states[-1])


def new_or(backend: MemoryBackend) -> Store:
    return Store.open(backend)


def test_a_failed_anchor_is_tried_again_at_the_next_version() -> None:
    inner = MemoryBackend()
    new_store(inner)
    plan = failing("put", AuthError("not now"), key=keys.edges_of(3), times=1)
    store = reopened(new_or(inner), FaultBackend(inner, plan))
    publish_many(store, 5, anchors=MaxChain(2))
    assert anchors(store) == [1, 4]


def test_a_lost_delta_means_no_anchor_and_no_harm(store: Store) -> None:
    states = [small()]
    with producer(store, anchors=MaxChain(3)) as out:
        for step in range(6):
            states.append(stepped(states[-1], step))
            out.publish(states[-1], step=step)
            if step == 1:
                store.access.backend.delete(shard_keys(store, 2))
    assert anchors(store) == [1]
    assert store.find().version == 6


def test_anchors_of_a_compactor_are_picked_up(store: Store) -> None:
    state = {"w": torch.zeros(64)}
    with producer(store, anchors=MaxChain(REFRESH)) as out:
        for step in range(REFRESH + 20):
            if step == REFRESH - 10:
                newest = store.log.newest()
                assert newest is not None
                add_anchor(reopened(store), newest, workers=INLINE)
            out.publish(state, step=step)
            state["w"][step % 64] += 1
    assert anchors(store) == [1, REFRESH - 10]
    assert record(store, REFRESH).last_anchor == 1
    assert record(store, REFRESH + 1).last_anchor == REFRESH - 10


@pytest.mark.req("DS-ANCHOR-3")
def test_a_false_anchor_of_somebody_else_is_not_believed(store: Store) -> None:
    state = {"w": torch.zeros(64)}
    with producer(store) as out:
        for step in range(REFRESH + 2):
            out.publish(state, step=step)
            if step == REFRESH - 10:
                edge, schema = record(store, 1).embedded, record(store, 1).schema
                assert edge is not None
                assert schema is not None
                lie = replace(edge, target=REFRESH - 10)
                store.add_edge(EdgeRecord(store=store.identity.store, schema=schema.sha256, edge=lie))
            state["w"][step % 64] += 1
    assert record(store, REFRESH + 2).last_anchor == 1
    assert read(store)["w"] != all_bits({"w": torch.zeros(64)})["w"]


def test_a_new_term_takes_stock_of_the_log(store: Store) -> None:
    states = publish_many(store, 4, anchors=MaxChain(6))
    with producer(store, anchors=MaxChain(6)) as out:
        for step in range(4, 8):
            states.append(stepped(states[-1], step))
            out.publish(states[-1], step=step)
    assert anchors(store) == [1, 8]
    assert read(store) == all_bits(states[-1])


def test_publishing_goes_on_while_an_anchor_is_made() -> None:
    gate = threading.Event()

    def plan(operation: object) -> None:
        if threading.current_thread().name == "deltastore-anchor":
            gate.wait(10)

    inner = MemoryBackend()
    new_store(inner)
    store = reopened(new_or(inner), FaultBackend(inner, plan))
    out = producer(store, anchors=MaxChain(2), workers=Workers(2))
    for step in range(7):
        out.publish(small(step), step=step).result(10)
    assert anchors(store) == [1]
    gate.set()
    out.close()
    assert anchors(store) == [1, 3]
    assert read(store) == all_bits(small(6))
