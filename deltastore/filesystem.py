"""What operating systems do to files, in this library's terms: errors mapped once, and what a sync needs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltastore.errors import (
    AuthError,
    BackendError,
    DeltaStoreError,
    NoSpace,
    NotFound,
    Unavailable,
    Unsupported,
)


@contextmanager
def map_errors(name: str, *, absent: type[BackendError] = NotFound) -> Iterator[None]:
    """Turns what the operating system raises into the errors of this library.

    Args:
        name: The key or path that the message names.
        absent: What a missing file means here.
    """
    try:
        yield
    except OSError as error:
        kind, hint = _meaning(error, absent)
        text = os.strerror(error.errno) if error.errno else str(error)
        raise kind(f"{name}: {text}", hint=hint, key=name, errno=error.errno) from error


def _meaning(error: OSError, absent: type[BackendError]) -> tuple[type[DeltaStoreError], str]:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return absent, "" if absent is NotFound else "Something else removed its directory"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return AuthError, "Check owner and mode, and how it is mounted"
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace, "Free some space or raise the quota, then try again"
        case errno.EISDIR | errno.ELOOP | errno.ENAMETOOLONG | errno.ENXIO:
            return Unsupported, "The file system cannot hold an object of this name here"
        case _:
            return Unavailable, "Check the disk or the mount, then try again"


def sync_directory(directory: Path) -> None:
    """Makes the entries of a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network and user-space file systems cannot sync a directory, and do not need to.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def sync_tree(directory: Path) -> None:
    """Makes everything under a directory durable, so that a rename that follows shows nothing torn."""
    for path in [*directory.rglob("*"), directory]:
        if path.is_dir():
            sync_directory(path)
        else:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
