"""`kill -9` at random moments: producers and consumers come back to a version that exists, bit for bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import workers
from safetensors.numpy import load_file

from deltastore import Consumer, Producer, Store
from deltastore.parallel import INLINE

KILLS = 15


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store will be: a directory, or a server that all processes reach."""
    if request.param == "s3":
        url: str = request.getfixturevalue("s3_root")
        return url
    return str(tmp_path / "store")


SCRIPT = Path(workers.__file__)


@contextmanager
def running(role: str, root: str, place: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """A worker process that has printed its first line; it is killed at the end, whatever happens."""
    command = [sys.executable, str(SCRIPT), role, root, str(place), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert "Traceback" not in errors, errors


def bits(arrays: workers.Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def check_version(store: Store, version: int) -> None:
    step = next(s for v in range(version, 0, -1) if (s := store.find(version=v).step) is not None)
    found = {n: host.lanes.tobytes() for n, host in Consumer(store, workers=INLINE).host_tensors(version)}
    assert found == bits(workers.state(step))


@pytest.mark.slow
def test_killed_producers_leave_a_log_that_goes_on(root: str, tmp_path: Path) -> None:
    seed = int(time.time())
    rng = random.Random(seed)
    print("seed", seed)
    store = Store.create(root)
    acknowledged = -1
    for kill in range(KILLS):
        with running("publish", root, tmp_path, kill) as process:
            assert process.stdout is not None
            if kill % 2:
                acknowledged = int(process.stdout.readline())
            else:
                before = store.log.newest_number()
                while store.log.newest_number() == before:
                    time.sleep(0.005)
            time.sleep(rng.random() * 0.25)
        steps = [s for v in range(store.log.newest_number() or 0, 0, -1) if (s := store.find(version=v).step)]
        assert not steps or max(steps) >= acknowledged
    newest = store.log.newest_number()
    assert newest is not None
    assert newest > KILLS
    for version in {newest, *rng.sample(range(2, newest), 5)}:
        if store.find(version=version).state is not None:
            check_version(store, version)
    with Producer(store, takeover=True) as out:
        out.publish(workers.state(100_000), step=100_000)
    check_version(store, store.find().version)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["directory", "memory"])
def test_killed_consumers_come_back_to_a_version(root: str, tmp_path: Path, role: str) -> None:
    seed = int(time.time())
    rng = random.Random(seed)
    print("seed", seed)
    place = tmp_path / "place"
    place.mkdir()
    store = Store.create(root)
    stop = threading.Event()

    def publish() -> None:
        with Producer(store, takeover=True, shard_bytes=50_000) as out:
            for step in range(1, 100_000):
                out.publish(workers.state(step), step=step)
                if stop.wait(0.12):
                    return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        seen = -1
        for kill in range(KILLS):
            with running(role, root, place, kill) as process:
                assert process.stdout is not None
                version = int(process.stdout.readline())
                assert version >= seen
                seen = version
                time.sleep(rng.random() * 0.1)
            if role == "directory":
                check_directory(store, place / "model")
    finally:
        stop.set()
        thread.join(30)
    target = {n: np.zeros(k, np.float32) for n, k in zip(workers.NAMES, workers.LANES, strict=True)}
    reader = Consumer(store, target, cache=place / "cache")
    reader.update()
    step = store.find().step
    assert step is not None
    assert bits(target) == bits(workers.state(step))


def check_directory(store: Store, path: Path) -> None:
    """Whatever a loader finds in the place is the version that its marker names, if it is there at all."""
    if not path.exists():
        old = path.with_name(".model.deltastore-old")
        assert old.exists() or not any(path.parent.glob(".model.deltastore-new-*"))
        Consumer(store, path)
    if not path.exists():
        return
    marker = json.loads((path / "deltastore.json").read_text())
    assert bits(load_file(path / "model.safetensors")) == bits(workers.state(marker["step"]))


@pytest.mark.slow
def test_of_two_producers_exactly_one_goes_on(root: str, tmp_path: Path) -> None:
    store = Store.create(root)
    command = [sys.executable, str(SCRIPT), "publish", root, str(tmp_path), "1"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout is not None
    first.stdout.readline()
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert second.stdout is not None
        second.stdout.readline()
        _, errors = first.communicate(timeout=20)
        assert "Fenced" in errors
        assert first.returncode != 0
        before = store.find().version
        assert second.poll() is None
        for _ in range(200):
            if store.find().version > before:
                break
            time.sleep(0.01)
        assert store.find().version > before
        assert store.find().term >= 2
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    check_version(store, store.find().version)
