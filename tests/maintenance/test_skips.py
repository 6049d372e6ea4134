"""Skips: made from the store alone, taken where they are cheaper, refused where they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import (
    HASTY,
    NO_RETRY,
    State,
    all_bits,
    blank,
    consumer,
    mixed,
    producer,
    record,
    reopened,
    shard_keys,
    small,
    stepped,
)

from deltastore import Consumer, Store
from deltastore import codec as codecs
from deltastore.errors import (
    BadEdge,
    BadShard,
    Collected,
    NonFinite,
    NoPath,
    NoSuchVersion,
    SchemaMismatch,
    Unsupported,
    UsageError,
)
from deltastore.maintenance import skips
from deltastore.maintenance.anchors import add_anchor
from deltastore.maintenance.skips import UnfitEdge, add_skip
from deltastore.parallel import INLINE, Workers
from deltastore.protocol import keys
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.records import Kind, Slot, Tombstone
from deltastore.replay import FailedEdge, plan
from deltastore.shards import make_merged
from deltastore.testing import FaultBackend

BIG = 40_000
"""Elements of a tensor whose deltas are more bytes than the headers around them."""


def grown(store: Store, count: int, *, state: State | None = None, **options: object) -> list[State]:
    """Publishes so many versions, each a small step from the one before; the first is version 1."""
    states = [state or {**small(), "big": torch.zeros(BIG).bfloat16()}]
    for step in range(1, count):
        states.append(stepped(states[-1], step, share=0.02))
    with producer(store, **options) as out:
        for step, one in enumerate(states):
            out.publish(one, step=step)
    return states


def slot(store: Store, version: int) -> Slot:
    return store.log.require(version)


def skip(store: Store, base: int, target: int) -> Edge:
    return add_skip(store, slot(store, target), base, workers=INLINE)


def side_edges(store: Store) -> list[tuple[int, object]]:
    """Targets and bases of the edges that were added, but for anchors."""
    found = [keys.parse_edge(info.key) for info in store.access.backend.list("edges/")]
    return [(target, base) for target, base, _ in found if base != "none"]


def taken(store: Store, base: int, target: int) -> list[tuple[object, int]]:
    chosen = plan(store, slot(store, target), held={base})
    return [(edge.base, edge.target) for edge in chosen.edges]


def weights_at(store: Store, version: int, state: State) -> tuple[Consumer, State]:
    """A server that holds a version."""
    target = blank(state)
    reader = consumer(store, target)
    reader.stage(version).commit()
    return reader, target


# --- What they are, and that they are taken ----------------------------------------------------------


@pytest.mark.req("DS-SKIP-1", "DS-PLAN-1")
def test_a_server_takes_a_skip_where_it_is_cheaper(tmp_path: Path) -> None:
    store = Store.create(f"file://{tmp_path}/store", retry=NO_RETRY, runtime=HASTY)
    states = grown(store, 9)
    fetched = {}
    for way in ("steps", "skip"):
        backend = FaultBackend(store.access.backend)
        target = blank(states[0])
        reader = Consumer(reopened(store, backend), target, workers=INLINE)
        reader.stage(1).commit()
        assert all_bits(target) == all_bits(states[0])
        before = len(backend.operations)
        if way == "skip":
            skip(store, 1, 9)
        reader.update()
        assert all_bits(target) == all_bits(states[8])
        gets = [op.key for op in backend.operations[before:] if op.name == "get"]
        objects = [key for key in gets if key.startswith("objects/")]
        fetched[way] = sum(store.access.backend.head(key).size for key in objects)
    (edge,) = plan(store, slot(store, 9), held={1}).edges
    assert (edge.base, edge.target) == (1, 9)
    assert fetched["skip"] == edge.size
    assert fetched["skip"] < 0.8 * fetched["steps"]


@pytest.mark.req("DS-SKIP-1", "DS-SKIP-2", "DS-SKIP-4", "DS-EDGE-3")
def test_a_skip_is_the_delta_of_its_ends(store: Store) -> None:
    states = grown(store, 6, state=mixed(), shard_bytes=1500)
    added = skip(store, 1, 6)
    first, last = record(store, 1), record(store, 6)
    assert (added.base, added.base_state, added.target, added.state) == (1, first.state, 6, last.state)
    newest = last.embedded
    assert newest is not None
    assert len(added.shards) > 3
    assert [shard.slices for shard in added.shards] == [shard.slices for shard in newest.shards]
    assert side_edges(store) == [(6, 1)]
    other = Store.create(f"memory://{id(store)}", retry=NO_RETRY, runtime=HASTY)
    with producer(other, shard_bytes=1500) as out:
        out.publish(states[0], step=0)
        out.publish(states[5], step=1)
    direct = record(other, 2).embedded
    assert direct is not None
    for one, two in zip(added.shards, direct.shards, strict=True):
        assert (one.raw_size, one.state_delta) == (two.raw_size, two.state_delta)
        ours, theirs = store.get_object(one.sha256, one.size), other.get_object(two.sha256, two.size)
        assert np.count_nonzero(np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)) <= 32
    _, target = weights_at(store, 6, states[0])
    assert all_bits(target) == all_bits(states[5])


@pytest.mark.parametrize("threads", [0, 3])
def test_skips_are_made_of_skips(store: Store, threads: int) -> None:
    states = grown(store, 9)
    workers = Workers(threads)
    for base in (1, 3, 5, 7):
        add_skip(store, slot(store, base + 2), base, workers=workers)
    for version in range(2, 10):
        store.access.backend.delete(shard_keys(store, version))
    add_skip(store, slot(store, 9), 1, workers=workers)
    assert sorted(side_edges(store)) == [(3, 1), (5, 3), (7, 5), (9, 1), (9, 7)]
    reader, target = weights_at(store, 1, states[0])
    assert taken(store, 1, 9) == [(1, 9)]
    reader.update()
    assert all_bits(target) == all_bits(states[8])


def test_skips_below_the_last_anchor_are_made_use_of(store: Store) -> None:
    states = grown(store, 4)
    skip(store, 1, 3)
    add_anchor(store, slot(store, 4), workers=INLINE)
    with producer(store) as out:
        out.publish(states[0], step=9)
    assert record(store, 6).last_anchor == 4
    store.access.backend.delete(shard_keys(store, 2))
    added = skip(store, 1, 6)
    assert added.state == added.base_state == record(store, 1).state


def test_a_skip_that_is_there_is_not_made_again(store: Store) -> None:
    grown(store, 4)
    once = skip(store, 1, 4)
    objects = len(list(store.access.backend.list("objects/")))
    assert skip(store, 1, 4) == once
    assert side_edges(store) == [(4, 1)]
    assert len(list(store.access.backend.list("objects/"))) == objects


@pytest.mark.req("DS-SKIP-1")
def test_claims_are_passed_over(store: Store) -> None:
    states = grown(store, 2)
    with producer(store) as out:
        out.publish(stepped(states[1], 7), step=7)
    assert record(store, 3).edges == ()
    skip(store, 1, 4)
    reader, target = weights_at(store, 1, states[0])
    reader.update()
    assert all_bits(target) == all_bits(stepped(states[1], 7))


def test_a_skip_may_begin_at_the_external_base(store: Store, tmp_path: Path, weights: State) -> None:
    save_file(weights, tmp_path / "model.safetensors")
    states = [stepped(weights, 1), stepped(weights, 2), stepped(weights, 3)]
    with producer(store, base=tmp_path) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    edge = add_skip(store, slot(store, 3), "external", workers=INLINE)
    assert (edge.base, edge.base_state) == ("external", record(store, 0).state)
    for version in (1, 2, 3):
        store.access.backend.delete(shard_keys(store, version))
    target = blank(weights)
    consumer(store, target, base=tmp_path).update()
    assert all_bits(target) == all_bits(states[-1])


def test_steps_that_lead_back_make_a_skip_that_changes_nothing(store: Store) -> None:
    states = [small(), stepped(small(), 1), small()]
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    edge = skip(store, 1, 3)
    assert edge.base_state == edge.state
    assert sum(shard.state_delta for shard in edge.shards) % 2**64 == 0
    reader, target = weights_at(store, 1, states[0])
    reader.update()
    assert all_bits(target) == all_bits(states[0])


# --- What cannot be skipped --------------------------------------------------------------------------


def nothing_added(store: Store) -> bool:
    return side_edges(store) == []


@pytest.mark.parametrize(("base", "target"), [(1, 2), (2, 2), (3, 2), (0, 1)])
def test_there_must_be_something_in_between(store: Store, base: int, target: int) -> None:
    grown(store, 3)
    with pytest.raises(UsageError, match="no version between"):
        skip(store, base, target)


def test_claims_alone_need_no_skip(store: Store) -> None:
    states = grown(store, 1)
    for _ in range(3):
        with producer(store) as out, pytest.raises(NonFinite):
            out.publish({**states[0], "norm": states[0]["norm"] * torch.nan}, step=1)
    assert [record(store, version).kind for version in (2, 3, 4)] == [Kind.CLAIM] * 3
    with pytest.raises(UsageError, match="nothing changes"):
        skip(store, 1, 4)


def test_a_base_without_weights_is_refused(store: Store) -> None:
    grown(store, 3)
    with pytest.raises(NoSuchVersion):
        skip(store, 0, 3)
    with pytest.raises(NoSuchVersion):
        add_skip(store, slot(store, 3), "external", workers=INLINE)
    with pytest.raises(NoSuchVersion):
        skip(store, -5, 3)


@pytest.mark.req("DS-EDGE-5")
def test_no_skip_crosses_a_change_of_the_schema(store: Store) -> None:
    grown(store, 2)
    with producer(store) as out:
        out.publish({"other": torch.zeros(9)}, step=5, new_schema=True)
        out.publish({"other": torch.ones(9)}, step=6)
    with pytest.raises(SchemaMismatch):
        skip(store, 1, 5)
    assert nothing_added(store)


@pytest.mark.req("DS-SKIP-1")
@pytest.mark.parametrize("codec", sorted(codecs.DELTA.keys() - {"ulp"}))
def test_a_step_of_another_codec_is_refused_by_name(store: Store, codec: str) -> None:
    states = grown(store, 3)
    with producer(store, codec=codec) as out:
        out.publish(stepped(states[-1], 8), step=8)
        out.publish(stepped(states[-1], 9), step=9)
    with pytest.raises(Unsupported, match=f"'{codec}'") as caught:
        skip(store, 2, 5)
    assert isinstance(caught.value, UnfitEdge)
    assert nothing_added(store)


@pytest.mark.req("DS-SKIP-4")
def test_a_step_that_is_cut_otherwise_is_refused(store: Store) -> None:
    states = grown(store, 3)
    with producer(store, shard_bytes=2000) as out:
        out.publish(stepped(states[-1], 8), step=8)
    with pytest.raises(UnfitEdge, match="cut into other shards"):
        skip(store, 1, 5)
    assert nothing_added(store)


def test_no_skip_leads_over_a_collected_version(store: Store) -> None:
    grown(store, 5)
    for version, error in ((3, NoPath), (1, Collected), (5, Collected)):
        whole = slot(store, version)
        grave = Tombstone.of(record(store, version), whole.sha256).to_bytes()
        store.access.backend.put(keys.version(version), grave)
        with pytest.raises(error):
            skip(store, 1, 5)
        store.access.backend.put(keys.version(version), whole.data)
    assert nothing_added(store)


def test_no_skip_leads_over_a_reset(store: Store) -> None:
    states = grown(store, 2)
    with producer(store) as out:
        out.reset(states[0], step=5)
        out.publish(states[1], step=6)
    with pytest.raises(NoPath, match="no edges lead from version 1 to 5"):
        skip(store, 1, 5)
    assert nothing_added(store)


# --- Damage ------------------------------------------------------------------------------------------


@pytest.mark.req("DS-ANCHOR-1")
@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_damaged_step_makes_no_skip(store: Store, how: str) -> None:
    grown(store, 5)
    (key,) = shard_keys(store, 3)
    data = bytearray(store.access.backend.get(key, max_size=1 << 30))
    data[-1] ^= 1
    store.access.backend.delete([key]) if how == "gone" else store.access.backend.put(key, bytes(data))
    with pytest.raises(FailedEdge, match="2 -> 3"):
        skip(store, 1, 5)
    assert nothing_added(store)


def test_a_damaged_skip_is_gone_round(store: Store) -> None:
    states = grown(store, 6)
    inner = skip(store, 2, 5)
    store.access.backend.delete([f"objects/{s.sha256[:2]}/{s.sha256}" for s in inner.shards])
    skip(store, 1, 6)
    reader, target = weights_at(store, 1, states[0])
    reader.update()
    assert all_bits(target) == all_bits(states[5])


def forge(store: Store, edge: Edge, data: bytes, **descriptor: object) -> Edge:
    """An edge of one shard with other content under a name that fits it."""
    (shard,) = edge.shards
    named = store.put_object(data)
    forged = replace(shard, sha256=named.sha256, size=named.size, **descriptor)  # type: ignore[arg-type]
    return replace(edge, shards=(forged,))


def add(store: Store, edge: Edge) -> None:
    schema = record(store, edge.target).schema
    assert schema is not None
    store.add_edge(EdgeRecord(store=store.identity.store, schema=schema.sha256, edge=edge))


def test_a_hostile_shard_is_found_out_and_gone_round(store: Store) -> None:
    grown(store, 6)
    inner = skip(store, 2, 5)
    for info in store.access.backend.list("edges/"):
        if keys.parse_edge(info.key)[1] == 2:
            store.access.backend.delete([info.key])
    (shard,) = inner.shards
    add(store, forge(store, inner, store.get_object(shard.sha256, shard.size)[:-1]))
    assert (2, 5) in taken(store, 1, 6)
    added = skip(store, 1, 6)
    assert added.state == record(store, 6).state
    for version in (3, 4, 5):
        store.access.backend.delete(shard_keys(store, version))
    with pytest.raises(BadEdge):
        skip(store, 1, 5)


def test_an_edge_from_another_state_is_not_built_upon(store: Store) -> None:
    states = grown(store, 6)
    inner = skip(store, 2, 5)
    delta = (inner.base_state or 0) - 1
    (shard,) = inner.shards
    off = replace(shard, state_delta=(inner.state - delta) % 2**64, size=1)
    add(store, replace(inner, base_state=delta % 2**64, shards=(off,)))
    skip(store, 1, 6)
    reader, target = weights_at(store, 1, states[0])
    reader.update()
    assert all_bits(target) == all_bits(states[5])


def test_a_merge_that_misses_the_state_is_not_added(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(store, 4)
    make = make_merged

    def wrong(*args: object, **options: object) -> object:
        shard = make(*args, **options)  # type: ignore[arg-type]
        descriptor = replace(shard.descriptor, state_delta=shard.descriptor.state_delta ^ 1)
        return replace(shard, descriptor=descriptor)

    monkeypatch.setattr(skips, "make_merged", wrong)
    with pytest.raises(BadEdge, match="would lead to state"):
        skip(store, 1, 4)
    assert nothing_added(store)


def test_shards_that_are_no_successive_deltas_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(store, 4)

    def bad(_schema: object, _slices: object, shards: Sequence[object], **_: object) -> object:
        if len(shards) > 1:
            raise BadShard("cancel out")
        return None

    monkeypatch.setattr(skips, "make_merged", bad)
    with pytest.raises(BadShard, match="cancel out"):
        skip(store, 1, 4)
    assert nothing_added(store)
