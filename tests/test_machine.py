"""A producer, its crashes, consumers and damage, in any order, against a dictionary of what each step was.

Steps are never used twice, so that the bits that a version must have follow from the step in its record,
whether its publish was acknowledged or died on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import HASTY, NO_RETRY, all_bits, new_store, producer, reopened

from deltastore import Consumer, MaxChain, Producer, Staged, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import Conflict, NoPath, Poisoned, SchemaMismatch, UsageError
from deltastore.maintenance.anchors import add_anchor
from deltastore.parallel import INLINE
from deltastore.tensors.host import HostTensor
from deltastore.testing import CrashNow, Fault, FaultBackend, Operation, flip_bit

Bits = dict[str, bytes]
Weights = dict[str, HostTensor]

SHAPES = {"a": ("BF16", (5, 7), 2), "b": ("F32", (9,), 4), "c": ("U8", (21,), 1), "d": ("F64", (3,), 8)}
CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.binary(min_size=8, max_size=8)))
CRASH = st.none() | st.tuples(st.integers(1, 45), st.booleans())


def weights(names: str) -> Weights:
    """Zeros."""
    found = {}
    for name in names:
        dtype, shape, width = SHAPES[name]
        found[name] = HostTensor(dtype, shape, np.zeros(int(np.prod(shape)), f"<u{width}"))
    return found


class Server:
    """A consumer and what its memory was before its first commit."""

    def __init__(self, store: Store, held: Weights) -> None:
        self.held = held
        self.before = all_bits(held.items())
        self.reader = Consumer(store, held, workers=INLINE, full_check_every=None)
        self.staged: list[Staged] = []


class Machine(RuleBasedStateMachine):
    """The world."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MemoryBackend()
        self.store = new_store(self.inner)
        self.by_step: dict[int, Bits] = {}
        self.acknowledged: list[int] = []
        self.step = 0
        self.weights = weights("ab")
        self.out: Producer | None = None
        self.crash: tuple[int, bool] | None = None
        self.servers: list[Server] = []
        self.damaged = False

    # --- The producer -----------------------------------------------------------------------------------

    @rule(changes=CHANGES, crash=CRASH, fill=st.none() | st.integers(0, 255))
    def publish(self, changes: list[tuple[str, int, bytes]], crash: Any, fill: int | None) -> None:
        self._change(changes, fill)
        self._publish("publish", crash)

    @rule(seed=st.integers(0, 2**32), steps=st.integers(2, 4))
    def publish_a_few_small_steps(self, seed: int, steps: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            for host in self.weights.values():
                where = rng.choice(host.lanes.size, 3, replace=False)
                host.lanes[where] += rng.integers(1, 4, 3).astype(host.lanes.dtype)
            self._publish("publish", None)

    @rule(changes=CHANGES, crash=CRASH)
    def reset(self, changes: list[tuple[str, int, bytes]], crash: Any) -> None:
        self._change(changes, None)
        self._publish("reset", crash)

    @rule(names=st.sets(st.sampled_from("abcd"), min_size=1), crash=CRASH)
    def new_schema(self, names: set[str], crash: Any) -> None:
        fresh = weights("".join(sorted(names)))
        self.weights = {name: self.weights.get(name, host) for name, host in fresh.items()}
        self._publish("publish", crash, new_schema=True)

    @rule()
    def kill_the_producer(self) -> None:
        self.out = None

    @rule()
    def close_the_producer(self) -> None:
        if self.out is not None:
            self.out.close()
        self.out = None

    def _change(self, changes: list[tuple[str, int, bytes]], fill: int | None) -> None:
        for name, at, data in changes:
            if name in self.weights:
                lanes = self.weights[name].lanes
                lanes[at % lanes.size] = np.frombuffer(data, lanes.dtype)[0]
        if fill is not None:
            for host in self.weights.values():
                host.lanes.view(np.uint8)[:] = fill

    def _publish(self, method: str, crash: tuple[int, bool] | None, **options: Any) -> None:
        if self.out is None:
            self.out = self._open()
            known = [s for s in (self._newest_names(),) if s is not None]
            if known and known[0] != set(self.weights):
                method, options = "publish", {"new_schema": True}
        self.step += 1
        self.crash = crash
        self.by_step[self.step] = all_bits(self.weights.items())
        given = {n: HostTensor(h.dtype, h.shape, h.lanes.copy()) for n, h in self.weights.items()}
        try:
            publication = getattr(self.out, method)(given, step=self.step, **options)
            for host in given.values():
                host.lanes.view(np.uint8)[:] = 0x5A
            publication.result(0)
            self.acknowledged.append(self.step)
        except CrashNow:
            self.out = None
        self.crash = None

    def _open(self) -> Producer:
        dead = [False]

        def plan(_: Operation) -> Fault | None:
            if dead[0]:
                raise CrashNow
            if self.crash is not None:
                left, before = self.crash
                self.crash = (left - 1, before)
                if left == 1:
                    dead[0] = True
                    return Fault(before=CrashNow()) if before else Fault(after=CrashNow())
            return None

        store = Store.open(FaultBackend(self.inner, plan), retry=NO_RETRY, runtime=HASTY)
        codec = ("ulp", "abs", "coo")[self.step % 3]
        anchors = MaxChain(3) if self.step % 2 else None
        return producer(store, codec=codec, anchors=anchors, shard_bytes=40, on_nonfinite="allow")

    def _newest_names(self) -> set[str] | None:
        newest = self.store.log.newest()
        if newest is None or newest.record.schema is None:
            return None
        return {tensor.name for tensor in self.store.schema(newest.record.schema).tensors}

    # --- Consumers --------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.servers) < 4)
    @rule(fill=st.integers(0, 255))
    def join(self, fill: int) -> None:
        held = weights("".join(sorted(self._newest_names() or self.weights)))
        for host in held.values():
            host.lanes.view(np.uint8)[:] = fill
        self.servers.append(Server(reopened(self.store), held))

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        self.servers.pop(which % len(self.servers))

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 3))
    def update(self, which: int) -> None:
        server = self._server(which)
        with self._excused(server):
            server.reader.update()

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 3), version=st.none() | st.integers(0, 30))
    def stage(self, which: int, version: int | None) -> None:
        server = self._server(which)
        before = all_bits(server.held.items())
        newest = self.store.log.newest_number()
        if newest is not None and self.store.find(version=newest).state is not None:
            wanted = None if version is None else version % (newest + 1)
            if wanted is None or self.store.find(version=wanted).state is not None:
                with self._excused(server):
                    server.staged.append(server.reader.stage(wanted))
        assert all_bits(server.held.items()) == before

    @precondition(lambda self: any(server.staged for server in self.servers))
    @rule(which=st.integers(0, 3), at=st.integers(0, 9), keep=st.booleans())
    def commit(self, which: int, at: int, keep: bool) -> None:
        server = self._server(which)
        if server.staged:
            staged = server.staged[at % len(server.staged)]
            before = all_bits(server.held.items())
            try:
                staged.commit()
            except Conflict:
                assert all_bits(server.held.items()) == before
            else:
                assert all_bits(server.held.items()) == self._expected(staged.version)
            if not keep:
                server.staged.remove(staged)

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, 3), bit=st.integers(0, 10_000))
    def a_bit_of_memory_flips_and_is_found(self, which: int, bit: int) -> None:
        server = self._server(which)
        if server.reader.version is None:
            return
        host = list(server.held.values())[bit % len(server.held)]
        raw = host.lanes.view(np.uint8)
        raw[bit // 8 % raw.size] ^= 1 << bit % 8
        with pytest.raises(Poisoned):
            server.reader.verify()
        server.before = all_bits(server.held.items())

    def _server(self, which: int) -> Server:
        return self.servers[which % len(self.servers)]

    def _excused(self, server: Server) -> Any:
        """Errors that the world has given cause for."""
        excuses: list[type[Exception]] = [UsageError]  # going down
        if self.damaged:
            excuses.append(NoPath)
        if self._newest_names() != set(server.held):
            excuses.append(SchemaMismatch)
        return _Excused(tuple(excuses))

    # --- The store --------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 10_000), flip=st.booleans(), bit=st.integers(0, 10_000))
    def an_object_is_damaged(self, which: int, flip: bool, bit: int) -> None:
        schemas = {
            slot.record.schema.sha256
            for v in range((self.store.log.newest_number() or -1) + 1)
            if (slot := self.store.log.slot(v)) is not None and slot.record.schema is not None
        }
        keys = [i.key for p in ("objects/", "edges/") for i in self.inner.list(p)]
        keys = [key for key in keys if key.rpartition("/")[2] not in schemas]
        if keys and which % 3 == 0:
            key = keys[which // 3 % len(keys)]
            if flip:
                data = self.inner.get(key, max_size=1 << 20)
                self.inner.put(key, flip_bit(bit % (8 * len(data)))(data))
            else:
                self.inner.delete([key])
            self.damaged = True

    @rule(version=st.integers(0, 60))
    def an_anchor_is_added(self, version: int) -> None:
        newest = self.store.log.newest_number()
        if newest is None:
            return
        slot = self.store.log.require(version % (newest + 1))
        if slot.record.state is not None:
            try:
                add_anchor(self.store, slot, workers=INLINE)
            except NoPath:
                assert self.damaged

    # --- What must hold ---------------------------------------------------------------------------------

    def _expected(self, version: int) -> Bits:
        while (step := self.store.find(version=version).step) is None:
            version -= 1
        return self.by_step[step]

    @invariant()
    def servers_hold_what_they_say(self) -> None:
        for server in self.servers:
            version = server.reader.version
            held = all_bits(server.held.items())
            assert held == (server.before if version is None else self._expected(version))

    def teardown(self) -> None:
        newest = self.store.log.newest_number()
        steps = []
        reader = Consumer(reopened(self.store), workers=INLINE)
        for version in range((newest or -1) + 1):
            info = self.store.find(version=version)
            if info.step is not None:
                steps.append(info.step)
            if info.state is not None:
                try:
                    assert all_bits(reader.host_tensors(version)) == self._expected(version)
                except NoPath:
                    assert self.damaged
        assert set(self.acknowledged) <= set(steps)
        assert steps == sorted(steps)


class _Excused:
    """Lets some errors pass."""

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=35,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestMachine = pytest.mark.filterwarnings("default")(Machine.TestCase)
