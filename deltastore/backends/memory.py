"""Process memory as storage (spec, Storage): a dictionary and a lock, for tests and simulations.

`memory://name` is one set of objects per name for the whole process, however often it is opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from deltastore.backends.base import (
    Buffer,
    Capabilities,
    ObjectInfo,
    Put,
    check_all,
    check_options,
    check_start,
    cut,
    flat,
)
from deltastore.errors import BadURL, NotFound, Unsupported, UsageError
from deltastore.protocol import keys

Snapshot = Mapping[str, tuple[bytes, float]]
"""What is stored: bytes and time of modification by key."""


@dataclass(slots=True)
class _Contents:
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_named: Final[dict[str, _Contents]] = {}


class MemoryBackend:
    """Objects in a dictionary.

    Args:
        name: What it is known by in this process: two with one name hold the same objects. Without a
            name the objects are this one's alone.
        clock: Gives the time that this one stamps on what it writes, in Unix seconds.
        conditional: False makes it a storage without conditional puts.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        conditional: bool = True,
    ) -> None:
        self._name = name
        # `setdefault` is atomic: two threads that open one name get the same contents.
        self._contents = _Contents() if name is None else _named.setdefault(name, _Contents())
        self._clock = clock
        self._conditional = conditional

    @classmethod
    def from_url(cls, url: str, *, options: Mapping[str, str]) -> Self:
        """Opens `memory://name`; the option `conditional=false` takes conditional puts away."""
        check_options(url, options, known=["conditional"])
        scheme, _, name = url.partition("://")
        if scheme.lower() != "memory" or not name:
            raise BadURL(f"{url!r} names no memory", hint="Write memory://NAME")
        conditional = options.get("conditional", "true")
        if conditional not in {"true", "false"}:
            raise UsageError(f"conditional={conditional}", hint="It is true or false")
        return cls(name, conditional=conditional == "true")

    @property
    def url(self) -> str:
        """`memory://name`; without a name there is nothing that could be opened again."""
        return f"memory://{self._name or ''}"

    @property
    def capabilities(self) -> Capabilities:
        """All of them, but for conditional puts where they were taken away."""
        return Capabilities(
            put_if_absent=self._conditional, strong_list=True, ranged_get=True, server_time=True
        )

    def put(self, key: str, data: Buffer) -> None:
        """See `Backend.put`."""
        keys.check(key)
        stored = self._stamped(data)
        with self._contents.lock:
            self._contents.objects[key] = stored

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """See `Backend.put_if_absent`."""
        keys.check(key)
        if not self._conditional:
            raise Unsupported(f"{self.url} has no conditional put", key=key)
        stored = self._stamped(data)
        with self._contents.lock:
            if key in self._contents.objects:
                return Put.EXISTS
            self._contents.objects[key] = stored
            return Put.CREATED

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """See `Backend.get`."""
        data, _ = self._object(key)
        offset, wanted = cut(key, len(data), start=start, stop=stop, max_size=max_size)
        return data[offset : offset + wanted]

    def head(self, key: str) -> ObjectInfo:
        """See `Backend.head`."""
        data, modified = self._object(key)
        return ObjectInfo(key=key, size=len(data), modified=modified)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Backend.list`; shows the objects as they are at the first step."""
        keys.check_prefix(prefix)
        return self._listing(prefix, check_start(start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`."""
        for key in check_all(keys):
            with self._contents.lock:
                self._contents.objects.pop(key, None)

    def close(self) -> None:
        """Nothing to release: the objects of a name outlive every backend that was opened on it."""

    def snapshot(self) -> Snapshot:
        """A copy of all that is stored, for `restore`; later writes do not change it."""
        with self._contents.lock:
            return dict(self._contents.objects)

    def restore(self, snapshot: Snapshot) -> None:
        """Makes the stored objects exactly those of a snapshot, of this backend or another."""
        with self._contents.lock:
            self._contents.objects.clear()
            self._contents.objects.update(snapshot)

    def _stamped(self, data: Buffer) -> tuple[bytes, float]:
        # Outside the lock: the clock may be a simulator's, which switches tasks.
        return bytes(flat(data)), self._clock()

    def _object(self, key: str) -> tuple[bytes, float]:
        keys.check(key)
        with self._contents.lock:
            stored = self._contents.objects.get(key)
        if stored is None:
            raise NotFound(f"{key}: no such object", key=key)
        return stored

    def _listing(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        with self._contents.lock:
            found = [
                ObjectInfo(key=key, size=len(data), modified=modified)
                for key, (data, modified) in self._contents.objects.items()
                if key.startswith(prefix) and key > start_after
            ]
        found.sort(key=lambda info: info.key)
        yield from found
