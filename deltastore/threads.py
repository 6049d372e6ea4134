"""The threads that compute: the one place that knows how many there are, and that spreads work over them.

There are as many as cores, of which a thread that computes holds one. Whoever has several pieces of work does
them itself, in order, and is helped by as many threads as there are idle cores. It never waits for help, only
for a piece that another has begun: so work may be spread inside of spread work, and cannot deadlock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

PIECE: Final = 8 << 20
"""Bytes of a piece of work, about; much smaller ones cost more than they save."""


def count() -> int:
    """How many threads compute at once: `DELTASTORE_THREADS`, or all cores of this process."""
    asked = os.environ.get("DELTASTORE_THREADS", "")
    if asked.isdecimal():
        return max(1, int(asked))
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Here(threading.local):
    """What a thread is doing: whether it holds a core, and whether it must do everything itself."""

    core = False
    alone = False


class _Cores:
    """Cores that are held. Only threads of ours take them, which no interrupt can stop half way."""

    def __init__(self) -> None:
        self._held = 0
        self._changed = threading.Condition()

    def take(self, most: int) -> bool:
        """Takes one if fewer than `most` are held."""
        with self._changed:
            free = self._held < most
            self._held += free
            return free

    def wait(self) -> None:
        """Takes one as soon as one is idle."""
        with self._changed:
            self._changed.wait_for(lambda: self._held < count())
            self._held += 1

    def give(self) -> None:
        """Gives one back."""
        with self._changed:
            self._held -= 1
            self._changed.notify()


_here = _Here()
_cores = _Cores()


@contextmanager
def alone() -> Iterator[None]:
    """All work in here is done by the calling thread, in order: for simulators."""
    before, _here.alone = _here.alone, True
    try:
        yield
    finally:
        _here.alone = before


@contextmanager
def core() -> Iterator[None]:
    """Waits for an idle core and holds it: for threads that wait for stores, and compute in between.

    Nothing in here may wait for another thread that wants a core.
    """
    if _here.core or _here.alone:
        yield
        return
    cores = _cores
    cores.wait()
    _here.core = True
    try:
        yield
    finally:
        _here.core = False
        cores.give()


def spread(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Results in the order of the items; errors as for `flow`."""
    listed = list(items)
    if len(listed) < 2:
        return [work(item) for item in listed]
    return list(flow(work, listed, budget=len(listed)))


def groups(items: Iterable[T], size: Callable[[T], int], *, most: int = PIECE) -> Iterator[list[T]]:
    """Items in order, as many together as have `most` bytes, about."""
    group: list[T] = []
    held = 0
    for item in items:
        group.append(item)
        held += size(item)
        if held >= most:
            yield group
            group, held = [], 0
    if group:
        yield group


def flow(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    budget: int,
    size: Callable[[T], int] = lambda _: 1,
) -> Generator[R, None, None]:
    """Results in the order of the items, which are drawn in the caller's thread, ahead of the results.

    However it ends, by an error, an interrupt or `close`, no work goes on after that, and what was not begun
    never is. Of the errors of several items that of the first is raised, as if they had been done in order.

    Args:
        work: What to do, in any thread.
        items: To what.
        budget: Size of the items that are drawn and whose results have not been taken.
        size: Of an item; 1 by default.
    """
    if _here.alone or count() == 1 or budget == 0:
        yield from map(work, items)
        return
    task = _Task(work)
    sizes: deque[int] = deque()
    held = 0
    try:
        for item in items:
            sizes.append(size(item))
            held += sizes[-1]
            task.put(item)
            while sizes and held >= budget:
                yield task.take()
                held -= sizes.popleft()
        for _ in sizes:
            yield task.take()
    finally:
        task.stop()


class _Task(Generic[T, R]):
    """Items in order, and what became of them.

    The caller's thread may be interrupted between any two steps. So it shares nothing with its helpers but
    containers whose operations are atomic: a lock that it leaves behind would stop them all.
    """

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self._waiting: deque[tuple[int, T]] = deque()
        self._results: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}
        self._begun: list[None] = []
        self._ended: list[None] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._gone: list[None] = []
        self._put = self._taken = self._called = 0
        # Its caller computes as well, whether or not it holds a core.
        self._most = count() if _here.core else count() - 1

    def put(self, item: T) -> None:
        """Adds an item, and calls for help where not all of it is here already."""
        self._waiting.append((self._put, item))
        self._put += 1
        if self._called - len(self._gone) < count() - 1:
            with suppress(RuntimeError):  # the interpreter ends
                _pool(count()).submit(self._help)
                self._called += 1

    def take(self) -> R:
        """The result of the next item; the caller works until it is there."""
        at = self._taken
        while at not in self._results:
            if self._errors and min(self._errors) <= at:
                raise self._errors[min(self._errors)]
            if not self._step():
                self._bell.get()
        self._taken += 1
        return self._results.pop(at)

    def stop(self) -> None:
        """Begins nothing more, and returns when nothing is going on, whatever interrupts it."""
        interrupt: BaseException | None = None
        while True:
            try:
                self._waiting.clear()
                while len(self._ended) < len(self._begun):
                    self._bell.get()
                break
            except BaseException as error:  # noqa: BLE001 - helpers may still be writing
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _help(self) -> None:
        if not _cores.take(self._most):
            self._gone.append(None)
            return
        _here.core = True
        # Before it looks for an item: whoever empties the queue sees all who may have taken one.
        self._begun.append(None)
        try:
            while self._step():
                self._bell.put(None)
        finally:
            _here.core = False
            _cores.give()
            self._gone.append(None)
            self._ended.append(None)
            self._bell.put(None)

    def _step(self) -> bool:
        """Does the first item that waits, if there is one."""
        try:
            at, item = self._waiting.popleft()
        except IndexError:
            return False
        try:
            self._results[at] = self._work(item)
        except BaseException as error:
            self._errors[at] = error
            self._waiting.clear()
            if not isinstance(error, Exception):
                raise
        return True


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="deltastore-core")


def _forget() -> None:
    """A forked process has none of the threads, and nobody who would give cores back."""
    global _cores  # noqa: PLW0603 - of this process
    _cores = _Cores()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_forget)
