"""Fetched objects on disk, shared by the consumers of a host: one download, checked by XXH3 when read again.

The floors of each store are kept beside them (spec, Reading).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import xxhash

from deltastore.errors import BackendError
from deltastore.filesystem import map_errors
from deltastore.protocol.descriptors import ShardDescriptor

_log = logging.getLogger(__name__)


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
            version = json.loads((self._floors / store).read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if type(version) is int else None

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
                _replace(path, data)
        except BackendError as error:
            _log.warning("the cache does not keep", extra={"path": str(path), "error": str(error)})

    def _make_room(self, size: int) -> None:
        kept = []
        for path in self._objects.iterdir():
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

        Where the disk has no room for a lock, everybody downloads for himself.
        """
        with ExitStack() as held:
            with suppress(OSError):
                file = held.enter_context((self._locks / name[:2]).open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


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
