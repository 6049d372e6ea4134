"""Behind a publish (spec, Writing): encode, check and upload shards side by side, then commit in order.

The queue is bounded and blocks. A transient error is tried again with the same bytes for as long as the
producer is open; any other error breaks the pipeline, and what waited in it fails. An interrupt of `submit`
closes the pipeline for new jobs only: whatever it left half done, nothing is built on it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from deltastore import threads
from deltastore.errors import Broken, Fenced, OutcomeUnknown, Throttled, Unavailable
from deltastore.parallel import Workers
from deltastore.producer.term import Content, Term
from deltastore.protocol.edges import Edge
from deltastore.protocol.records import Slot
from deltastore.shards import Shard
from deltastore.store import Store, VersionInfo

T = TypeVar("T")
_log = logging.getLogger(__name__)
_TRANSIENT = (Throttled, Unavailable, OutcomeUnknown)
_PAUSE = 0.5


class Publication:
    """A version on its way.

    Attributes:
        version: The number that it gets unless it fails.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self._future: Future[VersionInfo] = Future()

    def done(self) -> bool:
        """Whether it was committed or has failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> VersionInfo:
        """Waits for the commit.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: It is still on its way.
            Fenced: Another producer took over.
            Broken: An earlier version failed, and this one with it.
            DeltaStoreError: It failed itself.
        """
        return self._future.result(timeout)

    def settle(self, outcome: VersionInfo | BaseException) -> None:
        """Sets the outcome, once."""
        if isinstance(outcome, BaseException):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


@dataclass(slots=True)
class Job:
    """A publication and how it is made.

    Attributes:
        publication: What its caller holds.
        makes: One function per shard that encodes and checks it.
        content: The record's content, from the shards.
        reads_base: Whether encoding reads the producer's base, which must not move until then.
        encoded: Set when no shard is being encoded any more.
    """

    publication: Publication
    makes: Sequence[Callable[[], Shard]]
    content: Callable[[list[Shard]], Content]
    reads_base: bool
    encoded: threading.Event = field(default_factory=threading.Event)


class Pipeline:
    """The way of publications into the log.

    Args:
        store: Where objects go.
        term: Commits.
        workers: Shards on their way to the store at once; with 0 threads `submit` does everything itself.
        depth: Publications that may wait for their commit.
        committed: Called after each commit with its slot and embedded edge.
    """

    def __init__(
        self,
        store: Store,
        term: Term,
        *,
        workers: Workers,
        depth: int,
        committed: Callable[[Slot, Edge], None],
    ) -> None:
        self._store = store
        self._term = term
        self._committed = committed
        self._error: BaseException | None = None
        self._stopped: BaseException | None = None
        self._process = os.getpid()
        self._closing = threading.Event()
        self._last: Job | None = None
        self._inline = workers.threads == 0
        if not self._inline:
            # Tokens in a queue, not a semaphore: an interrupt cannot leave a lock of its behind.
            self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
            for _ in range(depth):
                self._room.put(None)
            self._jobs: queue.SimpleQueue[tuple[Job, list[Future[Shard]]] | None] = queue.SimpleQueue()
            self._pool = ThreadPoolExecutor(workers.threads, thread_name_prefix="deltastore-shard")
            self._thread = threading.Thread(target=self._run, name="deltastore-commit", daemon=True)
            self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process, which has none of the threads."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises if nothing more can be published.

        Raises:
            Fenced: Another producer took over.
            Broken: Anything else stopped it, or it belongs to the process that this one was forked from.
        """
        if self.forked:
            raise Broken(
                "this producer belongs to the process that this one was forked from",
                hint="Publish there, or open a new producer here",
            )
        if isinstance(self._error, Fenced):
            raise self._error
        error = self._error or self._stopped
        if error is not None:
            raise Broken(
                f"this producer stopped: {str(error) or type(error).__name__}",
                hint="Close it and open a new one; training weights are not touched",
            ) from error

    def stop(self, error: BaseException) -> None:
        """Takes no more jobs; what is queued already is still committed."""
        self._stopped = self._stopped or error

    def wait_encoded(self) -> None:
        """Waits until the base may move: nothing that is encoded from it is unfinished."""
        if self._last is not None and self._last.reads_base:
            self._last.encoded.wait()

    def submit(self, job: Job) -> None:
        """Takes a job; blocks while the queue is full.

        Raises:
            Broken: The pipeline is broken; the job was not taken.
        """
        try:
            if self._inline:
                self.check()
                self._finish(job, [partial(self._make, make) for make in job.makes])
                job.encoded.set()
                if self._error is not None and not isinstance(self._error, Exception):
                    raise self._error
            else:
                self._enqueue(job)
        except BaseException as error:
            # An interrupt may come between any two steps: stopped first, nobody waits for ever for the rest.
            self.stop(error)
            job.encoded.set()
            raise

    def _enqueue(self, job: Job) -> None:
        while True:
            self.check()
            with suppress(queue.Empty):
                self._room.get(timeout=_PAUSE)
                break
        try:
            self.check()
            left = _Countdown(len(job.makes), job.encoded.set)
            futures = [self._pool.submit(self._make, make, left) for make in job.makes]
            job.makes = ()  # with what they hold: it goes as it is encoded
        except BaseException:
            self._room.put(None)
            raise
        # From here on it is the committing thread's, which makes room again.
        self._jobs.put((job, futures))
        self._last = job

    def close(self, timeout: float | None) -> None:
        """Drains the queue and stops; what is not committed after `timeout` seconds fails."""
        if not self._inline and self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout)
            self._closing.set()
            self._thread.join()
            self._pool.shutdown()
        self._closing.set()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, futures = item
            self._finish(job, [future.result for future in futures])
            self._room.put(None)

    def _finish(self, job: Job, shards: Sequence[Callable[[], Shard]]) -> None:
        try:
            if self._error is not None:
                self.check()
            made = [shard() for shard in shards]
            content = job.content(made)
            slot = self._patiently(lambda: self._term.commit(content))
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of anything
            self._error = self._error or error
            job.encoded.set()
            job.publication.settle(error)
            return
        try:
            self._committed(slot, content.edge)
        except Exception:  # noqa: BLE001 - the version is committed, whatever goes wrong now
            _log.exception("after the commit of version %d", slot.version)
        finally:
            job.publication.settle(VersionInfo.of(slot))

    def _make(self, make: Callable[[], Shard], left: _Countdown | None = None) -> Shard:
        try:
            if self._error is not None:
                raise Broken("an earlier version failed")
            with threads.core():
                shard = make()
        finally:
            if left is not None:
                left.tick()
        self._patiently(lambda: self._store.put_object(shard.data))
        return replace(shard, data=b"")  # a record only needs to describe it

    def _patiently(self, operation: Callable[[], T]) -> T:
        """Repeats an operation with the same bytes while its error is transient and the producer open."""
        while True:
            try:
                return operation()
            except _TRANSIENT as error:
                if self._closing.is_set() or self._inline:
                    raise
                _log.warning("the store does not answer; trying on", extra={"error": str(error)})
                self._closing.wait(_PAUSE)


class _Countdown:
    """Calls back when so many ticks have come."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = count
        self._done = done
        self._lock = threading.Lock()
        if count == 0:
            done()

    def tick(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._done()
