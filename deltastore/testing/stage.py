"""Actors that stop before each operation until it is their turn (spec, Notes for implementers).

Each runs in a greenlet of its own; `explore` decides who goes on and what befalls the operation.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast

from deltastore.backends.base import Buffer, Capabilities, ObjectInfo, Put, check_all
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import Unavailable, Unsupported
from deltastore.runtime import Runtime
from deltastore.testing.faults import CrashNow, Operation, OperationName

EPOCH: Final = 1_700_000_000.0
"""When everything happens."""
WRITES: Final = frozenset({"put", "put_if_absent", "delete"})


class Mishap(StrEnum):
    """What can befall an operation."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LATE = "late"
    """The caller hears of no answer; the put arrives at any later time."""


UNSENT: Final = frozenset({Mishap.CRASH_BEFORE, Mishap.LOST_REQUEST, Mishap.LATE})
"""With these the operation does not happen, or not now."""


@dataclass(frozen=True, slots=True)
class Step:
    """One choice: whose operation is next, and what befalls it. A list of them is a schedule.

    Attributes:
        actor: Its name; that of a put under way is its sender's with `~` and a number.
        mishap: None lets the operation pass.
    """

    actor: str
    mishap: Mishap | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """What an actor said."""

    actor: str
    what: object


@dataclass(frozen=True, slots=True)
class Move:
    """An operation that was taken."""

    step: Step
    operation: Operation

    @property
    def writes(self) -> bool:
        """Whether it may have changed the storage."""
        return self.operation.name in WRITES and self.step.mishap not in UNSENT


class World:
    """What oracles look at.

    Attributes:
        storage: What is stored.
        moves: What was done to it, in order.
        notes: What the actors said, in order.
        crashed: Actors that are dead.
    """

    def __init__(self, storage: MemoryBackend) -> None:
        self.storage = storage
        self.moves: list[Move] = []
        self.notes: list[Note] = []
        self.crashed: set[str] = set()

    def said(self, kind: type[object]) -> list[Note]:
        """The notes of one type."""
        return [note for note in self.notes if isinstance(note.what, kind)]


@dataclass(frozen=True, slots=True)
class Stage:
    """What an actor is given.

    Attributes:
        name: The actor's.
        backend: The storage, as this actor reaches it.
        runtime: Its own time and randomness; sleeping takes no time.
        note: Tells the oracles something; what a dead actor says is not heard.
    """

    name: str
    backend: StepBackend
    runtime: Runtime
    note: Callable[[object], None]


Actor = Callable[[Stage], None]


class Player:
    """An actor in its greenlet.

    Attributes:
        waits: The operation that it stands before; None once it has ended.
        crashed: Whether it is dead.
    """

    def __init__(
        self,
        name: str,
        number: int,
        actor: Actor,
        *,
        world: World,
        send_late: Callable[[str, Operation, Callable[[], object]], None],
        quiet: tuple[str, ...],
    ) -> None:
        self.name = name
        self.waits: Operation | None = None
        self.crashed = False
        self.send_late = send_late
        self._notes = world.notes
        self._quiet = quiet
        stage = Stage(name, StepBackend(world.storage, self), _runtime(name, number), self._note)
        self._green = _greenlet(lambda _: actor(stage))

    def go(self, mishap: Mishap | None) -> None:
        """Lets it run up to its next operation, or to its end."""
        self.waits = None
        came = self._green.switch(mishap)
        self.waits = None if self._green.dead else cast(Operation, came)

    def stop(self, operation: Operation) -> Mishap | None:
        """Called inside of the actor: waits until it may go on."""
        if self.crashed:
            raise CrashNow
        if operation.key.startswith(self._quiet):
            return None
        return cast("Mishap | None", self._green.parent.switch(operation))

    def die(self) -> CrashNow:
        """Called inside of the actor."""
        self.crashed = True
        return CrashNow()

    def kill(self) -> None:
        """Ends it, unless it has ended."""
        self.crashed = True
        while not self._green.dead:
            with suppress(BaseException):  # what the dead say last is of no interest
                self._green.throw(CrashNow)

    def _note(self, what: object) -> None:
        if not self.crashed:
            self._notes.append(Note(self.name, what))


class StepBackend:
    """The storage as one actor reaches it: stops before each operation until it is that actor's turn."""

    def __init__(self, inner: MemoryBackend, player: Player) -> None:
        self._inner = inner
        self._player = player
        self._count = 0

    @property
    def url(self) -> str:
        """That of the storage."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """Those of the storage."""
        return self._inner.capabilities

    def put(self, key: str, data: Buffer) -> None:
        """See `Backend.put`."""
        kept = bytes(data)
        with self._operation("put", key, lambda: self._inner.put(key, kept)):
            self._inner.put(key, kept)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """See `Backend.put_if_absent`."""
        kept = bytes(data)
        with self._operation("put_if_absent", key, lambda: self._inner.put_if_absent(key, kept)):
            return self._inner.put_if_absent(key, kept)

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """See `Backend.get`."""
        with self._operation("get", key):
            return self._inner.get(key, max_size=max_size, start=start, stop=stop)

    def head(self, key: str) -> ObjectInfo:
        """See `Backend.head`."""
        with self._operation("head", key):
            return self._inner.head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Backend.list`."""
        with self._operation("list", prefix):
            found = [*self._inner.list(prefix, start_after=start_after)]
        yield from found

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`."""
        for key in check_all(keys):
            with self._operation("delete", key):
                self._inner.delete([key])

    def close(self) -> None:
        """Nothing to release."""

    @contextmanager
    def _operation(
        self, name: OperationName, key: str, deliver: Callable[[], object] | None = None
    ) -> Iterator[None]:
        operation = Operation(name, key, self._count)
        self._count += 1
        mishap = self._player.stop(operation)
        if mishap is Mishap.CRASH_BEFORE:
            raise self._player.die()
        if mishap is Mishap.LATE and deliver is not None:
            self._player.send_late(self._player.name, operation, deliver)
        if mishap in {Mishap.LOST_REQUEST, Mishap.LATE}:
            raise Unavailable(f"{name} {key}: no answer", key=key)
        yield
        if mishap is Mishap.CRASH_AFTER:
            raise self._player.die()
        if mishap is Mishap.LOST_REPLY:
            raise Unavailable(f"{name} {key}: no answer", key=key)


@dataclass(slots=True)
class _Time:
    """An actor's own clock, which only sleeping moves, and its own randomness."""

    name: str
    offset: float
    slept: float = 0.0
    drawn: int = 0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def random_bytes(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_128(f"{self.name} {self.drawn}".encode()).digest(count)


def _runtime(name: str, number: int) -> Runtime:
    time = _Time(name, float(number))
    return Runtime(
        now=lambda: EPOCH + time.offset + time.slept,
        monotonic=lambda: time.slept,
        sleep=time.sleep,
        random_bytes=time.random_bytes,
    )


class _Greenlet(Protocol):
    """What is used of a greenlet."""

    dead: bool
    parent: _Greenlet

    def switch(self, value: object) -> object: ...
    def throw(self, error: type[BaseException]) -> object: ...


def _greenlet(run: Callable[[object], object]) -> _Greenlet:
    try:
        module = importlib.import_module("greenlet")
    except ImportError as error:
        raise Unsupported(
            "exploring interleavings needs greenlet", hint="Install deltastore-rl with its extra 'dev'"
        ) from error
    return cast(_Greenlet, module.greenlet(run))
