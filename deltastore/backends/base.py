"""What a store needs of its storage (spec, Storage): one protocol that every driver implements.

The only primitive that safety rests on is `put_if_absent`; the rest is plain object storage. Drivers
map foreign errors to those of `deltastore.errors` at their edge and do not retry by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deltastore.errors import LimitExceeded, UsageError
from deltastore.protocol import keys

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object.

    Attributes:
        key: Its key, relative to the root of the store.
        size: Its length in bytes.
        modified: When it was last written, in Unix seconds by the store's own clock.
    """

    key: str
    size: int
    modified: float


class Put(StrEnum):
    """What a conditional put came to."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend declares of itself; a store checks it before it relies on it.

    Attributes:
        put_if_absent: The conditional put exists and is atomic among all writers of the storage.
        strong_list: A listing holds every object whose put had returned before it began.
        ranged_get: A part of an object can be read without reading all of it.
        server_time: `ObjectInfo.modified` is by one clock that all writers share.
    """

    put_if_absent: bool
    strong_list: bool
    ranged_get: bool
    server_time: bool


class Backend(Protocol):
    """Objects under one root. Safe for use by several threads at once.

    Every method raises `BadKey` for a key outside the grammar, before it does anything, and otherwise
    `AuthError`, `NoSpace`, `Throttled` or `Unavailable`; `BadURL` where what the URL names is not there, and
    `Unsupported` where a server does not know the request. A key that is also the directory of other keys
    (`a` beside `a/b`) is none that the protocol makes; a backend may refuse it with `Unsupported`.
    """

    @property
    def url(self) -> str:
        """The root, in the form that `open_backend` takes; never holds credentials."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can be relied on for."""
        ...

    def put(self, key: str, data: Buffer) -> None:
        """Stores an object, in place of the one before it if there is one.

        A reader sees the old object, or none, or the whole new one. Durable when it returns.
        """
        ...

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """Stores an object unless there is one: of any number of callers exactly one gets `CREATED`.

        After any error but `BadKey` and `Unsupported` the outcome is open until it is read back, so this
        is not to be wrapped in `retry.call`. Durable when it returns, whoever created the object.

        Raises:
            Unsupported: The backend has no conditional put.
        """
        ...

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """Returns the bytes `[start, stop)` of an object, cut to its size as a slice is.

        A range that begins at or past the end gives `b""`.

        Raises:
            NotFound: There is no such object.
            LimitExceeded: The range, cut to the object, is over `max_size`; nothing of it was read.
            UsageError: The range is negative or ends before it begins.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Returns size and time of an object.

        Raises:
            NotFound: There is no such object.
        """
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Iterates over the objects under a prefix whose key is above `start_after`, ascending by key.

        By bytes; by segments, which is another order for `a-b` and `a/b`, where the storage cannot do better.

        Lazy; a listing that fails raises and never just ends early. What is put or deleted meanwhile may
        or may not be in it. Stored files whose names are no keys are left out.

        Args:
            prefix: Empty, or a key followed by a slash.
            start_after: Empty, a key, or a key followed by a slash; it need not exist.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects, in any order; one that does not exist is fine. After an error some may be gone.

        All keys are checked before the first is deleted. Durable when it returns.
        """
        ...

    def close(self) -> None:
        """Releases connections; the backend is not used afterwards. A second call does nothing."""
        ...


class Driver(Protocol):
    """What an entry point of the group `deltastore.backends` names: a class that opens URLs."""

    @classmethod
    def from_url(cls, url: str, *, options: Mapping[str, str]) -> Backend:
        """Opens the root at `url`; an option that the driver does not know is a `UsageError`."""
        ...


def flat(data: Buffer) -> memoryview:
    """The bytes of `data` as a flat view: of itself where it is contiguous, else of a copy."""
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def check_start(start_after: str) -> str:
    """Returns `start_after` if it is empty, a key or a prefix."""
    if start_after:
        keys.check(start_after.removesuffix("/"))
    return start_after


def check_all(names: Iterable[str]) -> list[str]:
    """Returns the keys to delete as a list once all of them are known to be keys."""
    if isinstance(names, str):
        raise UsageError(f"delete was given the text {names[:80]!r}", hint="Pass a list of keys")
    return [keys.check(key) for key in names]


def cut(key: str, size: int, *, start: int, stop: int | None, max_size: int) -> tuple[int, int]:
    """The range of a `get`, cut to an object of `size` bytes.

    Returns:
        Where to begin and how many bytes to read.

    Raises:
        LimitExceeded: That many bytes are over `max_size`.
    """
    check_range(key, start=start, stop=stop)
    end = size if stop is None else min(stop, size)
    wanted = max(0, end - start)
    if wanted > max_size:
        raise LimitExceeded(
            f"{key} holds {wanted} bytes where at most {max_size} may be",
            hint="It was not read; it is not what its name says, or another release wrote it",
            key=key,
            size=wanted,
            limit=max_size,
        )
    return start, wanted


def check_range(key: str, *, start: int, stop: int | None) -> None:
    """Refuses a range that no object can have.

    Raises:
        UsageError: It is negative or ends before it begins.
    """
    if start < 0 or (stop is not None and stop < start):
        raise UsageError(f"[{start}, {stop}) is not a range of {key}", key=key)


def check_options(url: str, options: Mapping[str, str], *, known: Iterable[str] = ()) -> None:
    """Refuses options that a driver does not know, so that a misspelt one is not silently ignored.

    Raises:
        UsageError: An unknown name.
    """
    allowed = sorted(known)
    if unknown := sorted(set(options) - set(allowed)):
        raise UsageError(
            f"{', '.join(unknown)}: not an option of {url}",
            hint=f"It takes {', '.join(allowed) or 'none'}",
        )
