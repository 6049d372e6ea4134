"""What becomes of a publish when its storage, its encoder or another producer gets in the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    HASTY,
    NO_RETRY,
    all_bits,
    consumer,
    failing,
    new_store,
    producer,
    read,
    record,
    reopened,
    small,
    stepped,
)

from deltastore import Store, codec
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.codec import kernels, twin_steps
from deltastore.codec.types import Encoded, Found, Positions
from deltastore.codec.ulp import Steps
from deltastore.errors import (
    AuthError,
    BadShard,
    Broken,
    Conflict,
    Fenced,
    NoPath,
    NoSpace,
    OutcomeUnknown,
    TakeoverRefused,
    Throttled,
    Unavailable,
    Unsupported,
)
from deltastore.parallel import Workers
from deltastore.producer.holder import Process
from deltastore.producer.pipeline import Pipeline
from deltastore.protocol import keys
from deltastore.protocol.digest import Lanes
from deltastore.runtime import Runtime
from deltastore.testing import CrashNow, Fault, FaultBackend, Operation

Plan = Callable[[Operation], Fault | None]
TRANSIENT = [Unavailable("gone for a moment"), Throttled("slow down", retry_after=0)]


class Switched:
    """A plan that can be changed while a store is in use."""

    def __init__(self) -> None:
        self.plan: Plan = lambda _: None

    def __call__(self, operation: Operation) -> Fault | None:
        return self.plan(operation)


def faulty() -> tuple[Store, Switched, FaultBackend]:
    switched = Switched()
    backend = FaultBackend(MemoryBackend(), switched)
    return new_store(backend), switched, backend


# --- Transient errors --------------------------------------------------------------------------------


@pytest.mark.req("DS-COMMIT-4", "DS-COMMIT-6")
@pytest.mark.parametrize("error", TRANSIENT, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "reply lost"])
def test_transient_errors_are_tried_again_with_the_same_bytes(error: Exception, lost: bool) -> None:
    store, switched, backend = faulty()
    sent: list[tuple[str, bytes]] = []
    inner = backend.put_if_absent

    def spy(key: str, data: bytes) -> object:
        sent.append((key, bytes(data)))
        return inner(key, data)

    backend.put_if_absent = spy  # type: ignore[method-assign,assignment]
    with producer(store, workers=Workers(2)) as out:
        out.publish(small(), step=0).result(10)
        left = {"put": 2, "put_if_absent": 2, "get": 2}

        def plan(operation: Operation) -> Fault | None:
            if left.get(operation.name, 0):
                left[operation.name] -= 1
                return Fault(after=error) if lost else Fault(before=error)
            return None

        switched.plan = plan
        publication = out.publish(small(1), step=1)
        assert publication.result(20).version == 2
    assert len({data for key, data in sent if key == keys.version(2)}) == 1
    assert read(store) == all_bits(small(1))


@pytest.mark.req("DS-COMMIT-3")
def test_a_commit_whose_reply_is_lost_is_committed_once() -> None:
    store, switched, _ = faulty()
    with producer(store) as out:
        out.publish(small(), step=0)
        switched.plan = lambda op: (
            Fault(after=Unavailable("reply lost")) if op.key == keys.version(2) and op.name != "get" else None
        )
        assert out.publish(small(1), step=1).result().version == 2
        switched.plan = lambda _: None
        assert out.publish(small(2), step=2).result().version == 3
    assert read(store) == all_bits(small(2))


@pytest.mark.req("DS-COMMIT-4")
def test_an_open_outcome_takes_no_other_content() -> None:
    store, switched, _ = faulty()
    out = producer(store)
    out.publish(small(), step=0)
    switched.plan = lambda op: (
        Fault(after=Unavailable("cut off")) if op.key == keys.version(2) and op.name != "list" else None
    )
    with pytest.raises(OutcomeUnknown):
        out.publish(small(1), step=1).result(0)
    switched.plan = lambda _: None
    with pytest.raises(Broken):
        out.publish(small(2), step=2)
    assert read(store) == all_bits(small(1))
    with producer(store) as again:
        assert again.publish(small(2), step=2).result().version == 4
    assert read(store, 2) == all_bits(small(1))
    assert read(store, 4) == all_bits(small(2))


def test_a_claim_whose_outcome_is_open_can_be_made_again() -> None:
    store, switched, _ = faulty()
    out = producer(store)
    switched.plan = lambda op: Fault(after=Unavailable("cut off")) if op.key == keys.version(0) else None
    with pytest.raises(OutcomeUnknown):
        out.publish(small(), step=0)
    switched.plan = lambda _: None
    with out:
        assert out.publish(small(), step=0).result().version == 2
    assert read(store) == all_bits(small())


# --- Errors for good ---------------------------------------------------------------------------------


@pytest.mark.req("DS-ORDER-1")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("name", ["put", "put_if_absent"])
@pytest.mark.parametrize("error", [AuthError("the key has expired"), NoSpace("the quota is used up")])
def test_an_upload_that_fails_for_good_breaks_the_producer(name: str, error: Exception, threads: int) -> None:
    store, switched, backend = faulty()
    out = producer(store, workers=Workers(threads))
    out.publish(small(), step=0).result(10)
    switched.plan = failing(name, error)
    publication = out.publish(small(1), step=1)
    with pytest.raises(type(error)):
        publication.result(10)
    with pytest.raises(Broken) as caught:
        out.publish(small(2), step=2)
    assert caught.value.__cause__ is error
    switched.plan = lambda _: None
    with pytest.raises(Broken):
        out.publish(small(2), step=2)
    out.close()
    assert read(store) == all_bits(small())
    with producer(store) as again:
        assert again.publish(small(3), step=3).result().version == 3
    assert read(store) == all_bits(small(3))
    assert not any(op.name == "delete" for op in backend.operations)


def test_what_waits_behind_a_failure_fails_too() -> None:
    store, switched, _ = faulty()
    gate = threading.Event()

    def plan(operation: Operation) -> Fault | None:
        if operation.key == keys.version(2) and operation.name == "put_if_absent":
            gate.wait(10)
            return Fault(before=AuthError("no longer allowed"))
        return None

    out = producer(store, workers=Workers(2), depth=5)
    out.publish(small(), step=0).result(10)
    switched.plan = plan
    waiting = [out.publish(small(step), step=step) for step in range(1, 5)]
    gate.set()
    with pytest.raises(AuthError):
        waiting[0].result(10)
    for publication in waiting[1:]:
        with pytest.raises(Broken):
            publication.result(10)
    out.close()
    assert store.find().version == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_whatever_fails_after_the_commit_is_not_the_publication(threads: int) -> None:
    class Policy:
        def due(self, chain: object) -> bool:
            raise ZeroDivisionError

    store = new_store()
    with producer(store, workers=Workers(threads), anchors=Policy()) as out:
        for step in range(4):
            assert out.publish(small(step), step=step).result(10).version == step + 1
    assert read(store) == all_bits(small(3))


# --- A wrong encoder ---------------------------------------------------------------------------------


class Wrong:
    """A codec that flips a bit of what it encodes."""

    id = "ulp"
    kind = "delta"
    reads_base = False

    def __init__(self, spoil: Callable[[list[Steps]], list[Steps]]) -> None:
        self._spoil = spoil
        self._inner = codec.DELTA["ulp"]
        self.decode = self._inner.decode
        self.diff = self._inner.diff
        self.unchanged = self._inner.unchanged

    def encode(self, diffs: list[Steps], *, nonce: bytes, **_base: object) -> Encoded:
        return self._inner.encode(self._spoil(diffs), nonce=nonce)


def _wrong_value(diffs: list[Steps]) -> list[Steps]:
    def spoil(diff: Steps) -> Steps:
        if not diff.changed:
            return diff
        positions, steps = kernels.steps_decode(diff.spec, diff.coded(), diff.changed)
        steps[0] = steps[0] + 2 or 4
        return _written(diff, positions, steps)

    return [spoil(diff) for diff in diffs]


def _lost_change(diffs: list[Steps]) -> list[Steps]:
    def spoil(diff: Steps) -> Steps:
        if not diff.changed:
            return diff
        positions, steps = kernels.steps_decode(diff.spec, diff.coded(), diff.changed)
        return _written(diff, positions[1:], steps[1:])

    return [spoil(diff) for diff in diffs]


def _written(diff: Steps, positions: Positions, steps: Lanes) -> Steps:
    """The same delta with other changes."""
    streams = twin_steps.steps_encode(diff.spec, positions, steps)
    return replace(diff, streams=streams, changed=positions.size, whole=None)


def _wrong_digest(diffs: list[Steps]) -> list[Steps]:
    return [replace(d, state_delta=d.state_delta ^ 1) for d in diffs]


@pytest.mark.req("DS-COMMIT-8")
@pytest.mark.parametrize("spoil", [_wrong_value, _lost_change, _wrong_digest])
def test_a_wrong_encoder_never_gets_into_the_log(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[list[Steps]], list[Steps]]
) -> None:
    store = new_store()
    state = {"w": torch.arange(4096, dtype=torch.float32)}
    out = producer(store)
    out.publish(state, step=0)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "DELTA", {**codec.DELTA, "ulp": Wrong(spoil)})
        publication = out.publish(stepped(state, 1), step=1)
        with pytest.raises(BadShard, match="does not give tensor 'w' back"):
            publication.result(0)
    assert store.find().version == 1
    assert read(store) == all_bits(state)
    with pytest.raises(Broken):
        out.publish(state, step=2)
    with producer(store) as again:
        again.publish(stepped(state, 2), step=2)
    assert read(store) == all_bits(stepped(state, 2))


def test_a_wrong_anchor_never_gets_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = codec.ANCHOR["plain"]

    class WrongPlain:
        id = "plain"
        kind = "anchor"
        decode = staticmethod(plain.decode)

        def encode(self, denses: list[object], *, nonce: bytes) -> Encoded:
            good = plain.encode(denses, nonce=nonce)  # type: ignore[arg-type]
            data = bytearray(good.data)
            data[-1] ^= 1
            return Encoded(bytes(data), good.raw_size, good.state_delta, good.changed)

    monkeypatch.setattr(codec, "ANCHOR", {"plain": WrongPlain()})
    store = new_store()
    with pytest.raises(BadShard):
        producer(store, anchor_codec="plain").publish(small(), step=0).result(0)
    assert store.find().state is None


def test_a_wrong_delta_without_the_check_is_found_by_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    state = {"w": torch.arange(4096, dtype=torch.float32)}
    target = {"w": torch.zeros(4096)}
    with producer(store, check=False) as out:
        out.publish(state, step=0)
        reader = consumer(store, target)
        reader.update()
        monkeypatch.setattr(codec, "DELTA", {**codec.DELTA, "ulp": Wrong(_wrong_value)})
        out.publish(stepped(state, 1), step=1).result(0)
    with pytest.raises(NoPath):
        reader.update()
    assert reader.version == 1
    assert all_bits(target) == all_bits(state)


# --- Two producers -----------------------------------------------------------------------------------


@pytest.mark.req("DS-CLAIM-5", "DS-COMMIT-5")
@pytest.mark.parametrize("threads", [0, 2])
def test_the_one_before_is_fenced(store: Store, threads: int) -> None:
    first = producer(store, workers=Workers(threads))
    first.publish(small(), step=0).result(10)
    second = producer(reopened(store))
    second.publish(small(1), step=1)
    newest = store.find().version
    with pytest.raises(Fenced, match="term 2"):
        first.publish(small(2), step=2).result(10)
    for _ in range(2):
        with pytest.raises(Fenced):
            first.publish(small(2), step=2)
    assert store.find().version == newest
    second.publish(small(3), step=3)
    first.close()
    second.close()
    assert read(store) == all_bits(small(3))


@pytest.mark.req("DS-CLAIM-3")
def test_taking_over_from_one_that_may_live_needs_a_word(store: Store) -> None:
    def one(pid: int, *, takeover: bool = False) -> object:
        process = Process(host="another-host", pid=pid)
        return producer(reopened(store), takeover=takeover, process=process)

    first = one(1)
    first.publish(small(), step=0)  # type: ignore[attr-defined]
    with pytest.raises(TakeoverRefused, match="takeover=True"):
        producer(reopened(store), takeover=False).publish(small(1), step=1)
    assert store.find().version == 1
    first.publish(small(1), step=1)  # type: ignore[attr-defined]
    first.close()  # type: ignore[attr-defined]
    with producer(reopened(store), takeover=False) as second:
        second.publish(small(2), step=2)
    assert record(store, 3).term == 2


def test_an_old_record_may_be_taken_over() -> None:
    now = [1000.0]
    backend = MemoryBackend(clock=lambda: now[0])
    store = new_store(backend)
    producer(store, process=Process(host="elsewhere", pid=1)).publish(small(), step=0)
    now[0] += 899
    with pytest.raises(TakeoverRefused):
        producer(store, takeover=False).publish(small(1), step=1)
    now[0] += 2
    with producer(store, takeover=False) as out:
        out.publish(small(1), step=1)
    assert record(store, 2).term == 2


@pytest.mark.req("DS-CLAIM-2")
def test_of_two_that_claim_at_once_one_gets_a_conflict() -> None:
    switched = Switched()
    inner = MemoryBackend()
    store = new_store(inner)
    out = producer(reopened(store, FaultBackend(inner, switched)))

    def plan(operation: Operation) -> None:
        if operation.key == keys.version(0) and operation.name == "put_if_absent":
            switched.plan = lambda _: None
            producer(reopened(store)).publish(small(1), step=1)

    switched.plan = plan
    with pytest.raises(Conflict, match="claimed version 0 at the same moment"):
        out.publish(small(), step=0)
    assert read(store) == all_bits(small(1))
    out.publish(small(2), step=2)
    assert record(store, 2).term == 2


# --- Crashes at every operation ----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_operation_leaves_a_version_that_exists(when: str) -> None:
    states = [small(seed) for seed in range(4)]

    def run(crash_at: int | None) -> tuple[MemoryBackend, int, int]:
        inner = MemoryBackend()
        new_store(inner)
        dead = [False]

        def plan(operation: Operation) -> Fault | None:
            if dead[0]:
                raise CrashNow
            if operation.index == crash_at:
                dead[0] = True
                return Fault(before=CrashNow()) if when == "before" else Fault(after=CrashNow())
            return None

        backend = FaultBackend(inner, plan)
        acknowledged = -1
        out = producer(Store.open(backend, retry=NO_RETRY, runtime=HASTY))
        try:
            for step, state in enumerate(states):
                (out.reset if step == 2 else out.publish)(state, step=step).result(0)
                acknowledged = step
        except (CrashNow, Broken):
            pass
        return inner, acknowledged, len(backend.operations)

    _, _, total = run(None)
    assert total > 15
    for crash_at in range(1, total):
        inner, acknowledged, _ = run(crash_at)
        store = reopened(new_or(inner))
        newest = store.log.newest()
        found = -1 if newest is None or newest.record.state is None else newest.record.step
        assert found is not None
        assert found >= acknowledged
        if found >= 0:
            assert read(store) == all_bits(states[found])
        with producer(store) as again:
            info = again.publish(small(9), step=9).result()
        assert read(store) == all_bits(small(9))
        assert info.version == store.find().version


def new_or(backend: MemoryBackend) -> Store:
    return Store.open(backend, retry=NO_RETRY, runtime=HASTY)


# --- What a producer may not write to ----------------------------------------------------------------


@pytest.mark.req("DS-STORE-4", "DS-BACK-5")
def test_a_store_that_cannot_be_committed_to_is_refused() -> None:
    name = f"memory://plain-{np.random.default_rng().integers(2**62)}"
    Store.create(name)
    unconditional = Store.open(name, options={"conditional": "false"})
    with pytest.raises(Unsupported, match="conditional"):
        producer(unconditional)


def test_a_retry_policy_is_followed_before_the_producers_own_patience() -> None:
    slept: list[float] = []
    left = [3]

    def plan(operation: Operation) -> Fault | None:
        if operation.key.startswith("objects/") and left[0]:
            left[0] -= 1
            return Fault(before=Unavailable("a moment"))
        return None

    inner = MemoryBackend()
    new_store(inner)
    store = Store.open(
        FaultBackend(inner, plan), retry=RetryPolicy(deadline=5), runtime=Runtime(sleep=slept.append)
    )
    with producer(store) as out:
        out.publish(small(), step=0).result(0)
    assert len(slept) == 3


def test_a_publish_that_fails_before_it_is_queued_leaves_the_base_as_it_was() -> None:
    refuse = [False]

    def random_bytes(count: int) -> bytes:
        if refuse[0]:
            raise OSError("no entropy")
        return os.urandom(count)

    backend = MemoryBackend()
    new_store(backend)
    store = Store.open(backend, retry=NO_RETRY, runtime=Runtime(random_bytes=random_bytes))
    with producer(store) as out:
        out.publish(small(), step=0)
        refuse[0] = True
        with pytest.raises(OSError, match="no entropy"):
            out.publish(stepped(small(), 1), step=1)
        refuse[0] = False
        third = {**small(), "norm": stepped(small(), 1)["norm"]}
        out.publish(third, step=2)
    assert read(store) == all_bits(third)


# --- Interrupts and forks ----------------------------------------------------------------------------


class Interrupting:
    """A queue that interrupts whoever has got or put something."""

    def __init__(self, inner: Any, *, takes: bool) -> None:
        self._inner, self._takes = inner, takes

    def get(self, timeout: float | None = None) -> object:
        item = self._inner.get(timeout=timeout)
        if timeout is not None:
            raise KeyboardInterrupt
        return item

    def put(self, item: object) -> None:
        if item is None or self._takes:
            self._inner.put(item)
        if item is not None:
            raise KeyboardInterrupt


def _interrupted(*args: object) -> None:
    raise KeyboardInterrupt


def _interrupt(patched: pytest.MonkeyPatch, pipeline: Pipeline, where: str) -> None:
    match where:
        case "room":
            patched.setattr(pipeline, "_room", Interrupting(pipeline._room, takes=True))
        case "pool":
            patched.setattr(pipeline._pool, "submit", _interrupted)
        case _:
            patched.setattr(pipeline, "_jobs", Interrupting(pipeline._jobs, takes=where == "queued"))


@pytest.mark.parametrize("method", ["publish", "reset"])
@pytest.mark.parametrize("where", ["room", "pool", "queue", "queued"])
def test_an_interrupt_in_a_publish_closes_the_producer_and_hangs_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch, where: str, method: str
) -> None:
    out = producer(store, workers=Workers(2), depth=1)
    out.publish(small(), step=0).result(10)
    pipeline = out._pipeline
    assert pipeline is not None

    with monkeypatch.context() as patched:
        _interrupt(patched, pipeline, where)
        with pytest.raises(KeyboardInterrupt):
            getattr(out, method)(small(1), step=1)
    refused: list[BaseException] = []

    def later() -> None:
        for call in (out.publish, out.reset, out.publish):
            try:
                call(small(2), step=2)
            except Broken as error:
                refused.append(error)
        out.close()

    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert ["KeyboardInterrupt. Close it and open a new one" in str(error) for error in refused] == [True] * 3
    assert read(store) == all_bits(small(1) if where == "queued" else small())
    with producer(store) as again:
        again.publish(small(3), step=3)
    assert read(store) == all_bits(small(3))


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_while_the_base_moves_closes_the_producer(
    store: Store, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    out = producer(store, workers=Workers(threads))
    waiting = out.publish(small(), step=0)
    diff = kernels.steps_diff

    def interrupted(*args: Any) -> Found:
        diff(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "steps_diff", interrupted)
        with pytest.raises(KeyboardInterrupt):
            out.publish(small(1), step=1)
    with pytest.raises(Broken):
        out.publish(small(2), step=2)
    out.close()
    assert waiting.result(10).version == 1
    assert read(store) == all_bits(small())


@pytest.mark.parametrize("threads", [0, 2])
def test_a_forked_child_is_told_that_it_cannot_publish(
    store: Store, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    with producer(store, workers=Workers(threads)) as out:
        out.publish(small(), step=0).result(10)
        here = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: here + 1)
            for method in (out.publish, out.reset):
                with pytest.raises(Broken, match="forked"):
                    method(small(1), step=1)
            out.close()
        assert out.publish(small(1), step=1).result(10).version == 2
    assert read(store) == all_bits(small(1))
