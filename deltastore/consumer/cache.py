"""Fetched objects on disk, shared by the consumers of a host: one download, checked by XXH3 when read again.

The floors of each store are kept beside them (spec, Reading). It is a convenience: whatever becomes of its
files, reading goes on without them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import xxhash

from deltastore.errors import DeltaStoreError
from deltastore.filesystem import map_errors
from deltastore.protocol import limits
from deltastore.protocol.descriptors import ShardDescriptor

_log = logging.getLogger(__name__)
_PATIENCE = 60.0
"""Seconds to wait for another's download; then everybody downloads for himself."""
_PAUSE = 0.05
_FLOOR_BYTES = 256


class Cache:
    """A directory of objects by SHA-256.

    Args:
        directory: Shared by any number of processes of one host.
        budget: Bytes to keep; the objects that were not used for longest go first.
    """

    def __init__(self, directory: Path, *, budget: int = 32 * 1024**3) -> None:
        self._objects = directory / "objects"
        self._floors = directory / "floors"
        self._locks = directory / "locks"
        self._budget = budget
        for path in (self._objects, self._floors, self._locks):
            with map_errors(str(path)):
                path.mkdir(parents=True, exist_ok=True)

    def fetch(self, shard: ShardDescriptor, download: Callable[[ShardDescriptor], bytes]) -> bytes:
        """The bytes of a shard: from here where they are sound, else downloaded once for all who wait.

        Args:
            shard: Which.
            download: Gets it from the store, checked by SHA-256.
        """
        path = self._objects / shard.sha256
        found = _sound(path, shard)
        if found is None:
            with self._lock(shard.sha256):
                found = _sound(path, shard)
                if found is None:
                    found = download(shard)
                    self._keep(path, found)
        return found

    def floor(self, store: str) -> int | None:
        """The highest version that any consumer here has seen of a store."""
        try:
            version = json.loads(_start_of(self._floors / store, _FLOOR_BYTES))["version"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return version if type(version) is int and 0 <= version <= limits.MAX_INT else None

    def raise_floor(self, store: str, version: int) -> None:
        """Remembers a version, never a lower one, as far as the disk allows: its reader remembers it too."""
        with self._lock(store):
            before = self.floor(store)
            if before is None or before < version:
                self._try(self._floors / store, json.dumps({"version": version}).encode())

    def _keep(self, path: Path, data: bytes) -> None:
        if len(data) <= self._budget:
            self._make_room(len(data))
            self._try(path, data)

    def _try(self, path: Path, data: bytes) -> None:
        """Replaces a file; a disk that does not take it is no reason to stop serving."""
        try:
            with map_errors(str(path)):
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, data)
        except DeltaStoreError as error:
            _log.warning("the cache does not keep", extra={"path": str(path), "error": str(error)})

    def _make_room(self, size: int) -> None:
        kept, paths = [], list[Path]()
        with suppress(OSError):
            paths = list(self._objects.iterdir())
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                kept.append((status.st_mtime, status.st_size, path))
        total = size + sum(entry[1] for entry in kept)
        for _, bytes_, path in sorted(kept):
            if total <= self._budget:
                break
            with suppress(OSError):
                path.unlink(missing_ok=True)
                total -= bytes_

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Held by one process at a time; the kernel lets go of it when the process dies.

        Where the disk has no place for a lock, or it is held for too long, everybody downloads for himself:
        objects are named by their content, so no two differ.
        """
        path = self._locks / name[:2]
        with ExitStack() as held:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # O_RDWR, not waiting: nothing that may lie here, such as a FIFO, can hold the opening up.
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
                held.callback(os.close, fd)
                if not _locked(fd):
                    _log.warning("going on without a lock", extra={"path": str(path)})
            yield


def _locked(fd: int) -> bool:
    """Whether the lock was got in time; the kernel has no lock with a timeout."""
    deadline = time.monotonic() + _PATIENCE
    pause = _PAUSE / 16
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        else:
            return True
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE)


def _start_of(path: Path, most: int) -> bytes:
    """The first bytes of a file, without waiting for whoever may write to it."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def _sound(path: Path, shard: ShardDescriptor) -> bytes | None:
    try:
        if path.stat().st_size != shard.size:
            return None
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return data if xxhash.xxh3_64_intdigest(data) == shard.xxh3 else None


def _replace(path: Path, data: bytes) -> None:
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temp.write_bytes(data)
        temp.replace(path)
    except BaseException:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
        raise
