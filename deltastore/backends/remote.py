"""What drivers of remote storage share: roots, clients per process, bodies in parts, checked listings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from deltastore.backends.base import ObjectInfo, check_range, cut
from deltastore.backends.retry import RetryPolicy, call
from deltastore.errors import BadKey, BadURL, Unavailable
from deltastore.protocol import keys

T = TypeVar("T")

PART: Final = 8 << 20
"""Bytes of a part: large bodies come and go in parts of this size, several at once."""
PARALLEL: Final = 8
"""Parts of one backend that are on their way at once; so many times `PART` bytes is what they hold."""

_RETRY: Final = RetryPolicy(deadline=30.0)
_BAD_PREFIX: Final = re.compile(r"(^|/)(\.\.?)?(/|$)|[\\\x00-\x1f\x7f?#]")


@dataclass(frozen=True, slots=True)
class Root:
    """Where a store lies in remote storage: what is in front of its keys.

    Attributes:
        scheme: That of the URL.
        bucket: What holds it, as the storage calls it.
        prefix: Empty, or what stands before every key, with a slash at its end.
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Root:
        """Reads `scheme://bucket/prefix`; a slash at the end makes no difference.

        Raises:
            BadURL: No bucket, credentials in the URL, a query, or a path that is not in its plain form.
        """
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.removesuffix("/").partition("/")
        if "@" in bucket:
            raise BadURL(
                f"the {scheme} URL holds credentials", hint="Set them where its client looks for them"
            )
        if _BAD_PREFIX.search(bucket) or (prefix and _BAD_PREFIX.search(prefix)):
            raise BadURL(f"{url!r} names no place", hint=f"Write {scheme}://bucket/prefix")
        return cls(scheme.lower(), bucket, prefix and prefix + "/")

    @property
    def url(self) -> str:
        """The form that `Root.of` takes."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".removesuffix("/")

    def path(self, key: str) -> str:
        """What the storage calls an object.

        Raises:
            BadKey: It is no key.
        """
        return self.prefix + keys.check(key)

    def listed(self, found: Iterable[tuple[str, int, float]], *, start_after: str) -> Iterator[ObjectInfo]:
        """What a storage lists, as (name, size, Unix seconds), without what has no key or comes too early.

        Some order names by segment and not by byte; to all keys of the protocol that is the same (DS-BACK-4).

        Raises:
            Unavailable: It is out of order.
        """
        last = ""
        for name, size, modified in found:
            key = name.removeprefix(self.prefix)
            try:
                keys.check(key)
            except BadKey:
                continue
            if key <= last and key.split("/") <= last.split("/"):
                raise Unavailable(
                    f"{self.url} lists {key} after {last}",
                    hint="A store needs listings in the order of bytes",
                )
            last = key
            if key > start_after:
                yield ObjectInfo(key, size, modified)


class PerProcess(Generic[T]):
    """One client per process, made when it is first needed: connections do not survive a fork.

    Args:
        make: Makes a client.
        close: Releases it.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], None]) -> None:
        self._make = make
        self._close = close
        self._clients: dict[int, T] = {}

    def get(self) -> T:
        """That of this process. No lock: a thread that held one would be missing after a fork."""
        process = os.getpid()
        if (held := self._clients.get(process)) is not None:
            return held
        made = self._make()
        held = self._clients.setdefault(process, made)
        if held is not made:
            self._close(made)
        return held

    def close(self) -> None:
        """Releases that of this process; the next `get` makes another one."""
        held = self._clients.pop(os.getpid(), None)
        if held is not None:
            self._close(held)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an object that were read.

    Attributes:
        data: The bytes.
        total: Size of the whole object.
        tag: What the storage calls these contents of it.
    """

    data: bytes
    total: int
    tag: str


class Moved(Exception):
    """An object is no longer what the part before was read of: its other parts are of no use."""


Admit = Callable[[int], int]
"""Told the size of an object before its body is read: how many bytes to read. Raises what `cut` raises."""
Read = Callable[[int, int | None, str, Admit], Piece]
"""Reads bytes `[start, stop)` of the contents with a tag, or of any where it is empty. Raises `Moved`."""


class Parts:
    """Transfers of large bodies, several parts at once; a part that fails is tried again by itself.

    Args:
        retry: For how long.
    """

    def __init__(self, *, retry: RetryPolicy = _RETRY) -> None:
        self._retry = retry
        self._threads = PerProcess(
            lambda: ThreadPoolExecutor(PARALLEL, "deltastore-parts"), lambda pool: pool.shutdown()
        )

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """What the tasks return; none is running any more when one of them has failed for good."""
        pool = self._threads.get()
        running = [pool.submit(call, task, policy=self._retry) for task in tasks]
        try:
            return [one.result() for one in running]
        finally:
            for one in running:
                one.cancel()
            wait(running)

    def get(self, key: str, read: Read, *, start: int, stop: int | None, max_size: int) -> bytes:
        """See `Backend.get`; the first part says how many there are, the others are of the same contents."""
        check_range(key, start=start, stop=stop)
        try:
            return self._get(key, read, start=start, stop=stop, max_size=max_size)
        except Moved as error:
            what = f"{key} was written while it was read"
            raise Unavailable(what, hint="Read it again", key=key) from error

    def _get(self, key: str, read: Read, *, start: int, stop: int | None, max_size: int) -> bytes:
        def admit(total: int) -> int:
            return min(PART, cut(key, total, start=start, stop=stop, max_size=max_size)[1])

        first = read(start, start + PART if stop is None else min(stop, start + PART), "", admit)
        _, wanted = cut(key, first.total, start=start, stop=stop, max_size=max_size)
        if wanted <= PART:
            return first.data
        end = start + wanted
        spans = [(at, min(at + PART, end)) for at in range(start + PART, end, PART)]
        rest = self.run([partial(self._part, read, at, to, first.tag) for at, to in spans])
        return b"".join([first.data, *rest])

    def close(self) -> None:
        """Ends the threads."""
        self._threads.close()

    @staticmethod
    def _part(read: Read, start: int, stop: int, tag: str) -> bytes:
        return read(start, stop, tag, lambda _: stop - start).data
