"""What a backend really does (spec, Storage): its contract tried out on a few small objects under `status/`.

What a driver declares is a claim; a proxy, a cache or an old server in between may break it. The objects are
named at random and deleted again, and what a crash leaves of them is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from deltastore.backends.base import Backend, ObjectInfo, Put
from deltastore.backends.retry import RetryPolicy, call
from deltastore.errors import BackendError, DeltaStoreError, LimitExceeded, NotFound
from deltastore.protocol import keys
from deltastore.runtime import SYSTEM, Runtime

T = TypeVar("T")

SKEW: Final = 30.0
"""Seconds by which two clocks may differ before it is worth a warning."""

_PATIENCE: Final = RetryPolicy(deadline=10.0)
_BODY: Final = bytes(range(256))
_MOST: Final = 4096


class Verdict(StrEnum):
    """What a check came to."""

    PASS = "pass"  # noqa: S105 (the check has passed; it is no password)
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        verdict: What it came to.
        detail: What was seen, and what follows from it.
        unreachable: It failed because nothing could be asked, not because the answer was wrong.
    """

    name: str
    verdict: Verdict
    detail: str
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe has found.

    Attributes:
        url: Root of the backend.
        findings: In the order of the checks; those after an unreachable one are missing.
    """

    url: str
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing has failed; there may be warnings."""
        return all(finding.verdict is not Verdict.FAIL for finding in self.findings)


def probe(backend: Backend, *, runtime: Runtime = SYSTEM, retry: RetryPolicy = _PATIENCE) -> ProbeReport:
    """Tries out what a store relies on: about twenty requests, all of them small.

    Whatever goes wrong is a finding; nothing is raised but for faults of the caller's own.

    Args:
        backend: What to try.
        runtime: Time and randomness.
        retry: For the operations that may be repeated.
    """
    return ProbeReport(backend.url, tuple(_Probe(backend, runtime, retry).run()))


_Outcome = tuple[Verdict, str]


class _Probe:
    def __init__(self, backend: Backend, runtime: Runtime, retry: RetryPolicy) -> None:
        self._backend = backend
        self._declared = backend.capabilities
        self._runtime = runtime
        self._retry = retry
        self._prefix = keys.status(f"probe-{runtime.random_bytes(8).hex()}")
        self._first = f"{self._prefix}-a"
        self._second = f"{self._prefix}-b"

    def run(self) -> Iterator[Finding]:
        checks: dict[str, Callable[[], _Outcome]] = {
            "conditional create": self._conditional_create,
            "read after write": self._read_after_write,
            "listing": self._listing,
            "ranged get": self._ranged_get,
            "size limit": self._size_limit,
            "clock": self._clock,
            "delete": self._delete,
        }
        try:
            for name, check in checks.items():
                finding = _finding(name, check)
                yield finding
                if finding.unreachable:
                    return
        finally:
            with suppress(DeltaStoreError):
                self._backend.delete([self._first, self._second])

    # --- The checks -------------------------------------------------------------------------------------

    def _conditional_create(self) -> _Outcome:
        if not self._declared.put_if_absent:
            self._do(partial(self._backend.put, self._first, b"first"))
            return Verdict.WARN, "not declared: stores here have a single writer"
        if self._backend.put_if_absent(self._first, b"first") is not Put.CREATED:
            return Verdict.FAIL, "a new key was said to exist"
        if self._backend.put_if_absent(self._first, b"second") is not Put.EXISTS:
            return (
                Verdict.FAIL,
                "one key was created twice: two producers would both commit",
            )
        if self._get(self._first) != b"first":
            return Verdict.FAIL, "a create that was refused has overwritten the object nonetheless"
        return Verdict.PASS, "created once, refused the second time"

    def _read_after_write(self) -> _Outcome:
        with suppress(NotFound):
            self._get(self._second)
            return Verdict.FAIL, "a key that was never written has an object"
        for data in (b"before", _BODY):
            self._do(partial(self._backend.put, self._second, data))
            try:
                found, size = self._get(self._second), self._head(self._second).size
            except NotFound:
                return (
                    Verdict.FAIL,
                    "an object is absent right after its put: a cache in front?",
                )
            if found != data or size != len(data):
                return Verdict.FAIL, "other bytes than those of the last put were read"
        return Verdict.PASS, "absent, then there, then overwritten, each seen at once"

    def _listing(self) -> _Outcome:
        found = self._do(partial(self._listed, self._prefix))
        rest = self._do(partial(self._listed, self._first))
        if found == [self._first, self._second] and rest == [self._second]:
            return Verdict.PASS, "new objects are listed at once, in order, after where it is told to start"
        missing = {self._first, self._second} - set(found)
        if missing and not self._declared.strong_list:
            return Verdict.WARN, "new objects are not listed yet; it is not declared that they are"
        what = "misses an object that is there" if missing else "has keys out of order or before its start"
        return Verdict.FAIL, f"a listing {what}: anchors would be overlooked, and garbage misjudged"

    def _ranged_get(self) -> _Outcome:
        ranges = ((3, 7), (250, 999), (999, 1000))
        for start, stop in ranges:
            read = partial(self._backend.get, self._second, max_size=stop - start, start=start, stop=stop)
            if self._do(read) != _BODY[start:stop]:
                return Verdict.FAIL, f"bytes {start} to {stop} of an object came out as others"
        how = "" if self._declared.ranged_get else ", by reading all of the object"
        return Verdict.PASS, f"inside, across and past the end{how}"

    def _size_limit(self) -> _Outcome:
        try:
            self._do(partial(self._backend.get, self._second, max_size=len(_BODY) - 1))
        except LimitExceeded:
            return Verdict.PASS, "an object that is too large is refused"
        return Verdict.FAIL, "an object over the limit was read: a hostile one could fill the memory"

    def _clock(self) -> _Outcome:
        before = self._runtime.now()
        self._do(partial(self._backend.put, self._second, _BODY))
        after = self._runtime.now()
        modified = self._head(self._second).modified
        skew = min(0.0, modified - before) + max(0.0, modified - after)
        seen = f"the store's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this host's"
        if not self._declared.server_time:
            return Verdict.WARN, f"not declared to be one clock for all writers; {seen}"
        if abs(skew) > SKEW:
            return Verdict.WARN, f"{seen}: ages are shown wrongly, nothing else depends on it"
        return Verdict.PASS, f"within {max(abs(skew), 0.1):.1f} s of this host's"

    def _delete(self) -> _Outcome:
        names = [self._first, self._second]
        for _ in range(2):
            self._do(partial(self._backend.delete, names))
        for key in names:
            with suppress(NotFound):
                self._head(key)
                return Verdict.FAIL, "an object is still there after it was deleted"
        return Verdict.PASS, "gone at once; deleting again is no error"

    # --- Operations -------------------------------------------------------------------------------------

    def _listed(self, start_after: str) -> list[str]:
        """Keys of the probe after one of them; stops at the first foreign one, the folder may be large."""
        found = []
        for info in self._backend.list(keys.STATUS, start_after=start_after):
            found.append(info.key)
            if not info.key.startswith(self._prefix):
                return found if info.key < self._prefix else found[:-1]
        return found

    def _get(self, key: str) -> bytes:
        return self._do(partial(self._backend.get, key, max_size=_MOST))

    def _head(self, key: str) -> ObjectInfo:
        return self._do(partial(self._backend.head, key))

    def _do(self, operation: Callable[[], T]) -> T:
        return call(operation, policy=self._retry, runtime=self._runtime)


def _finding(name: str, check: Callable[[], _Outcome]) -> Finding:
    try:
        verdict, detail = check()
    except DeltaStoreError as error:
        unreachable = isinstance(error, BackendError) and not isinstance(error, NotFound)
        return Finding(name, Verdict.FAIL, f"{type(error).__name__}: {error}", unreachable)
    return Finding(name, verdict, detail)
