"""What `publish` promises: order, copies, numbers, a queue that blocks, an end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    NO_RETRY,
    State,
    all_bits,
    bits,
    mixed,
    new_store,
    producer,
    read,
    record,
    reopened,
    small,
    stepped,
)

from deltastore import MaxChain, Producer, Publication, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import Broken, LimitExceeded, SchemaMismatch, StepWentBack, Unsupported, UsageError
from deltastore.parallel import Workers
from deltastore.protocol.records import Kind
from deltastore.testing import FaultBackend, Operation

CODECS = ["ulp", "abs", "coo"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("threads", [0, 3])
def test_versions_have_the_bits_that_were_published(store: Store, codec: str, threads: int) -> None:
    states = [mixed()]
    with producer(store, codec=codec, workers=Workers(threads)) as out:
        out.publish(states[0], step=0)
        for step in range(1, 6):
            states.append(stepped(states[-1], step, share=(0.001, 0.05, 0.4, 1, 0)[step - 1]))
            out.publish(states[-1], step=step)
    for step, state in enumerate(states):
        assert read(store, step + 1) == all_bits(state)


@pytest.mark.req("DS-CLAIM-1", "DS-CLAIM-2", "DS-CLAIM-4")
def test_a_term_begins_with_a_claim(store: Store) -> None:
    with producer(store) as out:
        assert store.log.newest() is None
        out.publish(small(), step=5)
    first = record(store, 0)
    assert (first.kind, first.term, first.term_start, first.edges) == (Kind.CLAIM, 1, 0, ())
    assert (first.schema, first.state, first.external, first.step) == (None, None, None, None)
    with producer(store) as out:
        out.publish(small(), step=6)
    second, data = record(store, 2), record(store, 1)
    assert (second.kind, second.term, second.term_start, second.edges) == (Kind.CLAIM, 2, 2, ())
    assert (second.schema, second.state, second.files) == (data.schema, data.state, data.files)
    assert (second.last_anchor, second.requires) == (data.last_anchor, data.requires)


def test_a_publication_says_what_became_of_it(store: Store) -> None:
    with producer(store, workers=Workers(2)) as out:
        publication = out.publish(small(), step=7, user={"reward": 0.5, "tags": ["a", b"b"]})
        info = publication.result(timeout=10)
    assert publication.done()
    assert (publication.version, info.version, info.step, info.term) == (1, 1, 7, 1)
    assert info.user == {"reward": 0.5, "tags": ("a", b"b")}
    assert info == store.find(version=1) == store.find(step=7)
    assert info.stats is not None
    assert info.stats.changed == info.stats.total == sum(t.numel() for t in small().values())


def test_a_publish_without_changes_is_a_version(store: Store) -> None:
    with producer(store) as out:
        out.publish(small(), step=0)
        info = out.publish(small(), step=1).result()
    assert info.stats is not None
    assert (info.version, info.stats.changed) == (2, 0)
    assert info.state == store.find(version=1).state
    assert read(store) == all_bits(small())


# --- The caller goes on ------------------------------------------------------------------------------


def scramble(state: State) -> None:
    for tensor in state.values():
        if tensor.dtype.is_floating_point or not tensor.numel():
            tensor.view(torch.uint8).fill_(0x3F)
        else:
            tensor.zero_()


@pytest.mark.parametrize("codec", CODECS)
def test_weights_may_change_as_soon_as_publish_returns(codec: str) -> None:
    gate = threading.Event()
    slow = _slow_backend(gate)
    store = new_store(slow)
    states = []
    with producer(store, codec=codec, workers=Workers(2), depth=4) as out:
        for step in range(4):
            gate.clear()
            state = mixed(step)
            states.append(all_bits(state))
            publication = (out.reset if step == 2 else out.publish)(state, step=step)
            scramble(state)
            gate.set()
            publication.result(10)
    for step, expected in enumerate(states):
        assert read(store, step + 1) == expected


def _slow_backend(gate: threading.Event) -> FaultBackend:
    """Objects are stored only after the gate has opened: encoding can not be ahead of the caller."""

    def plan(operation: Operation) -> None:
        if threading.current_thread().name.startswith("deltastore-shard"):
            gate.wait(5)

    return FaultBackend(MemoryBackend(), plan)


def test_anchors_read_a_base_that_stands_still() -> None:
    """Anchors are encoded from the base in the background: the next publish must wait for that."""
    rng = torch.Generator().manual_seed(0)
    state = {f"w{i}": torch.randn(40_000, generator=rng) for i in range(12)}
    for attempt in range(6):
        store = new_store()
        expected = []
        with producer(store, workers=Workers(3), depth=8, shard_bytes=160_000, check=False) as out:
            for step in range(6):
                (out.reset if step % 3 == 0 else out.publish)(state, step=step)
                expected.append(all_bits(state))
                for tensor in state.values():
                    tensor.add_(1 + attempt)
        for step, bits_ in enumerate(expected):
            assert read(store, step + 1) == bits_


def test_user_and_files_are_copied(store: Store) -> None:
    said: dict[str, Any] = {"deep": {"list": [1]}}
    gate = threading.Event()
    gate.set()

    def plan(_: Operation) -> None:
        gate.wait(5)

    slow = reopened(store, FaultBackend(store.access.backend, plan))
    with producer(slow, workers=Workers(1)) as out:
        out.publish(small(), step=0).result(10)
        gate.clear()
        out.publish(small(1), step=1, user=said)
        said["deep"]["list"].append(2)
        gate.set()
    assert store.find().user == {"deep": {"list": (1,)}}


# --- Arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-1, 2**53, 1.0, True, "1", None, np.float32(1)])
def test_a_step_is_an_integer(store: Store, step: Any) -> None:
    with producer(store) as out:
        with pytest.raises(UsageError, match="step"):
            out.publish(small(), step=step)
        assert store.log.newest() is None


@pytest.mark.parametrize("step", [np.int64(3), torch.tensor(3), 3])
def test_counters_of_numpy_and_torch_are_steps(store: Store, step: Any) -> None:
    with producer(store) as out:
        out.publish(small(), step=step)
        out.publish(small(1), step=step)
    assert store.find(step=3).version == 2
    assert type(store.find().step) is int


def test_steps_do_not_fall(store: Store) -> None:
    with producer(store) as out:
        out.publish(small(), step=5)
        out.publish(small(1), step=5)
        with pytest.raises(StepWentBack, match="step 4 comes after step 5"):
            out.publish(small(2), step=4)
        with pytest.raises(StepWentBack):
            out.reset(small(2), step=4)
        out.publish(small(2), step=6)
    with producer(store) as out:
        out.publish(small(3), step=2)
    assert store.find(step=2).version == 5
    assert read(store) == all_bits(small(3))


@pytest.mark.parametrize(
    "user",
    [
        {1: 2},
        {"a": object()},
        {"a": np.float32(1)},
        {"a": 2**64},
        {"a": {"b": {3: 4}}},
        {b"a": 1},
        {"\ud800": 1},
        {"a": "\ud800"},
        {"a": {1, 2}},
        ["a"],
    ],
)
def test_what_a_record_cannot_hold_is_refused(store: Store, user: Any) -> None:
    with producer(store) as out:
        with pytest.raises(UsageError, match="user="):
            out.publish(small(), step=0, user=user)
        nested: Any = 1
        for _ in range(5000):
            nested = [nested]
        with pytest.raises(UsageError, match="user="):
            out.publish(small(), step=0, user={"a": nested})
        with pytest.raises(LimitExceeded):
            out.publish(small(), step=0, user={"a": "x" * 70_000})
        with pytest.raises(LimitExceeded):
            out.publish(small(), step=0, user={str(i): i for i in range(1025)})
        assert store.log.newest() is None
        out.publish(small(), step=0, user={"a": [None, True, -1.5, {"b": b"c"}]})
    assert read(store) == all_bits(small())


def test_codecs_are_checked_at_once(store: Store) -> None:
    for options in ({"codec": "plain"}, {"codec": "zip"}, {"anchor_codec": "ulp"}):
        with pytest.raises(Unsupported, match="there is no codec"):
            producer(store, **options)


# --- Schemas and resets ------------------------------------------------------------------------------


@pytest.mark.req("DS-EDGE-5")
def test_a_new_schema_costs_an_anchor(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        wider = {**state, "extra": torch.ones(3), "norm": state["norm"].double()}
        with pytest.raises(SchemaMismatch):
            out.publish(wider, step=1)
        out.publish(wider, step=1, new_schema=True)
        after = stepped(wider, 2)
        out.publish(after, step=2)
        out.publish(stepped(after, 3), step=3, new_schema=True)
    edges = [record(store, version).embedded for version in (2, 3, 4)]
    assert [edge.base for edge in edges if edge is not None] == ["none", 2, 3]
    assert record(store, 2).schema != record(store, 1).schema
    assert read(store, 1) == all_bits(state)
    assert read(store, 2) == all_bits(wider)
    assert read(store, 3) == all_bits(after)
    with producer(store) as out:
        narrower = {"norm": after["norm"]}
        out.publish(narrower, step=4, new_schema=True)
    assert read(store) == all_bits(narrower)


def test_a_reset_depends_on_nothing_before(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        out.publish(stepped(state, 1), step=1)
        out.reset(stepped(state, 2), step=2)
        out.publish(stepped(state, 3), step=3)
    edge = record(store, 3).embedded
    assert edge is not None
    assert edge.is_anchor
    for version in (1, 2):
        store.access.backend.delete(f"objects/{s.sha256[:2]}/{s.sha256}" for s in _shards(store, version))
    assert read(store, 3) == all_bits(stepped(state, 2))
    assert read(store, 4) == all_bits(stepped(state, 3))
    with producer(store) as out:
        out.reset(state, step=4)
    assert read(store) == all_bits(state)


def _shards(store: Store, version: int) -> tuple[Any, ...]:
    edge = record(store, version).embedded
    assert edge is not None
    return edge.shards


# --- The queue ---------------------------------------------------------------------------------------


def test_a_full_queue_blocks() -> None:
    gate = threading.Event()

    def plan(operation: Operation) -> None:
        if operation.name == "put_if_absent" and operation.key.startswith("versions/"):
            gate.wait(10)

    backend = FaultBackend(MemoryBackend(), plan)
    gate.set()
    store = new_store(backend)
    out = producer(store, workers=Workers(2), depth=2)
    out.publish(small(), step=0).result(10)
    gate.clear()
    returned: list[Publication] = []

    def publish() -> None:
        returned.extend(out.publish(small(step), step=step) for step in range(1, 5))

    thread = threading.Thread(target=publish)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert len(returned) == 2
    assert not any(publication.done() for publication in returned)
    gate.set()
    thread.join(10)
    out.close()
    assert [publication.result().version for publication in returned] == [2, 3, 4, 5]
    assert read(store) == all_bits(small(4))


@pytest.mark.req("DS-COMMIT-2", "DS-COMMIT-6")
def test_records_come_in_order_and_after_their_objects() -> None:
    backend = FaultBackend(MemoryBackend())
    store = new_store(backend)
    with producer(store, workers=Workers(4), depth=6, shard_bytes=2000) as out:
        for step in range(8):
            out.publish(small(step), step=step)
    done: set[str] = set()
    versions = []
    for operation in backend.operations:
        if operation.name == "put_if_absent" and operation.key.startswith("versions/"):
            version = int(operation.key[-20:])
            versions.append(version)
            content = record(store, version)
            needed = [s.sha256 for edge in content.edges for s in edge.shards]
            needed += [content.schema.sha256] if content.schema is not None else []
            assert {f"objects/{name[:2]}/{name}" for name in needed} <= done
        elif operation.name == "put":
            done.add(operation.key)
    assert versions == list(range(9))


@pytest.mark.req("DS-SHARD-4")
def test_two_encodings_never_share_a_key(store: Store) -> None:
    with producer(store) as out:
        for step in range(4):
            out.reset(small(), step=step)
    names = [shard.sha256 for version in range(1, 5) for shard in _shards(store, version)]
    assert len(set(names)) == len(names)


def test_a_hint_for_galloping_is_left_now_and_then(store: Store) -> None:
    with producer(store) as out:
        for step in range(70):
            out.publish({"w": torch.full((4,), float(step))}, step=step)
    assert store.access.backend.get("head", max_size=64) == b"64\n"


# --- Closing -----------------------------------------------------------------------------------------


def test_closing_waits_for_what_was_published(store: Store) -> None:
    out = producer(store, workers=Workers(2), depth=9)
    publications = [out.publish(small(step), step=step) for step in range(6)]
    out.close()
    assert [p.result(0).version for p in publications] == [1, 2, 3, 4, 5, 6]
    out.close()
    with pytest.raises(Broken, match="closed"):
        out.publish(small(), step=9)
    with pytest.raises(Broken, match="closed"):
        out.reset(small(), step=9)


def test_closing_gives_up_after_a_while() -> None:
    from deltastore.errors import Unavailable
    from deltastore.testing import Fault

    down = threading.Event()
    error = Unavailable("the network is down")
    backend = FaultBackend(MemoryBackend(), lambda _: Fault(before=error) if down.is_set() else None)
    store = new_store(backend)
    out = producer(store, workers=Workers(2))
    out.publish(small(), step=0).result(10)
    down.set()
    publication = out.publish(small(1), step=1)
    out.close(timeout=0.2)
    with pytest.raises(Unavailable):
        publication.result(0)
    down.clear()
    assert read(store) == all_bits(small())


def test_closing_one_that_never_published_writes_nothing(store: Store) -> None:
    before = {info.key for info in store.access.backend.list()}
    producer(store).close()
    assert {info.key for info in store.access.backend.list()} == before


def test_default_options_work_end_to_end(store: Store) -> None:
    state = small()
    with Producer(Store.open(store.access.backend, retry=NO_RETRY)) as out:
        for step in range(3):
            state = stepped(state, step)
            out.publish(state, step=step)
    assert read(store) == all_bits(state)


def test_an_error_inside_the_block_keeps_what_was_published(store: Store) -> None:
    def broken() -> None:
        with producer(store, workers=Workers(2)) as out:
            out.publish(small(), step=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert read(store) == all_bits(small())


def test_publishing_from_several_threads_is_one_at_a_time(store: Store) -> None:
    with producer(store, workers=Workers(2), anchors=MaxChain(3)) as out:
        out.publish({"w": torch.zeros(64)}, step=0)
        threads = [
            threading.Thread(
                target=out.publish, args=({"w": torch.full((64,), float(i))},), kwargs={"step": 0}
            )
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    found = {read(store, version)["w"] for version in range(2, 10)}
    assert found == {bits(torch.full((64,), float(i))) for i in range(8)}
