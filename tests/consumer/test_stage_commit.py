"""Stage while serving, commit in one go, recognise, refuse: a target is always at a version it names."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    State,
    all_bits,
    blank,
    consumer,
    mixed,
    new_store,
    producer,
    record,
    reopened,
    small,
    stepped,
)

from deltastore import Consumer, MaxChain, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.consumer import places
from deltastore.consumer.targets import TensorsTarget
from deltastore.errors import Conflict, NoSuchVersion, Poisoned, UsageError
from deltastore.parallel import Workers
from deltastore.state import Patch
from deltastore.testing import FaultBackend


def grown(store: Store, count: int = 4, *, first: State | None = None, **options: Any) -> list[State]:
    states = [first or small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store, **options) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


# --- Staging -----------------------------------------------------------------------------------------


@pytest.mark.req("DS-READ-8")
@pytest.mark.parametrize("threads", [0, 3])
def test_staging_touches_nothing(store: Store, threads: int) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target, workers=Workers(threads))
    first = reader.stage(1)
    assert all_bits(target) == all_bits(blank(states[0]))
    assert (first.version, reader.version) == (1, None)
    assert first.bytes_fetched > 0
    first.commit()
    assert all_bits(target) == all_bits(states[0])
    last = reader.stage()
    assert all_bits(target) == all_bits(states[0])
    assert (last.version, reader.version) == (4, 1)
    assert reader.info == store.find(version=1)
    assert last.commit() == store.find()
    assert all_bits(target) == all_bits(states[3])
    assert reader.last_pause >= 0


@pytest.mark.req("DS-READ-9")
def test_a_second_commit_acknowledges(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    staged = reader.stage()
    for _ in range(3):
        assert staged.commit().version == 4
        assert all_bits(target) == all_bits(states[3])
        reader.verify()
    assert reader.update() is None


@pytest.mark.req("DS-READ-9")
def test_what_was_staged_on_another_state_is_refused(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    second, third = reader.stage(2), reader.stage(3)
    third.commit()
    with pytest.raises(Conflict, match="staged on another state"):
        second.commit()
    assert (reader.version, all_bits(target)) == (3, all_bits(states[2]))
    reader.update()
    with pytest.raises(Conflict):
        second.commit()
    with pytest.raises(Conflict):
        third.commit()
    assert (reader.version, all_bits(target)) == (4, all_bits(states[3]))


def test_what_was_discarded_is_not_committed(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    staged = reader.stage(2)
    staged.discard()
    staged.discard()
    with pytest.raises(Conflict):
        staged.commit()
    assert all_bits(target) == all_bits(blank(states[0]))
    reader.update()
    assert all_bits(target) == all_bits(states[3])


@pytest.mark.req("DS-FLOOR-3")
def test_a_consumer_does_not_go_down(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(3).commit()
    with pytest.raises(UsageError, match="older than version 3"):
        reader.stage(2)
    assert (reader.version, all_bits(target)) == (3, all_bits(states[2]))
    reader.stage(3).commit()
    reader.stage(4).commit()
    assert all_bits(target) == all_bits(states[3])


def test_the_number_does_not_go_down_where_the_bits_are_the_same(store: Store) -> None:
    with producer(store) as out:
        for step in range(3):
            out.publish(small(), step=step)
    reader = consumer(store, blank(small()))
    first = reader.stage(1)
    reader.stage(3).commit()
    first.commit()
    assert reader.version == 3


def test_versions_that_are_not_there_are_named(store: Store) -> None:
    reader = consumer(store, blank(small()))
    with pytest.raises(NoSuchVersion, match="no versions yet"):
        reader.stage()
    with pytest.raises(NoSuchVersion, match="no versions yet"):
        reader.latest()
    assert reader.update() is None
    grown(store)
    with pytest.raises(NoSuchVersion, match="version 9"):
        reader.stage(9)
    with pytest.raises(NoSuchVersion, match="version -1"):
        reader.stage(-1)


@pytest.mark.req("DS-READ-2")
def test_version_0_without_weights_is_not_offered(store: Store) -> None:
    from deltastore.errors import SchemaMismatch

    writer = producer(store)
    with pytest.raises(SchemaMismatch):
        writer.publish({}, step=0)
    target = blank(small())
    reader = consumer(store, target)
    assert reader.update() is None
    assert reader.latest().state is None
    for version in (None, 0):
        with pytest.raises(NoSuchVersion, match="no weights"):
            reader.stage(version)
        with pytest.raises(NoSuchVersion, match="no weights"):
            list(reader.host_tensors(version))
    writer.publish(small(), step=0)
    reader.update()
    assert all_bits(target) == all_bits(small())


def test_a_claim_is_served_by_what_is_there(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    writer = producer(store)
    with pytest.raises(Exception, match="missing"):
        writer.publish({"norm": states[0]["norm"]}, step=9)
    assert store.find().version == 5
    backend_reads = reader.stage()
    assert (backend_reads.version, backend_reads.bytes_fetched) == (5, 0)
    info = reader.update()
    assert info is not None
    assert (info.version, info.step, reader.version) == (5, None, 5)
    assert all_bits(target) == all_bits(states[3])
    writer.publish(small(7), step=9)
    reader.update()
    assert all_bits(target) == all_bits(small(7))


def test_reading_needs_no_target_and_writing_does(store: Store) -> None:
    states = grown(store)
    reader = consumer(store)
    assert reader.latest().version == 4
    assert all_bits(reader.host_tensors()) == all_bits(states[3])
    for call in (reader.stage, reader.update, reader.verify):
        with pytest.raises(UsageError, match="no target"):
            call()


# --- Catching up -------------------------------------------------------------------------------------


@pytest.mark.req("DS-PLAN-1")
@pytest.mark.parametrize("anchors", [None, MaxChain(5)])
def test_catching_up_is_the_same_as_stepping(store: Store, anchors: object) -> None:
    states = grown(store, 17, first=mixed(), anchors=anchors)
    stepping, jumping, late = blank(states[0]), blank(states[0]), blank(states[0])
    by_step, by_jump = consumer(store, stepping), consumer(store, jumping)
    for version, state in enumerate(states, 1):
        by_step.stage(version).commit()
        assert all_bits(stepping) == all_bits(state)
        if version in {1, 4, 12, 17}:
            by_jump.stage(version).commit()
            assert all_bits(jumping) == all_bits(state)
    consumer(store, late).update()
    assert all_bits(late) == all_bits(states[-1])


@pytest.mark.req("DS-READ-3")
def test_nothing_new_is_one_request(store: Store) -> None:
    grown(store)
    backend = FaultBackend(store.access.backend)
    reader = Consumer(reopened(store, backend), blank(small()), workers=Workers(0))
    reader.update()
    before = len(backend.operations)
    assert reader.update() is None
    assert [(op.name, op.key) for op in backend.operations[before:]] == [("get", f"versions/{5:020}")]


def test_one_new_version_fetches_one_record_and_its_shards(store: Store) -> None:
    states = grown(store)
    backend = FaultBackend(store.access.backend)
    reader = Consumer(reopened(store, backend), blank(small()), workers=Workers(0))
    reader.update()
    with producer(store) as out:
        out.publish(states[3], step=9)
        reader.update()
        before = len(backend.operations)
        out.publish(stepped(states[3], 9), step=9)
        reader.update()
    fetched = [op.key for op in backend.operations[before:] if op.name == "get"]
    edge = record(store, 7).embedded
    assert edge is not None
    assert [k for k in fetched if k.startswith("objects/")] == [
        f"objects/{s.sha256[:2]}/{s.sha256}" for s in edge.shards
    ]


# --- What a fresh target holds -----------------------------------------------------------------------


@pytest.mark.req("DS-READ-7")
@pytest.mark.parametrize("newest", [True, False])
def test_a_target_that_holds_a_version_is_recognised(store: Store, newest: bool) -> None:
    states = grown(store)
    held = {name: tensor.clone() for name, tensor in states[3 if newest else 1].items()}
    backend = FaultBackend(store.access.backend)
    reader = Consumer(reopened(store, backend), held, workers=Workers(0))
    info = reader.update()
    assert info is not None
    assert all_bits(held) == all_bits(states[3])
    shards = [op for op in backend.operations if op.name == "get" and op.key.startswith("objects/")]
    assert len(shards) == (1 if newest else 5)


@pytest.mark.req("DS-READ-7")
def test_one_wrong_bit_and_a_target_is_not_recognised(store: Store) -> None:
    states = grown(store)
    held = {name: tensor.clone() for name, tensor in states[3].items()}
    held["proj"].view(torch.int16)[4, 46] ^= 1
    reader = consumer(store, held)
    staged = reader.stage()
    assert reader.version is None
    staged.commit()
    assert all_bits(held) == all_bits(states[3])


# --- Poison ------------------------------------------------------------------------------------------


def break_the_third_write(monkeypatch: pytest.MonkeyPatch, *, undo: bool = True) -> None:
    """The third tensor's scatter fails half-way."""
    written = [0]

    class Breaking:
        def __init__(self, inner: places.Write) -> None:
            self.inner = inner

        def apply(self) -> None:
            written[0] += 1
            self.inner.apply()
            if written[0] == 3:
                raise RuntimeError("device lost")

        def undo(self) -> None:
            if not undo:
                raise RuntimeError("still lost")
            self.inner.undo()

    real = TensorsTarget.stage
    monkeypatch.setattr(
        TensorsTarget, "stage", lambda self, changes: [Breaking(w) for w in real(self, changes)]
    )


@pytest.mark.req("DS-READ-10")
@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("numpy", [True, False])
def test_a_scatter_that_breaks_off_poisons(
    store: Store, monkeypatch: pytest.MonkeyPatch, undo: bool, numpy: bool
) -> None:
    first = {f"w{i}": torch.randn(64) for i in range(5)}
    states = grown(store, 3, first=first)
    target: Any = {n: t.numpy() for n, t in blank(first).items()} if numpy else blank(first)
    reader = consumer(store, target)
    reader.stage(1).commit()
    staged: Any
    with monkeypatch.context() as patch:
        break_the_third_write(patch, undo=undo)
        staged = reader.stage(2)
        with pytest.raises(Poisoned, match="broke off") as caught:
            staged.commit()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (reader.poisoned, reader.version, reader.info) == (True, None, None)
    with pytest.raises(Poisoned):
        reader.verify()
    with pytest.raises(Conflict):
        staged.commit()
    if undo:
        assert all_bits(target) == all_bits(states[0])
    plan = reader.stage()
    assert plan.bytes_fetched > sum(s.size for e in [record(store, 1).embedded] if e for s in e.shards)
    plan.commit()
    assert (reader.poisoned, reader.version) == (False, 3)
    assert all_bits(target) == all_bits(states[2])
    reader.verify()


@pytest.mark.req("DS-READ-10")
def test_weights_that_went_wrong_are_found_by_a_full_check(store: Store) -> None:
    states = grown(store, 3)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    reader.verify()
    target["embed"].view(torch.int16)[7, 7] ^= 4
    with pytest.raises(Poisoned, match="no longer those of version 3"):
        reader.verify()
    assert (reader.poisoned, reader.version) == (True, None)
    reader.update()
    assert all_bits(target) == all_bits(states[2])
    assert (reader.poisoned, reader.version) == (False, 3)


def test_a_full_check_after_each_commit_sees_words_that_no_change_touched(store: Store) -> None:
    states = grown(store, 1)
    target = blank(states[0])
    reader = consumer(store, target, check="full")
    reader.update()
    after = {name: tensor.clone() for name, tensor in states[0].items()}
    after["embed"][0, 0] += 1
    with producer(store) as out:
        out.publish(after, step=1)
    target["norm"][9] += 1
    with pytest.raises(Poisoned):
        reader.update()
    reader.update()
    assert all_bits(target) == all_bits(after)


def test_a_full_check_comes_by_itself_after_a_while() -> None:
    now = [0.0]
    from deltastore.runtime import Runtime

    backend = MemoryBackend()
    grown(new_store(backend), 2)
    store = Store.open(backend, runtime=Runtime(monotonic=lambda: now[0]))
    target = blank(small())
    reader = Consumer(store, target, full_check_every=100, workers=Workers(0))
    reader.update()
    target["norm"][0] += 1
    now[0] = 99
    assert reader.update() is None
    now[0] = 101
    with pytest.raises(Poisoned):
        reader.update()
    assert reader.update() is not None
    assert all_bits(target) == all_bits(stepped(small(), 1))


# --- Undo --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", ["torch", "strided", "numpy", "strided numpy"])
def test_writes_are_undone_also_where_they_broke_off(kind: str, whole: bool) -> None:
    from deltastore.protocol.schema import TensorSpec

    tensor: Any = torch.arange(3_000_000, dtype=torch.float32).reshape(1000, 3000)
    if "strided" in kind:
        tensor = tensor[::2, ::3]
    if "numpy" in kind:
        tensor = tensor.numpy()
    before = tensor.copy() if "numpy" in kind else tensor.clone()
    slot = places.place_of("w", tensor)
    count = int(np.prod(slot.shape))
    positions = None if whole else np.arange(0, count, 7)
    values = np.full(count if positions is None else positions.size, 5, "<u4")
    write = slot.prepare(Patch(TensorSpec("w", "F32", slot.shape), positions, values))
    write.apply()
    assert not (tensor == before).all()
    write.undo()
    assert (tensor == before).all()
    write.apply()
    write.undo()
    assert (tensor == before).all()


# --- Threads -----------------------------------------------------------------------------------------


def test_a_commit_does_not_wait_for_a_stage(store: Store) -> None:
    states = grown(store, 3)
    inside, gate = threading.Event(), threading.Event()
    gate.set()

    def plan(operation: object) -> None:
        if not gate.is_set():
            inside.set()
            gate.wait(10)

    target = blank(states[0])
    reader = Consumer(reopened(store, FaultBackend(store.access.backend, plan)), target, workers=Workers(0))
    ready = reader.stage(2)
    gate.clear()
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(reader.stage(3)))
    thread.start()
    assert inside.wait(10)
    ready.commit()
    assert all_bits(target) == all_bits(states[1])
    gate.set()
    thread.join(10)
    try:
        outcome[0].commit()
    except Conflict:
        reader.update()
    assert all_bits(target) == all_bits(states[2])


def test_reading_tensors_slowly_holds_nobody_up(store: Store) -> None:
    states = grown(store, 3)
    target = blank(states[0])
    reader = consumer(store, target)
    slowly = reader.host_tensors(1)
    next(slowly)
    done = threading.Event()

    def update() -> None:
        reader.update()
        done.set()

    threading.Thread(target=update, daemon=True).start()
    assert done.wait(10)
    assert all_bits(target) == all_bits(states[2])
    assert len(list(slowly)) == 2


def test_closing_leaves_the_target_alone(store: Store, tmp_path: Path) -> None:
    states = grown(store, 2)
    target = blank(states[0])
    with consumer(store, target) as reader:
        reader.update()
    assert all_bits(target) == all_bits(states[1])
