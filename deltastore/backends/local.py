"""A directory as storage (spec, Storage): every object is a file, made whole before it is visible.

It is written and synced beside its place, then renamed or linked into it, and the directory is synced:
no reader, crash or full disk ever shows a part of one, and what has returned is durable. A temporary
file that a crash left behind is in nobody's way; it may be deleted once it is older than the grace.

Directly under the root, a link to a directory is as good as one, so that `objects` may be on another disk.
Any other link, and whatever else is no regular file, is not an object, and listings leave it out.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote_to_bytes, urlsplit

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
from deltastore.errors import (
    BadKey,
    BadURL,
    Unavailable,
    Unsupported,
)
from deltastore.filesystem import map_errors, sync_directory
from deltastore.protocol import keys

TEMP_PREFIX: Final = ".tmp-"
"""How the names of unfinished files begin; the leading dot keeps them out of the keys."""

_READ_BYTES: Final = 1 << 30
_SCANS: Final = 4
_SYNCED: Final = 4096
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalBackend:
    """Objects as files under a root directory, which is made by the first write.

    Sound for any number of threads, processes and, over NFS, hosts. Holds no open files and may be
    forked and pickled.

    Args:
        root: The directory; a relative one is taken from the current directory, once.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        # Directories whose own entry is known to be durable: another process may have made one a
        # moment ago and not have synced it yet. Only saves syncs, so a copy or a loss of it is harmless.
        self._synced: set[Path] = set()

    @classmethod
    def from_url(cls, url: str, *, options: Mapping[str, str]) -> Self:
        """Opens `file:///absolute/path` (percent-encoded) or a plain path."""
        check_options(url, options)
        return cls(_path(url))

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self._root,)

    def __repr__(self) -> str:
        return f"LocalBackend({str(self._root)!r})"

    @property
    def url(self) -> str:
        """The root as a `file://` URL."""
        return self._root.as_uri()

    @property
    def capabilities(self) -> Capabilities:
        """All of them; the server's time is the modification time of the file system."""
        return Capabilities(put_if_absent=True, strong_list=True, ranged_get=True, server_time=True)

    def put(self, key: str, data: Buffer) -> None:
        """See `Backend.put`."""
        path = self._root / keys.check(key)
        with map_errors(key, absent=Unavailable):
            with self._written(path, data) as temp:
                temp.rename(path)
            sync_directory(path.parent)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        """See `Backend.put_if_absent`: `link` is the test and the creation in one."""
        path = self._root / keys.check(key)
        with map_errors(key, absent=Unavailable):
            with self._written(path, data) as temp:
                outcome = _link(temp, path, key)
            # Also where it exists: whoever made it may not have got as far, and the caller builds on it.
            sync_directory(path.parent)
        return outcome

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        """See `Backend.get`."""
        path = self._root / keys.check(key)
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with map_errors(key), _opened(path, flags) as fd:
            size = _regular(key, os.fstat(fd)).st_size
            offset, wanted = cut(key, size, start=start, stop=stop, max_size=max_size)
            return _read(fd, offset, wanted, key)

    def head(self, key: str) -> ObjectInfo:
        """See `Backend.head`."""
        path = self._root / keys.check(key)
        with map_errors(key):
            return _info(key, _regular(key, path.lstat()))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Backend.list`; reads one directory at a time."""
        keys.check_prefix(prefix)
        return self._walk(prefix, check_start(start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`; directories stay, empty or not."""
        touched: dict[Path, str] = {}
        for key in check_all(keys):
            path = self._root / key
            with map_errors(key), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                touched[path.parent] = key
        for directory, key in touched.items():
            with map_errors(key), suppress(FileNotFoundError):
                sync_directory(directory)

    def close(self) -> None:
        """Nothing is held open."""

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        with map_errors(prefix or str(self._root)):
            top = self._root / prefix.partition("/")[0]
            if prefix and top.is_symlink():
                _check_link(top)
            names = _scan(self._root / prefix, links=not prefix)
        # "/" sorts among the characters of names ("a-b" < "a/b" < "a0"): directories carry theirs.
        for name in sorted(names):
            key = prefix + name
            if not _is_key(key.removesuffix("/")):
                continue
            if name.endswith("/"):
                if start_after < key or start_after.startswith(key):
                    yield from self._walk(key, start_after)
            elif key > start_after:
                info = None
                with map_errors(key), suppress(FileNotFoundError, NotADirectoryError):
                    found = (self._root / key).lstat()
                    info = _info(key, found) if stat.S_ISREG(found.st_mode) else None
                if info:
                    yield info

    @contextmanager
    def _written(self, path: Path, data: Buffer) -> Iterator[Path]:
        """A synced file with `data` in the directory of `path`; gone at the end unless it was renamed."""
        temp = path.with_name(TEMP_PREFIX + secrets.token_hex(16))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            fd = os.open(temp, flags, 0o666)
        except (FileNotFoundError, NotADirectoryError):
            self._make(path.parent)
            fd = os.open(temp, flags, 0o666)
        try:
            try:
                _write(fd, flat(data))
                os.fsync(fd)
            finally:
                os.close(fd)
            self._settle(path.parent)
            yield temp
        finally:
            with suppress(OSError):
                temp.unlink()

    def _make(self, directory: Path) -> None:
        """Makes a directory and those above it, each synced into its parent."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        try:
            directory.mkdir()
        except FileExistsError:
            if not directory.is_dir():
                raise Unsupported(
                    f"{directory} is a file where a directory must be", hint="Move it away"
                ) from None
        sync_directory(directory.parent)
        self._synced.add(directory)

    def _settle(self, directory: Path) -> None:
        """Syncs the entries of a directory and of those above it up to the root, once per process."""
        if len(self._synced) > _SYNCED:
            self._synced.clear()
        while directory != self._root and directory not in self._synced:
            sync_directory(directory.parent)
            self._synced.add(directory)
            directory = directory.parent


def _path(url: str) -> Path:
    if not url or "\0" in url:
        raise BadURL(f"{url!r} is not a path", hint="Give file:///absolute/path or a plain path")
    if url[:5].lower() != "file:":
        return Path(url)
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if not url[5:].startswith("//") or parts.netloc.lower() not in {"", "localhost"}:
        raise BadURL(f"{url} is not an absolute path", hint="Write file:///absolute/path")
    if "?" in url or "#" in url or not path.startswith("/") or "\0" in path:
        raise BadURL(
            f"{url} is not the URL of a directory",
            hint="Write file:///absolute/path, with ? and # as %3F and %23; options go elsewhere",
        )
    return Path(path)


def _link(temp: Path, path: Path, key: str) -> Put:
    try:
        path.hardlink_to(temp)
    except OSError as error:
        # Over NFS a lost reply makes the retry of a link that worked fail; the count tells.
        if temp.stat().st_nlink == 2:
            return Put.CREATED
        if isinstance(error, FileExistsError):
            with suppress(FileNotFoundError):
                _regular(key, path.lstat())
            return Put.EXISTS
        if error.errno in _NO_LINKS:
            raise Unsupported(
                f"{key}: the file system has no hard links, so no conditional put",
                hint="Put the store on a POSIX file system",
                key=key,
            ) from error
        raise
    return Put.CREATED


def _regular(key: str, found: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        raise Unsupported(f"{key} is not a regular file", hint="Move it out of the store", key=key)
    return found


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size=found.st_size, modified=found.st_mtime)


def _is_key(text: str) -> bool:
    try:
        keys.check(text)
    except BadKey:
        return False
    return True


def _check_link(path: Path) -> None:
    """A link of the operator's to a disk that is not there must not look like an empty store."""
    try:
        path.stat()
    except FileNotFoundError:
        raise Unsupported(
            f"{path} is a link to nothing", hint="Mount what it points to, or remove it", key=path.name
        ) from None


def _scan(directory: Path, *, links: bool) -> set[str]:
    """Names of regular files in a directory, and of directories with a slash behind them.

    With `links`, links to directories are directories, and a dangling one is an error.

    A rename over a file while the directory is being read can hide that file (seen on tmpfs; POSIX
    allows it). It takes another one in the next scan to hide it again, so scan until one adds nothing.
    """
    names: set[str] = set()
    for _ in range(_SCANS):
        before = len(names)
        names |= _scan_once(directory, links=links)
        if len(names) == before:
            break
    return names


def _scan_once(directory: Path, *, links: bool) -> set[str]:
    names = set()
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if links and entry.is_symlink():
                _check_link(Path(entry.path))
            if entry.is_dir(follow_symlinks=links):
                names.add(f"{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                names.add(entry.name)
    return names


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, offset: int, wanted: int, key: str) -> bytes:
    parts: list[bytes] = []
    while wanted:
        part = os.pread(fd, min(wanted, _READ_BYTES), offset)
        if not part:
            raise Unavailable(f"{key} became shorter while it was read", hint="Try again", key=key)
        parts.append(part)
        offset += len(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]
