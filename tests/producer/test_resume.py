"""A producer that goes on behind a log that is there already."""

from __future__ import annotations

import pytest
import torch
from support import (
    NO_RETRY,
    all_bits,
    blank,
    consumer,
    failing,
    new_store,
    producer,
    read,
    record,
    shard_keys,
    small,
    stepped,
)

from deltastore import Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import AuthError, NoPath, Unavailable
from deltastore.testing import FaultBackend


def grown(store: Store, versions: int = 3) -> list[dict[str, torch.Tensor]]:
    """Publishes so many steps, from 0 on, and returns their states."""
    states = [small()]
    for step in range(1, versions):
        states.append(stepped(states[-1], step))
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def test_the_same_weights_need_no_rebuild(store: Store) -> None:
    states = grown(store)
    backend = FaultBackend(store.access.backend)
    watched = Store.open(backend)
    with producer(watched) as out:
        info = out.publish(states[-1], step=2).result()
    schema = record(store, 1).schema
    assert schema is not None
    fetched = {op.key for op in backend.operations if op.name == "get" and op.key.startswith("objects/")}
    assert fetched == {f"objects/{schema.sha256[:2]}/{schema.sha256}"}
    assert info.stats is not None
    assert (info.version, info.stats.changed, info.resumed_from) == (5, 0, None)
    assert read(store) == all_bits(states[-1])


def test_other_weights_go_on_from_the_store(store: Store) -> None:
    states = grown(store)
    after = stepped(states[-1], 9)
    with producer(store) as out:
        info = out.publish(after, step=3).result()
    assert info.resumed_from is None
    edge = record(store, 5).embedded
    assert edge is not None
    assert edge.base == 4
    assert read(store) == all_bits(after)


def test_an_older_checkpoint_says_which_version_it_was(store: Store) -> None:
    states = grown(store, 5)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    with producer(store) as out:
        info = out.publish(states[2], step=2).result()
        assert info.resumed_from == 3
        assert record(store, info.version).resumed_from == 3
        assert all_bits(target) == all_bits(states[4])
        reader.update()
        assert all_bits(target) == all_bits(states[2])
        other = stepped(states[2], 99)
        assert out.publish(other, step=3).result().resumed_from is None
    reader.update()
    assert all_bits(target) == all_bits(other)
    assert store.find(step=2).version == 7
    assert store.find(step=3).version == 8
    assert store.find(step=4).version == 5


def test_weights_of_another_step_are_not_taken_for_it(store: Store) -> None:
    states = grown(store, 4)
    with producer(store) as out:
        assert out.publish(states[1], step=2).result().resumed_from is None


def test_a_head_that_cannot_be_rebuilt_is_followed_by_an_anchor(store: Store) -> None:
    states = grown(store)
    store.access.backend.delete(shard_keys(store, 2))
    after = stepped(states[-1], 9)
    target = blank(after)
    with producer(store) as out:
        info = out.publish(after, step=3).result()
        edge = record(store, info.version).embedded
        assert edge is not None
        assert edge.is_anchor
        consumer(store, target).update()
        assert all_bits(target) == all_bits(after)
        out.publish(stepped(after, 10), step=4)
    assert read(store) == all_bits(stepped(after, 10))


def test_a_part_cannot_replace_a_head_that_is_lost(store: Store) -> None:
    states = grown(store)
    store.access.backend.delete(shard_keys(store, 2))
    with producer(store) as out:
        with pytest.raises(NoPath):
            out.publish({"norm": states[0]["norm"]}, step=3, partial=True)
        out.publish(states[0], step=3)
    assert read(store) == all_bits(states[0])


def test_a_store_that_is_down_at_the_first_publish_can_be_tried_again() -> None:
    store = new_store(MemoryBackend())
    states = grown(store)
    plan = failing("get", Unavailable("a moment"), key="objects/", times=1)
    with producer(Store.open(FaultBackend(store.access.backend, plan), retry=NO_RETRY)) as out:
        with pytest.raises(Unavailable):
            out.publish(stepped(states[-1], 5), step=5)
        out.publish(stepped(states[-1], 5), step=5)
    assert read(store) == all_bits(stepped(states[-1], 5))
    assert store.find().version == 5


def test_steps_may_fall_from_one_term_to_the_next(store: Store) -> None:
    states = grown(store, 4)
    with producer(store) as out:
        out.publish(states[0], step=0)
        out.publish(states[1], step=1)
    assert [store.find(step=step).version for step in (0, 1, 2, 3)] == [6, 7, 3, 4]


def test_several_terms_without_data_are_passed_over(store: Store) -> None:
    states = grown(store)
    for _ in range(3):
        plan = failing("put", AuthError("no"), key="objects/")
        broken = producer(Store.open(FaultBackend(store.access.backend, plan)))
        broken.publish(stepped(states[-1], 1), step=5)
    assert store.find().version == 6
    assert read(store) == all_bits(states[-1])
    with producer(store) as out:
        out.publish(stepped(states[-1], 2), step=6)
    assert read(store) == all_bits(stepped(states[-1], 2))
    target = blank(states[0])
    reader = consumer(store, target)
    assert reader.update() is not None
    assert all_bits(target) == all_bits(stepped(states[-1], 2))
