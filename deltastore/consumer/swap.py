"""A place where whole directories take each other's turn (spec, Directories): locks, staging and the swap.

Any number of processes of one host may share a place. What they put beside it is named after it and after
this library; nothing else there is ever touched.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from deltastore.errors import UsageError
from deltastore.filesystem import map_errors, sync_directory
from deltastore.tensors.files import MARKER


class Staging:
    """A directory that is being written beside its place; others leave it alone as long as it is held.

    Attributes:
        path: Where it is until it is swapped in.
        release: Lets go of it; so does the end of the process. A second call does nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        path.mkdir()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        _try_lock(fd)
        self.release: Final = weakref.finalize(self, _let_go, fd)

    def remove(self) -> None:
        """Removes it, as far as the disk allows; the next staging sees to the rest."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


class Place:
    """The path of a directory that is only ever replaced as a whole.

    Args:
        path: A symbolic link is followed once, here.

    Raises:
        UsageError: It is a mount point, which cannot be renamed.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = Path(os.path.realpath(path))
        if os.path.ismount(self.path):
            raise _is_mount(self.path)
        self._old: Final = self._beside("-old")
        self._lock: Final = self._beside(".lock")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Held by one thread of one process at a time; the kernel lets go of it when the process dies.

        Where the file system has no locks, everybody is alone, and one process at a time may use the place.
        """
        with map_errors(str(self._lock)):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            _let_go(fd)

    def settle(self) -> None:
        """Brings back what a crash in a swap has left aside, and refuses what somebody else has put here.

        Raises:
            UsageError: It is not empty and has no marker (DS-DIR-2).
        """
        with suppress(OSError):
            if not os.path.lexists(self._old):
                if not _foreign(self.path):
                    return
                if not os.path.lexists(self._lock):  # nobody has ever swapped here
                    self._check_ours()
        with self.alone(), map_errors(str(self.path)):  # it may have looked so only while another one swaps
            self.recover()
            self._check_ours()

    def recover(self) -> None:
        """After a crash between the two renames of a swap: the old one comes back. For whoever is alone."""
        if not os.path.lexists(self.path) and os.path.lexists(self._old):
            self._old.rename(self.path)

    def stage(self) -> Staging:
        """A new directory beside the place; what crashes have left of earlier ones is removed."""
        with self.alone(), map_errors(str(self.path)):
            self.recover()
            self._check_ours()
            self._sweep()
            return Staging(self._new())

    def swap(self, new: Path) -> None:
        """Puts a directory here by renaming, or leaves what is here. For whoever is alone."""
        self._check_ours()
        self._remove_old()
        try:
            if os.path.lexists(self.path):
                self._rename_away()
            new.rename(self.path)
        except BaseException:
            self.recover()
            raise
        with suppress(OSError):  # the swap is done, whatever becomes of it in a power cut
            sync_directory(self.path.parent)
        with suppress(OSError):
            self._remove_old()

    def _rename_away(self) -> None:
        try:
            self.path.rename(self._old)
        except OSError as error:
            if error.errno in {errno.EBUSY, errno.EXDEV}:
                raise _is_mount(self.path) from error
            raise

    def _remove_old(self) -> None:
        """Renamed first, so that a crash in the middle leaves nothing that looks like somebody else's."""
        if not os.path.lexists(self._old):
            return
        if _foreign(self._old):
            raise UsageError(
                f"{self._old} is in the way and was not made by deltastore", hint="Move it elsewhere"
            )
        away = self._new()
        self._old.rename(away)
        shutil.rmtree(away, ignore_errors=True)

    def _check_ours(self) -> None:
        if _foreign(self.path):
            what = (
                "is not empty and was not made by deltastore" if self.path.is_dir() else "is not a directory"
            )
            raise UsageError(f"{self.path} {what}", hint="Choose another place; nothing in it was touched")

    def _sweep(self) -> None:
        """Removes directories that were being written and that no process holds any longer."""
        for path in self.path.parent.glob(f"{glob.escape(self._beside('-new').name)}-*"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            if _try_lock(fd):
                shutil.rmtree(path, ignore_errors=True)
            _let_go(fd)

    def _new(self) -> Path:
        return self._beside(f"-new-{secrets.token_hex(8)}")

    def _beside(self, role: str) -> Path:
        return self.path.with_name(f".{self.path.name}.deltastore{role}")


def _try_lock(fd: int) -> bool:
    """Whether the lock is ours now; never where the file system has none, so that nothing is swept there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _let_go(fd: int) -> None:
    with suppress(OSError):  # closing is not enough: a forked child has the same descriptor
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _foreign(path: Path) -> bool:
    """Whether something is there that is neither a directory of ours nor an empty one."""
    if path.is_symlink() or not path.is_dir():
        return os.path.lexists(path)
    return not (path / MARKER).is_file() and any(path.iterdir())


def _is_mount(path: Path) -> UsageError:
    return UsageError(
        f"{path} is a mount point, which cannot be swapped by renaming",
        hint=f"Use a directory below it, such as {path / 'model'}",
    )
