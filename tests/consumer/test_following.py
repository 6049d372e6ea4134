"""The end of the log as a reader sees it: floors, another store, a forked log, watching, finding."""

from __future__ import annotations

import threading
from dataclasses import replace

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

from deltastore import Consumer, Store, VersionInfo
from deltastore.backends.memory import MemoryBackend
from deltastore.consumer import reading
from deltastore.errors import (
    BadRecord,
    Collected,
    Diverged,
    NoPath,
    NoSuchVersion,
    StoreReplaced,
    Unavailable,
    UnknownFeature,
)
from deltastore.parallel import INLINE
from deltastore.protocol import keys
from deltastore.protocol.edges import Edge
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import CommitMode
from deltastore.protocol.records import Kind, Tombstone
from deltastore.runtime import Runtime
from deltastore.testing import FaultBackend, Operation


def grown(store: Store, count: int = 4) -> list[State]:
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def rewrite(store: Store, version: int, **changes: object) -> None:
    store.access.backend.put(
        keys.version(version),
        replace(record(store, version), **changes).to_bytes(),  # type: ignore[arg-type]
    )


# --- Floors ------------------------------------------------------------------------------------------


@pytest.mark.req("DS-FLOOR-1")
def test_a_log_below_the_minimum_is_refused(store: Store) -> None:
    with pytest.raises(Diverged, match="version 2 was seen before"):
        consumer(store, min_version=2).latest()
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target, min_version=5)
    for call in (reader.latest, reader.update, reader.stage):
        with pytest.raises(Diverged, match="ends at version 4, and version 5"):
            call()
    assert all_bits(target) == all_bits(blank(states[0]))
    assert consumer(store, min_version=4).latest().version == 4
    with producer(store) as out:
        out.publish(states[0], step=9)
    reader.update()
    assert all_bits(target) == all_bits(states[0])


@pytest.mark.req("DS-FLOOR-1")
def test_a_store_that_was_rolled_back_is_refused() -> None:
    backend = MemoryBackend()
    store = new_store(backend)
    states = grown(store, 2)
    before = backend.snapshot()
    with producer(store) as out:
        out.publish(states[0], step=5)
    now = [0.0]
    watched = Store.open(backend, runtime=Runtime(monotonic=lambda: now[0]))
    target = blank(states[0])
    reader = Consumer(watched, target, workers=INLINE, full_check_every=None)
    reader.update()
    backend.restore(before)
    assert reader.update() is None
    now[0] = 61
    with pytest.raises(StoreReplaced):
        reader.update()
    assert all_bits(target) == all_bits(states[0])
    with pytest.raises(Diverged):
        consumer(store, blank(states[0]), min_version=4).update()


# --- Another store, another log ----------------------------------------------------------------------


@pytest.mark.req("DS-STORE-2")
@pytest.mark.parametrize("what", ["another store", "nothing", "another record"])
def test_a_replaced_store_is_noticed_after_a_minute(what: str) -> None:
    now = [0.0]
    backend = MemoryBackend()
    states = grown(new_store(backend))
    store = Store.open(backend, runtime=Runtime(monotonic=lambda: now[0]))
    target = blank(states[0])
    reader = Consumer(store, target, workers=INLINE, full_check_every=None)
    reader.update()
    if what == "another record":
        rewrite(Store.open(backend), 4, user={"a": "b"})
    else:
        backend.delete([keys.STORE])
    if what == "another store":
        new_store(backend)
    now[0] = 59
    assert reader.update() is None
    now[0] = 60
    with pytest.raises(StoreReplaced):
        reader.update()
    assert (reader.version, all_bits(target)) == (4, all_bits(states[3]))


@pytest.mark.req("DS-STORE-2")
def test_a_tombstone_of_what_was_seen_is_no_replacement() -> None:
    now = [0.0]
    backend = MemoryBackend()
    store = Store.open(new_store(backend).access.backend, runtime=Runtime(monotonic=lambda: now[0]))
    states = grown(store)
    reader = Consumer(store, blank(states[0]), workers=INLINE, full_check_every=None)
    reader.update()
    slot = store.log.require(4)
    backend.put(keys.version(4), Tombstone.of(record(store, 4), slot.sha256).to_bytes())
    now[0] = 61
    assert reader.update() is None
    assert reader.version == 4


@pytest.mark.req("DS-CHAIN-7", "DS-READ-3")
@pytest.mark.parametrize(
    "changes", [{"parent": "0" * 64}, {"term": 7}, {"term_start": 0, "term": 2}, {"step": 0}]
)
def test_a_log_that_does_not_go_on_from_what_was_seen_stops_the_reader(
    store: Store, changes: dict[str, object]
) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    with producer(store) as out:
        out.publish(states[0], step=9)
    if "step" not in changes:
        rewrite(store, 5, **changes)
    else:
        later = replace(record(store, 4), version=5, parent=store.log.require(4).sha256, step=0)
        assert later.state is not None
        edges = (Edge(4, later.state, 5, later.state, ()),)
        store.access.backend.put(keys.version(5), replace(later, edges=edges).to_bytes())
    for _ in range(2):
        with pytest.raises((Diverged, BadRecord)):
            reader.update()
    assert (reader.version, all_bits(target)) == (4, all_bits(states[3]))


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80", b"\xc1"])
def test_a_record_that_is_none_stops_the_reader(store: Store, data: bytes) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    store.access.backend.put(keys.version(5), data)
    with pytest.raises(BadRecord):
        reader.update()
    assert (reader.version, all_bits(target)) == (4, all_bits(states[3]))


@pytest.mark.req("DS-FEAT-1")
def test_an_unknown_requirement_is_named(store: Store) -> None:
    states = grown(store)
    reader = consumer(store, blank(states[0]))
    reader.update()
    with producer(store) as out:
        out.publish(states[0], step=9)
        rewrite(store, 5, requires=Requires(read=frozenset({"quantum"})))
        with pytest.raises(UnknownFeature, match="quantum"):
            reader.update()
        with pytest.raises(UnknownFeature, match="quantum"):
            producer(reopened(store)).publish(states[1], step=10)
    assert reader.version == 4


@pytest.mark.req("DS-TOMB-2", "DS-PLAN-1")
def test_collected_versions_are_named_and_passed_over(store: Store) -> None:
    states = grown(store, 5)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    with producer(store) as out:
        out.reset(states[4], step=9)
    for version in (2, 3, 4, 5):
        slot = store.log.require(version)
        store.access.backend.put(
            keys.version(version), Tombstone.of(record(store, version), slot.sha256).to_bytes()
        )
    for version in (2, 5):
        with pytest.raises(Collected, match=f"version {version} was collected"):
            reader.stage(version)
        with pytest.raises(Collected):
            list(reader.host_tensors(version))
    reader.update()
    assert (reader.version, all_bits(target)) == (7, all_bits(states[4]))


# --- Single writer -----------------------------------------------------------------------------------


@pytest.mark.req("DS-SINGLE-3", "DS-SINGLE-4")
def test_a_mended_single_writer_log_is_followed_from_an_anchor() -> None:
    backend = MemoryBackend(conditional=False)
    store = Store.create(backend, retry=NO_RETRY, runtime=HASTY)
    assert store.identity.commit is CommitMode.SINGLE_WRITER
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    backend.put(keys.version(4), b"torn")
    after = stepped(states[1], 77)
    with producer(store) as out:
        info = out.publish(after, step=9).result()
        assert (info.version, info.kind) == (5, Kind.RESET)
        out.publish(stepped(after, 1), step=10)
    reader.update()
    assert all_bits(target) == all_bits(stepped(after, 1))
    late = blank(states[0])
    consumer(store, late).update()
    assert all_bits(late) == all_bits(stepped(after, 1))


@pytest.mark.req("DS-SINGLE-1", "DS-SINGLE-4")
def test_a_second_writer_without_conditions_is_noticed() -> None:
    from deltastore.errors import Conflict, ConflictError

    backend = MemoryBackend(conditional=False)
    store = Store.create(backend, retry=NO_RETRY, runtime=HASTY)
    first = producer(store)
    first.publish(small(), step=0)
    second = producer(reopened(store))
    second.publish(small(1), step=1)
    with pytest.raises((Conflict, ConflictError)):
        first.publish(small(2), step=2).result(0)
    second.publish(small(3), step=3)
    assert all_bits(consumer(store).host_tensors()) == all_bits(small(3))


# --- Watching and finding ----------------------------------------------------------------------------


def test_watching_yields_every_version_that_was_taken(store: Store) -> None:
    target = blank(small())
    reader = consumer(store, target)
    stop = threading.Event()
    seen: list[tuple[int, dict[str, bytes]]] = []

    def watch() -> None:
        for info in reader.watch(poll=0.005, stop=stop):
            seen.append((info.version, all_bits(target)))
            if info.step == 9:
                stop.set()

    thread = threading.Thread(target=watch)
    thread.start()
    states = {}
    with producer(store) as out:
        for step in range(10):
            states[step + 1] = all_bits(small(step))
            out.publish(small(step), step=step)
    thread.join(20)
    assert not thread.is_alive()
    assert seen[-1][0] == 10
    assert [version for version, _ in seen] == sorted({version for version, _ in seen})
    assert all(found == states[version] for version, found in seen)


def test_watching_waits_for_a_way_and_stops_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN", 0.05)
    states = grown(store)
    target = blank(states[0])
    lost = shard_keys(store, 2)[0]
    data = store.access.backend.get(lost, max_size=1 << 20)
    store.access.backend.delete([lost])
    tried = threading.Event()

    def plan(operation: Operation) -> None:
        if operation.key == lost:
            tried.set()

    reader = Consumer(reopened(store, FaultBackend(store.access.backend, plan)), target, workers=INLINE)
    stop = threading.Event()
    found: list[VersionInfo] = []
    thread = threading.Thread(target=lambda: found.extend(reader.watch(poll=0.01, stop=stop)))
    thread.start()
    assert tried.wait(10)
    store.access.backend.put(lost, data)
    for _ in range(1000):
        if reader.version == 4:
            break
        threading.Event().wait(0.01)
    stop.set()
    thread.join(10)
    assert [info.version for info in found] == [4]
    assert list(reader.watch(stop=stop)) == []


def test_watching_passes_other_errors_on(store: Store) -> None:
    def plan(operation: Operation) -> None:
        raise Unavailable("network")

    broken = FaultBackend(store.access.backend, lambda _: None)
    reader = Consumer(reopened(store, broken), blank(small()), workers=INLINE)
    broken._plan = plan
    with pytest.raises(Unavailable):
        next(reader.watch())


def test_versions_are_found_by_step(store: Store) -> None:
    with producer(store) as out:
        for step in (0, 0, 3, 7):
            out.publish(small(step), step=step)
    with producer(store) as out:
        for step in (3, 8):
            out.publish(small(step), step=step)
    assert {s: store.find(step=s).version for s in (0, 3, 7, 8)} == {0: 2, 3: 6, 7: 4, 8: 7}
    for step in (1, 4, 9):
        with pytest.raises(NoSuchVersion, match=f"step {step}"):
            store.find(step=step)
    reader = consumer(store, target := blank(small()))
    reader.stage(store.find(step=7).version).commit()
    assert all_bits(target) == all_bits(small(7))


# --- Reading without a target ------------------------------------------------------------------------


def test_tensors_are_read_by_name_with_ties(store: Store) -> None:
    weight = torch.randn(4, 4)
    with producer(store) as out:
        out.publish({"embed": weight, "head": weight, "x": torch.ones(3)}, step=0)
        out.publish({"embed": weight + 1, "head": weight + 1, "x": torch.ones(3)}, step=1)
    reader = consumer(store)
    for names in (["head"], ["embed"], ["x", "head", "embed"], []):
        found = dict(reader.tensors(names=names))
        assert list(found) == names
        assert all(torch.equal(t, torch.ones(3) if n == "x" else weight + 1) for n, t in found.items())
    assert torch.equal(dict(reader.tensors(1))["head"], weight)
    from deltastore.errors import UsageError

    with pytest.raises(UsageError, match="'nothing'"):
        list(reader.tensors(names=["nothing"]))


def test_reading_goes_around_damage_too(store: Store) -> None:
    states = grown(store)
    store.access.backend.delete(shard_keys(store, 3))
    reader = consumer(store)
    with pytest.raises(NoPath):
        list(reader.host_tensors())
    assert all_bits(reader.host_tensors(2)) == all_bits(states[1])
    with producer(store) as out:
        out.reset(states[3], step=9)
    assert all_bits(reader.host_tensors()) == all_bits(states[3])
