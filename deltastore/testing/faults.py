"""Faults on demand (spec, Notes for implementers): a backend that fails, loses replies or corrupts.

    backend = FaultBackend(MemoryBackend(), lambda op: LOST if op.name == "put" else None)

What code does when its storage misbehaves is tested by wrapping any backend and deciding, operation by
operation, what is to go wrong. `backend.operations` says afterwards what was asked of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from deltastore.backends.base import Backend, Buffer, Capabilities, ObjectInfo, Put, check_all

OperationName = Literal["put", "put_if_absent", "get", "head", "list", "delete"]


class CrashNow(BaseException):
    """Simulated death of the process: raise it from a plan, catch it where the test plays the world.

    Not an `Exception`, so that no handler of the code under test survives its own death. Its `finally`
    blocks still run; what they ask of a backend is for the plan to refuse.
    """


@dataclass(frozen=True, slots=True)
class Operation:
    """One request to the backend.

    Attributes:
        name: The method.
        key: What it is about; the prefix of a listing. A delete of many keys is one operation for each.
        index: How many operations came before it on this `FaultBackend`.
    """

    name: OperationName
    key: str
    index: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with an operation.

    Attributes:
        before: Raised in place of the operation, which does not happen.
        after: Raised after the operation happened: its reply is lost. A listing hands out all that it
            has first, and fails where it would have ended.
        alter: Applied to what a `get` returns.
    """

    before: BaseException | None = None
    after: BaseException | None = None
    alter: Callable[[bytes], bytes] | None = None


Plan = Callable[[Operation], Fault | None]


class FaultBackend:
    """Any backend, with faults where the plan says so.

    Args:
        inner: What does the work.
        plan: Asked before every operation; None lets it pass.
    """

    def __init__(self, inner: Backend, plan: Plan = lambda _: None) -> None:
        self._inner = inner
        self._plan = plan
        self._operations: list[Operation] = []
        self._lock = threading.Lock()

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations so far, in the order in which they began."""
        return tuple(self._operations)

    @property
    def url(self) -> str:
        """That of the inner backend."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner backend."""
        return self._inner.capabilities

    def put(self, key: str, data: Buffer) -> None:
        """See `Backend.put`."""
        with self._operation("put", key):
            self._inner.put(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """See `Backend.put_if_absent`."""
        with self._operation("put_if_absent", key):
            return self._inner.put_if_absent(key, data)

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """See `Backend.get`."""
        with self._operation("get", key) as fault:
            data = self._inner.get(key, max_size=max_size, start=start, stop=stop)
        return fault.alter(data) if fault.alter else data

    def head(self, key: str) -> ObjectInfo:
        """See `Backend.head`."""
        with self._operation("head", key):
            return self._inner.head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Backend.list`; the operation begins with the first step."""
        return self._listing(prefix, self._inner.list(prefix, start_after=start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`; any of the single deletes can be the one that fails."""
        for key in check_all(keys):
            with self._operation("delete", key):
                self._inner.delete([key])

    def close(self) -> None:
        """Closes the inner backend; never fails on purpose."""
        self._inner.close()

    def _listing(self, prefix: str, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        with self._operation("list", prefix):
            yield from found

    @contextmanager
    def _operation(self, name: OperationName, key: str) -> Iterator[Fault]:
        with self._lock:
            operation = Operation(name, key, len(self._operations))
            self._operations.append(operation)
        fault = self._plan(operation) or Fault()
        if fault.before is not None:
            raise fault.before
        yield fault
        if fault.after is not None:
            raise fault.after


def flip_bit(position: int = 0) -> Callable[[bytes], bytes]:
    """For `Fault.alter`: turns over one bit, counted from the start; of nothing it leaves nothing."""

    def alter(data: bytes) -> bytes:
        altered = bytearray(data)
        if altered:
            altered[position // 8 % len(altered)] ^= 1 << position % 8
        return bytes(altered)

    return alter


def truncate(size: int) -> Callable[[bytes], bytes]:
    """For `Fault.alter`: keeps the first `size` bytes."""
    return lambda data: data[:size]
