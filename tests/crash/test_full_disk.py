"""A disk that fills up, or may not be written to: the producer says so, and the store stays as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import HASTY, NO_RETRY, State, all_bits, blank, consumer, producer, read, small, stepped

from deltastore import Store
from deltastore.backends.local import LocalBackend
from deltastore.errors import AuthError, Broken, NoSpace, OutcomeUnknown


def local_store(root: Path) -> Store:
    return Store.create(LocalBackend(root), retry=NO_RETRY, runtime=HASTY)


def grown(store: Store) -> list[State]:
    states = [small(), stepped(small(), 1)]
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def files(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("room", [0, 100, 700, 2000, 3000, 4000])
def test_a_disk_that_fills_up_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    store = local_store(tmp_path / "store")
    states = grown(store)
    after = stepped(states[1], 2, share=0.6)
    left = [room]
    real = os.write

    def write(fd: int, data: Any) -> int:
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        count = real(fd, bytes(data)[: left[0]])
        left[0] -= count
        return count

    out = producer(store)
    failed = True
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        try:
            out.publish(after, step=2).result(0)
            failed = False
        except (NoSpace, Broken, OutcomeUnknown):
            pass
    assert not [name for name in files(tmp_path / "store") if "tmp" in name]
    newest = store.find()
    expected = after if newest.step == 2 else states[1]
    assert failed or newest.step == 2
    assert read(store) == all_bits(expected)
    with producer(store) as again:
        again.publish(after, step=3)
    target = blank(after)
    consumer(store, target).update()
    assert all_bits(target) == all_bits(after)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_root_is_said_to_be_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = local_store(root)
    grown(store)
    for directory in [root, *(p for p in root.rglob("*") if p.is_dir())]:
        directory.chmod(0o555)
    try:
        with pytest.raises(AuthError):
            producer(store).publish(small(), step=9)
    finally:
        for directory in [root, *(p for p in root.rglob("*") if p.is_dir())]:
            directory.chmod(0o755)
    assert store.find().version == 2


def test_writes_that_are_refused_leave_a_store_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = local_store(tmp_path / "store")
    states = grown(store)
    out = producer(store)
    out.publish(states[1], step=2)
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **options)

    before = files(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(AuthError):
            out.publish(stepped(states[1], 3), step=3).result(0)
        with pytest.raises(Broken):
            out.publish(states[1], step=4)
        assert read(store) == all_bits(states[1])
    assert files(tmp_path / "store") == before
