"""Waiting for stores side by side, with few in flight; inline where that would spoil determinism.

Computing in between is for `threads`: whoever works here takes one of its cores for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from deltastore import threads
from deltastore.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Workers:
    """How much to do at once.

    Attributes:
        threads: Items in flight; 0 does one after the other in the caller's own thread, for simulators.
    """

    threads: int = 4

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise UsageError(f"{self.threads} threads cannot work", hint="0 works in the caller's own thread")

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in order; at most `threads` items are begun and not yet taken.

        The first error is raised in its turn, after the items in flight have ended.
        """
        if self.threads == 0:
            for item in items:
                with self.scope():
                    result = work(item)
                yield result
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="deltastore") as pool:
            flying: deque[Future[R]] = deque()
            try:
                for item in items:
                    flying.append(pool.submit(work, item))
                    if len(flying) >= self.threads:
                        yield flying.popleft().result()
                while flying:
                    yield flying.popleft().result()
            finally:
                for future in flying:
                    future.cancel()

    def scope(self) -> AbstractContextManager[None]:
        """What is computed in here, is computed in the caller's own thread where there are no others."""
        return nullcontext() if self.threads else threads.alone()


DEFAULT = Workers()
INLINE = Workers(threads=0)
