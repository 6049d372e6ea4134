"""The cache of a host: one download for all, checked again when it is read, bounded; floors that stay."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from support import State, all_bits, blank, consumer, new_store, producer, read, reopened, small, stepped

from deltastore import Cache, Consumer, Store
from deltastore.backends.local import LocalBackend
from deltastore.errors import Diverged, IntegrityError, NoPath, Unavailable
from deltastore.parallel import INLINE, Workers
from deltastore.protocol import keys
from deltastore.protocol.descriptors import ShardDescriptor
from deltastore.testing import Fault, FaultBackend, flip_bit


def grown(store: Store, count: int = 4) -> list[State]:
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store, shard_bytes=2000) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def shard(data: bytes) -> ShardDescriptor:
    return ShardDescriptor(
        sha256=hashlib.sha256(data).hexdigest(),
        xxh3=xxhash.xxh3_64_intdigest(data),
        size=len(data),
        raw_size=0,
        codec="plain",
        state_delta=0,
        slices=(),
    )


def test_consumers_of_a_host_download_once(store: Store, tmp_path: Path) -> None:
    states = grown(store)
    backend = FaultBackend(store.access.backend)
    targets = [blank(states[0]) for _ in range(4)]
    shared = reopened(store, backend)
    threads = [
        threading.Thread(target=Consumer(shared, target, cache=tmp_path, workers=Workers(2)).update)
        for target in targets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(all_bits(target) == all_bits(states[-1]) for target in targets)
    kept = {path.name for path in (tmp_path / "objects").iterdir()}
    gets = [op.key.rpartition("/")[2] for op in backend.operations if op.name == "get"]
    assert len(kept) > 6
    assert all(gets.count(name) == 1 for name in kept)


def test_a_new_consumer_starts_from_what_is_kept(store: Store, tmp_path: Path) -> None:
    states = grown(store)
    consumer(store, blank(states[0]), cache=tmp_path).update()
    for info in list(store.access.backend.list("objects/")):
        if (tmp_path / "objects" / info.key.rpartition("/")[2]).exists():
            store.access.backend.delete([info.key])
    target = blank(states[0])
    consumer(store, target, cache=tmp_path).update()
    assert all_bits(target) == all_bits(states[-1])


@pytest.mark.req("DS-OBJ-3")
@pytest.mark.parametrize("kind", ["flipped", "short", "long", "empty", "gone"])
def test_a_damaged_copy_is_downloaded_again(store: Store, tmp_path: Path, kind: str) -> None:
    states = grown(store)
    consumer(store, blank(states[0]), cache=tmp_path).update()
    for path in (tmp_path / "objects").iterdir():
        data = path.read_bytes()
        if kind == "gone":
            path.unlink()
            continue
        flipped = flip_bit(len(data) * 4)(data)
        path.write_bytes({"short": data[:-1], "long": data + b"x", "empty": b""}.get(kind, flipped))
    target = blank(states[0])
    consumer(store, target, cache=tmp_path).update()
    assert all_bits(target) == all_bits(states[-1])
    for info in list(store.access.backend.list("objects/")):
        path = tmp_path / "objects" / info.key.rpartition("/")[2]
        if path.exists():
            assert path.read_bytes() == store.access.backend.get(info.key, max_size=1 << 20)


def test_a_copy_that_went_wrong_in_the_store_is_not_kept(store: Store, tmp_path: Path) -> None:
    grown(store)
    plan = lambda op: Fault(alter=flip_bit(77)) if op.key.startswith("objects/") else None  # noqa: E731
    broken = Store.open(FaultBackend(store.access.backend, plan))
    with pytest.raises((NoPath, IntegrityError)):
        Consumer(broken, blank(small()), cache=tmp_path, workers=INLINE).update()
    assert list((tmp_path / "objects").iterdir()) == []


def test_the_budget_is_kept_and_the_least_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, budget=1000)
    objects = [bytes([i]) * 300 for i in range(6)]
    for data in objects[:3]:
        cache.fetch(shard(data), lambda _, data=data: data)  # type: ignore[misc]
        time.sleep(0.02)
    cache.fetch(shard(objects[0]), lambda _: pytest.fail("it is kept"))
    time.sleep(0.02)
    cache.fetch(shard(objects[3]), lambda _: objects[3])
    kept = {path.read_bytes() for path in (tmp_path / "objects").iterdir()}
    assert kept == {objects[0], objects[2], objects[3]}
    assert cache.fetch(shard(b"x" * 2000), lambda _: b"x" * 2000) == b"x" * 2000
    sizes = [path.stat().st_size for path in (tmp_path / "objects").iterdir()]
    assert sum(sizes) <= 1000
    assert len(sizes) == 3


def test_a_full_disk_is_no_reason_not_to_serve(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = grown(store)
    cache = Cache(tmp_path)

    def full(self: Path, data: bytes) -> int:
        if ".tmp" in self.name or self.parent.name == "objects":
            raise OSError(28, "No space left on device")
        return real(self, data)

    real = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    target = blank(states[0])
    consumer(store, target, cache=cache).update()
    assert all_bits(target) == all_bits(states[-1])
    assert list((tmp_path / "objects").iterdir()) == []


def test_who_waits_for_a_download_that_fails_tries_himself(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    data = b"d" * 100
    entered = threading.Event()

    def failing(_: object) -> bytes:
        entered.set()
        time.sleep(0.1)
        raise Unavailable("network")

    def first() -> None:
        with pytest.raises(Unavailable):
            cache.fetch(shard(data), failing)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(5)
    assert cache.fetch(shard(data), lambda _: data) == data
    thread.join(5)


_CHILD = """
import hashlib, json, sys
from pathlib import Path
from deltastore import Consumer, Store
from deltastore.backends.local import LocalBackend
from deltastore.testing import Fault, FaultBackend, flip_bit
backend = FaultBackend(LocalBackend(sys.argv[1]))
reader = Consumer(Store.open(backend), cache=Path(sys.argv[2]))
bits = {name: hashlib.sha256(host.lanes.tobytes()).hexdigest() for name, host in reader.host_tensors()}
gets = [op.key.rpartition("/")[2] for op in backend.operations if op.name == "get"]
print(json.dumps([bits, gets]))
"""


def test_processes_of_a_host_download_once(tmp_path: Path) -> None:
    store = new_store(LocalBackend(tmp_path / "store"))
    states = grown(store, 3)
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "store"), str(tmp_path / "cache")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    expected = {n: hashlib.sha256(b).hexdigest() for n, b in all_bits(states[-1]).items()}
    assert all(bits == expected for bits, _ in found)
    gets = [name for _, names in found for name in names]
    kept = {path.name for path in (tmp_path / "cache" / "objects").iterdir()}
    assert kept
    assert all(gets.count(name) == 1 for name in kept)


# --- Floors ------------------------------------------------------------------------------------------


@pytest.mark.req("DS-FLOOR-1", "DS-FLOOR-2")
def test_floors_outlive_the_consumer(store: Store, tmp_path: Path) -> None:
    states = grown(store)
    consumer(store, blank(states[0]), cache=tmp_path).update()
    store.access.backend.delete([keys.version(4)])
    target = blank(states[0])
    reader = consumer(store, target, cache=tmp_path)
    for call in (reader.latest, reader.update, reader.stage):
        with pytest.raises(Diverged, match="version 4 was seen before"):
            call()
    assert all_bits(target) == all_bits(blank(states[0]))
    assert consumer(store).latest().version == 3
    store.access.backend.delete(keys.version(n) for n in range(4))
    with pytest.raises(Diverged):
        consumer(store, target, cache=tmp_path).update()


def test_floors_are_per_store_and_never_fall(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.floor("a" * 32) is None
    for version in (3, 7, 5):
        cache.raise_floor("a" * 32, version)
    assert (cache.floor("a" * 32), cache.floor("b" * 32)) == (7, None)
    assert Cache(tmp_path).floor("a" * 32) == 7
    threads = [threading.Thread(target=cache.raise_floor, args=("b" * 32, v)) for v in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.floor("b" * 32) == 39


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"version": "4"}',
        '{"version": true}',
        "\xff",
        "[" * 200_000,
        f'{{"version": {10**30}}}',
        '{"version": -1}',
        f'{{"version": {"9" * 10_000}}}',
    ],
    ids=range(10),
)
def test_a_damaged_floor_is_none(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "floors" / ("a" * 32)).write_text(text, encoding="latin-1")
    assert cache.floor("a" * 32) is None
    cache.raise_floor("a" * 32, 2)
    assert cache.floor("a" * 32) == 2


def test_an_older_version_may_still_be_read_by_number(store: Store, tmp_path: Path) -> None:
    states = grown(store)
    consumer(store, blank(states[0]), cache=tmp_path).update()
    reader = consumer(store, blank(states[0]), cache=tmp_path)
    assert all_bits(reader.host_tensors(2)) == all_bits(states[1]) == read(store, 2)


# --- Whatever happens to its files --------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["objects", "floors", "locks", ""])
def test_directories_that_somebody_removed_are_made_again(store: Store, tmp_path: Path, gone: str) -> None:
    state = grown(store)[-1]
    target = blank(state)
    reader = consumer(store, target, cache=tmp_path / "cache")
    reader.update()
    shutil.rmtree(tmp_path / "cache" / gone)
    state = stepped(state, 9)
    with producer(store) as out:
        out.publish(state, step=9)
    reader.update()
    assert all_bits(target) == all_bits(state)
    assert any((tmp_path / "cache" / "objects").iterdir())
    assert Cache(tmp_path / "cache").floor(store.identity.store) == 6


@pytest.mark.parametrize("made", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_lies_in_place_of_a_lock_or_floor_is_in_nobodys_way(
    tmp_path: Path, made: Callable[[Path], None]
) -> None:
    cache = Cache(tmp_path)
    for directory in ("locks", "floors"):
        made(tmp_path / directory / "aa")
    cache.raise_floor("aa", 3)
    assert cache.floor("aa") == (None if made is Path.mkdir else 3)
    data = b"d" * 100
    made(tmp_path / "locks" / shard(data).sha256[:2])
    made(tmp_path / "objects" / shard(data).sha256)
    assert cache.fetch(shard(data), lambda _: data) == data


def test_a_lock_that_is_never_let_go_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltastore.consumer.cache._PATIENCE", 0.1)
    cache = Cache(tmp_path)
    data = b"d" * 100
    with (tmp_path / "locks" / shard(data).sha256[:2]).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        assert cache.fetch(shard(data), lambda _: data) == data
        assert time.monotonic() - began >= 0.1
        assert cache.fetch(shard(data), lambda _: pytest.fail("it is kept")) == data
