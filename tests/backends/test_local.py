from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from deltastore.backends import Backend, LocalBackend, Put
from deltastore.backends.local import TEMP_PREFIX
from deltastore.errors import (
    NotFound,
    Unavailable,
    Unsupported,
)

BIG = 1 << 26


def raiser(number: int) -> Callable[..., NoReturn]:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_objects_are_files_with_ordinary_modes(
    root: Path, files: Callable[[], list[str]], backend: Backend
) -> None:
    before = os.umask(0o022)
    try:
        backend.put("objects/aa/x", b"12")
        backend.put_if_absent("versions/0", b"34")
    finally:
        os.umask(before)
    assert files() == ["objects/aa/x", "versions/0"]
    assert (root / "objects/aa/x").read_bytes() == b"12"
    assert {(root / name).stat().st_mode & 0o777 for name in files()} == {0o644}
    assert (root / "versions/0").stat().st_nlink == 1


def test_temporary_and_foreign_files_are_not_listed(root: Path, backend: Backend) -> None:
    backend.put("a/b", b"")
    for name in [f"{TEMP_PREFIX}1", "a/.hidden", "a/README.md", "a/STORE.json", "a b", "a/ü"]:
        (root / name).write_bytes(b"")
    (root / ".git").mkdir()
    (root / ".git/config").write_bytes(b"")
    (root / "Caps").mkdir()
    (root / "Caps/x").write_bytes(b"")
    assert [info.key for info in backend.list()] == ["a/b"]


def test_directory_is_no_object(files: Callable[[], list[str]], backend: Backend) -> None:
    backend.put("a/b", b"")
    with pytest.raises(Unsupported, match="a is not a regular file"):
        backend.get("a", max_size=BIG)
    with pytest.raises(Unsupported, match="a is not a regular file"):
        backend.head("a")
    with pytest.raises(Unsupported, match="a is not a regular file"):
        backend.put_if_absent("a", b"")
    with pytest.raises(Unsupported):
        backend.put("a", b"")
    with pytest.raises(Unsupported):
        backend.delete(["a"])
    assert files() == ["a/b"]


@pytest.mark.parametrize("key", ["a/b", "a/b/c"])
def test_object_is_no_directory(files: Callable[[], list[str]], backend: Backend, key: str) -> None:
    backend.put("a", b"")
    with pytest.raises(Unsupported, match="a file where a directory must be"):
        backend.put(key, b"")
    with pytest.raises(Unsupported, match="a file where a directory must be"):
        backend.put_if_absent(key, b"")
    with pytest.raises(NotFound):
        backend.get(key, max_size=BIG)
    assert list(backend.list("a/")) == []
    assert files() == ["a"]


def test_fifo_is_refused_without_waiting_for_its_writer(root: Path, backend: Backend) -> None:
    backend.put("a", b"")
    os.mkfifo(root / "pipe")
    with pytest.raises(Unsupported, match="pipe is not a regular file"):
        backend.get("pipe", max_size=BIG)
    assert [info.key for info in backend.list()] == ["a"]


@pytest.mark.req("DS-KEY-5")
def test_a_listing_leaves_out_whatever_is_no_regular_file(
    root: Path, backend: Backend, tmp_path: Path
) -> None:
    backend.put("edges/1/x", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"secret")
    for place in (root / "edges", root / "edges" / "1"):
        os.mkfifo(place / "fifo")
        (place / "dangling").symlink_to("/nowhere/at/all")
        (place / "loop").symlink_to(".")
        (place / "knot").symlink_to("knot")
        (place / "file").symlink_to(tmp_path / "elsewhere" / "secret")
        (place / "directory").symlink_to(tmp_path / "elsewhere")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "edges" / "socket"))
        for prefix in ("", "edges/", "edges/1/"):
            assert [info.key for info in backend.list(prefix)] == ["edges/1/x"]
    (root / "file").symlink_to(tmp_path / "elsewhere" / "secret")
    assert [info.key for info in backend.list()] == ["edges/1/x"]


def test_link_in_place_of_an_object_is_not_followed(root: Path, backend: Backend, tmp_path: Path) -> None:
    backend.put("a", b"")
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(Unsupported):
        backend.get("link", max_size=BIG)
    with pytest.raises(Unsupported):
        backend.head("link")
    with pytest.raises(Unsupported):
        backend.put_if_absent("link", b"")
    backend.put("link", b"own")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert backend.get("link", max_size=BIG) == b"own"


def test_directory_may_be_a_link_to_another_disk(root: Path, backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    root.mkdir()
    (root / "objects").symlink_to(tmp_path / "disk")
    backend.put("objects/aa/x", b"1")
    assert [info.key for info in backend.list("objects/")] == ["objects/aa/x"]
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    for prefix in ("", "objects/", "objects/aa/"):
        with pytest.raises(Unsupported, match="objects is a link to nothing"):
            list(backend.list(prefix))
    (root / "objects").unlink()
    (root / "objects").symlink_to("objects")
    for prefix in ("", "objects/"):
        with pytest.raises(Unsupported, match="symbolic links"):
            list(backend.list(prefix))


def test_name_longer_than_the_file_system_takes_is_refused(backend: Backend) -> None:
    with pytest.raises(Unsupported, match="name"):
        backend.put("a" * 300, b"")


def test_directory_that_somebody_removed_is_made_again(root: Path, backend: Backend) -> None:
    backend.put("a/b", b"1")
    backend.delete(["a/b"])
    (root / "a").rmdir()
    backend.put("a/b", b"2")
    assert backend.get("a/b", max_size=BIG) == b"2"


# --- listing


def test_listing_reads_only_the_directories_it_needs(
    root: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        backend.put(f"edges/{number}/x", b"")
    backend.put("objects/aa/x", b"")
    scanned: list[str] = []
    scandir = os.scandir

    def record(path: Path) -> object:
        scanned.append(str(path.relative_to(root)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", record)
    listing = backend.list("edges/", start_after="edges/3/x")
    assert next(listing).key == "edges/4/x"
    assert set(scanned) == {"edges", "edges/3", "edges/4"}
    assert [info.key for info in listing] == ["edges/5/x"]
    assert set(scanned) == {"edges", "edges/3", "edges/4", "edges/5"}


def test_what_vanishes_during_a_listing_is_passed_over(root: Path, backend: Backend) -> None:
    for key in ["a", "b", "c/x", "d/x", "e"]:
        backend.put(key, b"")
    listing = backend.list()
    assert next(listing).key == "a"
    backend.delete(["b", "c/x"])
    (root / "c").rmdir()
    backend.delete(["d/x"])
    (root / "d").rmdir()
    (root / "d").write_bytes(b"")
    assert [info.key for info in listing] == ["e"]


@pytest.mark.parametrize("failing", ["scandir", "lstat"])
def test_listing_that_fails_raises(backend: Backend, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    backend.put("a", b"")
    backend.put("b", b"")
    listing = backend.list()
    if failing == "scandir":
        monkeypatch.setattr(os, "scandir", raiser(errno.EIO))
    else:
        assert next(listing).key == "a"
        monkeypatch.setattr(Path, "lstat", raiser(errno.EIO))
    with pytest.raises(Unavailable):
        list(listing)


def test_listing_that_fails_in_the_middle_of_a_directory_raises(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.put("a", b"")
    backend.put("b", b"")
    scandir = os.scandir

    class Failing:
        def __init__(self, path: Path) -> None:
            self.entries = scandir(path)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            yield next(self.entries)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def __exit__(self, *args: object) -> None:
            self.entries.close()

    monkeypatch.setattr(os, "scandir", Failing)
    with pytest.raises(Unavailable):
        list(backend.list())


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a tmpfs")
def test_rename_under_a_scan_hides_nothing(tmp_path: Path) -> None:
    """On tmpfs an entry that is renamed over while the directory is read can be left out."""
    root = Path("/dev/shm") / f"deltastore-test-{os.getpid()}"
    backend = LocalBackend(root)
    expected = [f"{number:04d}" for number in range(1500)]
    root.mkdir()
    done = threading.Event()

    def replace() -> None:
        for turn in range(10**9):
            temp = root / f"{TEMP_PREFIX}{turn}"
            temp.touch()
            temp.rename(root / expected[turn * 7 % 1500])
            if done.is_set():
                return

    try:
        for name in expected:
            (root / name).touch()
        writer = threading.Thread(target=replace)
        writer.start()
        try:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                assert [info.key for info in backend.list()] == expected
        finally:
            done.set()
            writer.join()
    finally:
        for path in root.iterdir():
            path.unlink()
        root.rmdir()


# --- durability


def test_files_and_directories_are_synced_before_it_returns(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append("temp" if path.name.startswith(TEMP_PREFIX) else path.name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    backend = LocalBackend(root)
    backend.put("a/b/c", b"")
    assert synced == [root.parent.name, "root", "a", "temp", "b"]
    synced.clear()
    assert backend.put_if_absent("a/b/d", b"") is Put.CREATED
    assert synced == ["temp", "b"]
    synced.clear()
    # The loser too: what it was told exists may not be durable yet, and it builds on it.
    assert backend.put_if_absent("a/b/d", b"") is Put.EXISTS
    assert synced == ["temp", "b"]
    synced.clear()
    # Another process may have made "a" and "b" and not have synced them yet.
    LocalBackend(root).put("a/b/e", b"")
    assert synced == ["temp", "a", "root", "b"]
    synced.clear()
    backend.delete(["a/b/c", "a/b/d", "a/nothing"])
    assert synced == ["b"]


def test_object_appears_only_after_its_bytes_are_durable(
    files: Callable[[], list[str]], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.put("a", b"old")
    monkeypatch.setattr(os, "fsync", raiser(errno.EIO))
    with pytest.raises(Unavailable):
        backend.put("a", b"new")
    with pytest.raises(Unavailable):
        backend.put_if_absent("b", b"new")
    monkeypatch.undo()
    assert files() == ["a"]
    assert backend.get("a", max_size=BIG) == b"old"


def test_file_system_that_cannot_sync_directories_is_accepted(
    files: Callable[[], list[str]], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def picky(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", picky)
    backend.put("a/b", b"1")
    assert files() == ["a/b"]


# --- the handle


def test_pickled_backend_is_the_same_root(backend: Backend) -> None:
    backend.put("a", b"1")
    copy = pickle.loads(pickle.dumps(backend))
    assert copy.url == backend.url
    assert copy.get("a", max_size=BIG) == b"1"
