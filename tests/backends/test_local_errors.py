from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from deltastore.backends import Backend, Put
from deltastore.errors import (
    AuthError,
    BackendError,
    DeltaStoreError,
    NoSpace,
    Unavailable,
    Unsupported,
)

BIG = 1 << 26


def raiser(number: int) -> Callable[..., NoReturn]:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, NoSpace),
        (errno.EACCES, AuthError),
        (errno.EROFS, AuthError),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
    ],
)
def test_failed_write_leaves_nothing(
    files: Callable[[], list[str]],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[BackendError],
) -> None:
    backend.put("a", b"old")
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda fd, data: write(fd, data[:3]) if len(data) > 5 else raiser(number)()
    )
    for put in (backend.put, backend.put_if_absent):
        with pytest.raises(kind, match=r"a: .") as caught:
            put("a", b"new value")
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.hint
        assert caught.value.fields["key"] == "a"
    monkeypatch.undo()
    assert files() == ["a"]
    assert backend.get("a", max_size=BIG) == b"old"


def test_partial_writes_are_continued(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    data = random.Random(1).randbytes(100)
    backend.put("a", memoryview(data))
    assert backend.get("a", max_size=BIG) == data


def test_partial_reads_are_continued(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(2).randbytes(100)
    backend.put("a", data)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    assert backend.get("a", max_size=BIG) == data
    assert backend.get("a", max_size=BIG, start=3, stop=90) == data[3:90]


def test_object_that_shrinks_under_a_read_is_an_error(
    root: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.put("a", bytes(100))
    pread = os.pread

    def shrink(fd: int, size: int, at: int) -> bytes:
        os.truncate(root / "a", 60)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", shrink)
    with pytest.raises(Unavailable, match="became shorter"):
        backend.get("a", max_size=BIG)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_directory_without_permission_is_an_auth_error(root: Path, backend: Backend) -> None:
    backend.put("a/b", b"")
    (root / "a").chmod(0o500)
    try:
        with pytest.raises(AuthError):
            backend.put("a/c", b"")
        with pytest.raises(AuthError):
            backend.delete(["a/b"])
    finally:
        (root / "a").chmod(0o700)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_refusal_of_the_system_is_an_auth_error(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    backend.put("a", b"")
    monkeypatch.setattr(os, "open", raiser(number))
    monkeypatch.setattr(Path, "lstat", raiser(number))
    monkeypatch.setattr(Path, "unlink", raiser(number))
    monkeypatch.setattr(os, "scandir", raiser(number))
    calls: list[Callable[[], object]] = [
        lambda: backend.put("a", b""),
        lambda: backend.put_if_absent("a", b""),
        lambda: backend.get("a", max_size=1),
        lambda: backend.head("a"),
        lambda: list(backend.list()),
        lambda: backend.delete(["a"]),
    ]
    for call in calls:
        with pytest.raises(AuthError):
            call()


def test_lost_reply_to_a_link_that_worked_is_a_creation(
    files: Callable[[], list[str]], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lose(*args: str, follow_symlinks: bool = True) -> NoReturn:
        link(*args, follow_symlinks=follow_symlinks)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", lose)
    assert backend.put_if_absent("a", b"mine") is Put.CREATED
    assert files() == ["a"]
    monkeypatch.setattr(os, "link", link)
    assert backend.put_if_absent("a", b"other") is Put.EXISTS
    assert backend.get("a", max_size=BIG) == b"mine"


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EPERM, Unsupported), (errno.EOPNOTSUPP, Unsupported), (errno.EIO, Unavailable)],
)
def test_failed_link_creates_nothing(
    files: Callable[[], list[str]],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[DeltaStoreError],
) -> None:
    monkeypatch.setattr(os, "link", raiser(number))
    with pytest.raises(kind):
        backend.put_if_absent("a", b"")
    assert files() == []


def test_no_file_stays_open(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.put("a/b", b"1234")
    before = open_files()
    backend.put("a/c", b"")
    backend.put_if_absent("a/c", b"")
    backend.get("a/b", max_size=BIG)
    next(backend.list())
    for failing in ["write", "fsync", "pread", "link", "rename"]:
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, raiser(errno.EIO))
            with suppress(Unavailable):
                backend.put("a/d", b"1")
            with suppress(Unavailable):
                backend.put_if_absent("a/e", b"1")
            with suppress(Unavailable):
                backend.get("a/b", max_size=BIG)
    with suppress(Unsupported):
        backend.get("a", max_size=BIG)
    assert open_files() == before
