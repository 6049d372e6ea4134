"""Edges that are damaged, missing or lie: weights stay as they are, or another way is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import (
    HASTY,
    NO_RETRY,
    State,
    all_bits,
    blank,
    consumer,
    new_store,
    producer,
    record,
    reopened,
    shard_keys,
    small,
    stepped,
)

from deltastore import Consumer, Store, codec
from deltastore.backends.memory import MemoryBackend
from deltastore.codec.types import Encoded
from deltastore.errors import IntegrityError, NoPath, Unavailable
from deltastore.maintenance.anchors import add_anchor
from deltastore.parallel import INLINE
from deltastore.protocol import keys
from deltastore.protocol.digest import MASK
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.wire import sha256
from deltastore.testing import Fault, FaultBackend, flip_bit, truncate


def grown(store: Store, count: int = 4) -> list[State]:
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def anchored(store: Store, version: int) -> None:
    add_anchor(store, store.log.require(version), workers=INLINE)


def damage(store: Store, key: str, alter: Callable[[bytes], bytes] | None) -> None:
    backend = store.access.backend
    if alter is None:
        backend.delete([key])
    else:
        backend.put(key, alter(backend.get(key, max_size=1 << 30)))


DAMAGE: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "empty": lambda _: b"",
    "first bit": flip_bit(0),
    "a bit in the middle": lambda data: flip_bit(len(data) * 4)(data),
    "last bit": lambda data: flip_bit(len(data) * 8 - 1)(data),
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: truncate(len(data) // 2)(data),
    "longer": lambda data: data + b"\0",
    "another object": lambda data: bytes(len(data)),
}


@pytest.mark.req("DS-READ-6", "DS-OBJ-2")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_delta_is_routed_around_or_reported(store: Store, kind: str) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(2).commit()
    damage(store, shard_keys(store, 3)[0], DAMAGE[kind])
    for _ in range(2):
        with pytest.raises(NoPath):
            reader.update()
        assert (reader.version, all_bits(target)) == (2, all_bits(states[1]))
        reader.verify()
    with pytest.raises(NoPath):
        consumer(store, blank(states[0])).update()
    with producer(store) as out:
        out.reset(states[3], step=9)
    reader.update()
    assert all_bits(target) == all_bits(states[3])


@pytest.mark.req("DS-READ-6")
@pytest.mark.parametrize("kind", DAMAGE)
def test_an_anchor_is_the_way_around(store: Store, kind: str) -> None:
    states = grown(store)
    anchored(store, 3)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(2).commit()
    damage(store, shard_keys(store, 3)[0], DAMAGE[kind])
    staged = reader.stage()
    assert all_bits(target) == all_bits(states[1])
    staged.commit()
    assert all_bits(target) == all_bits(states[3])


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_anchor_is_left_for_deltas(store: Store, kind: str) -> None:
    states = grown(store)
    anchored(store, 4)
    edge = next(store.edge(i.key).edge for i in store.access.backend.list(keys.edges_of(4)))
    damage(store, f"objects/{edge.shards[0].sha256[:2]}/{edge.shards[0].sha256}", DAMAGE[kind])
    target = blank(states[0])
    consumer(store, target).update()
    assert all_bits(target) == all_bits(states[3])


@pytest.mark.req("DS-READ-6")
def test_an_edge_that_failed_is_not_tried_again_from_the_same_state() -> None:
    inner = MemoryBackend()
    states = grown(new_store(inner))
    bad = shard_keys(reopened(Store.open(inner)), 3)[0]
    asked = []

    def plan(operation: Any) -> Fault | None:
        if operation.key == bad:
            asked.append(operation)
            return Fault(alter=flip_bit(99))
        return None

    store = Store.open(FaultBackend(inner, plan), retry=NO_RETRY, runtime=HASTY)
    anchored(Store.open(inner), 3)
    target = blank(states[0])
    reader = Consumer(store, target, workers=INLINE)
    reader.stage(2).commit()
    for _ in range(3):
        reader.stage().discard()
    assert len(asked) == 1


def test_an_outage_is_no_bad_edge() -> None:
    inner = MemoryBackend()
    states = grown(new_store(inner))
    down = [True]

    def plan(operation: Any) -> Fault | None:
        stop = down[0] and operation.key.startswith("objects/")
        return Fault(before=Unavailable("network")) if stop else None

    target = blank(states[0])
    store = Store.open(FaultBackend(inner, plan), retry=NO_RETRY, runtime=HASTY)
    reader = Consumer(store, target, workers=INLINE)
    with pytest.raises(Unavailable):
        reader.update()
    down[0] = False
    reader.update()
    assert all_bits(target) == all_bits(states[3])


# --- The bits that are held --------------------------------------------------------------------------


def one_word_changes(store: Store) -> tuple[State, State, State]:
    """Three versions; the second and third change element 100 of `w` only. Returns the states."""
    first = {"w": torch.arange(1000, dtype=torch.float32), "x": torch.zeros(50)}
    states = [first]
    with producer(store) as out:
        out.publish(first, step=0)
        for step in (1, 2):
            states.append({"w": states[-1]["w"].clone(), "x": first["x"]})
            states[-1]["w"][100] += 1
            out.publish(states[-1], step=step)
    return states[0], states[1], states[2]


@pytest.mark.req("DS-READ-4")
@pytest.mark.parametrize("at", [100, 101])
@pytest.mark.parametrize("anchor", [True, False])
def test_a_wrong_bit_in_a_word_that_changes_is_seen(store: Store, at: int, anchor: bool) -> None:
    states = one_word_changes(store)
    if anchor:
        anchored(store, 2)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    target["w"].view(torch.int32)[at] ^= 8
    altered = all_bits(target)
    if anchor:
        reader.stage(2).commit()
        assert all_bits(target) == all_bits(states[1])
        return
    # The anchor of version 1 leads there too.
    staged = reader.stage(2)
    assert all_bits(target) == altered
    staged.commit()
    assert all_bits(target) == all_bits(states[1])
    reader.verify()


@pytest.mark.req("DS-READ-4")
def test_a_wrong_bit_and_no_anchor_leaves_everything_as_it_is(store: Store) -> None:
    states = one_word_changes(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    store.access.backend.delete(shard_keys(store, 1))
    target["w"].view(torch.int32)[100] ^= 8
    altered = all_bits(target)
    with pytest.raises(NoPath):
        reader.stage(2)
    assert all_bits(target) == altered
    assert reader.version == 1


@pytest.mark.req("DS-READ-10")
def test_a_wrong_bit_elsewhere_is_seen_by_a_full_check_only(store: Store) -> None:
    from deltastore.errors import Poisoned

    states = one_word_changes(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    target["x"].view(torch.int32)[7] ^= 8
    reader.stage(2).commit()
    with pytest.raises(Poisoned):
        reader.verify()
    reader.update()
    assert all_bits(target) == all_bits(states[2])
    reader.verify()


# --- Edges that lie ----------------------------------------------------------------------------------


def rewrite_log(store: Store, version: int, **changes: Any) -> None:
    """Replaces the newest record, as a faulty writer would have committed it."""
    forged = replace(record(store, version), **changes)
    store.access.backend.put(keys.version(version), forged.to_bytes())


@pytest.mark.req("DS-READ-5", "DS-READ-4")
def test_a_state_that_the_shards_do_not_lead_to(store: Store) -> None:
    states = grown(store)
    edge = record(store, 4).embedded
    assert edge is not None
    first, *rest = edge.shards
    wrong = replace(first, state_delta=(first.state_delta + 1) & MASK)
    state = (edge.state + 1) & MASK
    rewrite_log(store, 4, state=state, edges=(replace(edge, state=state, shards=(wrong, *rest)),))
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(3).commit()
    with pytest.raises(NoPath):
        reader.update()
    assert (reader.version, all_bits(target)) == (3, all_bits(states[2]))


@pytest.mark.req("DS-CHAIN-6", "DS-CHAIN-7")
def test_an_embedded_edge_from_another_state_stops_the_reader(store: Store) -> None:
    from deltastore.errors import Diverged

    states = grown(store)
    edge = record(store, 4).embedded
    assert edge is not None
    assert edge.base_state is not None
    moved = replace(edge, base_state=(edge.base_state + 5) & MASK, state=(edge.state + 5) & MASK)
    rewrite_log(store, 4, state=moved.state, edges=(moved,))
    target = blank(states[0])
    reader = consumer(store, target)
    by_step = consumer(store, blank(states[0]))
    by_step.stage(3).commit()
    with pytest.raises(Diverged):
        by_step.update()
    with pytest.raises(NoPath):
        reader.update()
    assert all_bits(target) == all_bits(blank(states[0]))


@pytest.mark.parametrize("what", ["a tensor twice", "a tensor not at all", "another order"])
@pytest.mark.req("DS-DESC-4", "DS-DESC-3")
def test_shards_that_do_not_cover_the_schema(store: Store, what: str) -> None:
    from deltastore.protocol.descriptors import Run

    states = grown(store)
    edge = record(store, 4).embedded
    assert edge is not None
    slices = {
        "a tensor twice": (Run(0, 3), Run(2, 1)),
        "a tensor not at all": (Run(0, 2),),
        "another order": (Run(2, 1), Run(0, 2)),
    }[what]
    rewrite_log(store, 4, edges=(replace(edge, shards=(replace(edge.shards[0], slices=slices),)),))
    reader = consumer(store, blank(states[0]))
    reader.stage(3).commit()
    with pytest.raises(NoPath):
        reader.update()
    assert reader.version == 3


def wrong_shard(store: Store, version: int, alter: Callable[[Encoded], bytes]) -> None:
    """A shard with another content under its own right name, in the newest record."""
    edge = record(store, version).embedded
    assert edge is not None
    old = edge.shards[0]
    data = store.get_object(old.sha256, old.size)
    new = alter(Encoded(data, old.raw_size, old.state_delta, 0))
    store.put_object(new)
    import xxhash

    shard = replace(old, sha256=sha256(new), size=len(new), xxh3=xxhash.xxh3_64_intdigest(new))
    rewrite_log(store, version, edges=(replace(edge, shards=(shard,)),))


@pytest.mark.req("DS-READ-4", "DS-SHARD-1")
@pytest.mark.parametrize("bit", [3, 80, 1001, -9, -60, -1200])
def test_a_shard_that_was_spoiled_before_it_was_hashed(store: Store, bit: int) -> None:
    states = grown(store)
    wrong_shard(store, 4, lambda encoded: flip_bit(bit % (len(encoded.data) * 8))(encoded.data))
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(3).commit()
    with pytest.raises(NoPath):
        reader.update()
    assert (reader.version, all_bits(target)) == (3, all_bits(states[2]))


@pytest.mark.req("DS-CODEC-1")
def test_unknown_codecs_do_not_exist(store: Store) -> None:
    states = grown(store)
    anchored(store, 4)
    edge = record(store, 4).embedded
    assert edge is not None
    for name in ("lz77", "plain"):
        rewrite_log(store, 4, edges=(replace(edge, shards=(replace(edge.shards[0], codec=name),)),))
        target = blank(states[0])
        reader = consumer(store, target)
        reader.stage(3).commit()
        reader.update()
        assert all_bits(target) == all_bits(states[3])


@pytest.mark.req("DS-FEAT-3", "DS-EDGE-4")
def test_edge_records_that_are_wrong_do_not_exist(store: Store) -> None:
    states = grown(store)
    anchored(store, 4)
    good = next(store.edge(i.key) for i in store.access.backend.list(keys.edges_of(4)))
    backend = store.access.backend
    data = good.to_bytes()
    for other in (
        replace(good, store="0" * 32),
        replace(good, schema="0" * 64),
        replace(good, edge=replace(good.edge, target=3)),
        EdgeRecord(store=good.store, schema=good.schema, edge=Edge("none", None, 4, 0, ())),
    ):
        backend.put(keys.edge(4, "none", sha256(other.to_bytes())), other.to_bytes())
    backend.put(keys.edge(4, "none", "1" * 64), data)
    backend.put(keys.edge(4, 2, sha256(data)), data)
    backend.put(keys.edge(4, "none", sha256(b"")), b"")
    backend.delete([keys.edge(4, "none", sha256(data))])
    target = blank(states[0])
    consumer(store, target).update()
    assert all_bits(target) == all_bits(states[3])


@pytest.mark.req("DS-PLAN-1")
def test_a_damaged_record_on_the_way_only_means_a_detour(store: Store) -> None:
    states = grown(store, 6)
    anchored(store, 5)
    store.access.backend.put(keys.version(3), b"garbage")
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    assert all_bits(target) == all_bits(states[5])
    with pytest.raises(IntegrityError):
        reader.store.log.slot(3)
    with pytest.raises(IntegrityError):
        consumer(store, blank(states[0])).stage(3)


@pytest.mark.parametrize("codec_id", ["ulp", "ctx", "abs", "coo"])
def test_a_delta_that_was_made_for_another_base_is_refused(store: Store, codec_id: str) -> None:
    """A record whose shards belong to another step, as after a mix-up of uploads."""
    states = [small(), stepped(small(), 1), stepped(small(), 2)]
    with producer(store, codec=codec_id) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    third, second = record(store, 3).embedded, record(store, 2).embedded
    assert third is not None
    assert second is not None
    mixed_up = [
        replace(s, state_delta=t.state_delta) for s, t in zip(second.shards, third.shards, strict=True)
    ]
    rewrite_log(store, 3, edges=(replace(third, shards=tuple(mixed_up)),))
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(2).commit()
    with pytest.raises(NoPath):
        reader.update()
    assert all_bits(target) == all_bits(states[1])
    assert set(codec.DELTA) == {"ulp", "ctx", "abs", "coo"}
