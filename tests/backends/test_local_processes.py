from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltastore.backends import Backend, Put
from deltastore.backends.local import TEMP_PREFIX

BIG = 1 << 26


RACER = """
import sys
from deltastore.backends import LocalBackend
backend, me = LocalBackend(sys.argv[1]), sys.argv[2]
for line in sys.stdin:
    turn = line.strip()
    print(backend.put_if_absent(f"race/{turn}", (me * 1000).encode()), flush=True)
"""

WRITER = """
import sys
from deltastore.backends import LocalBackend
backend = LocalBackend(sys.argv[1])
print("ready", flush=True)
number = int(sys.argv[2])
while True:
    data = f"{number:08d}".encode() * 40_000
    backend.put_if_absent(f"objects/{number % 3}/{number:08d}", data)
    backend.put("head", data)
    number += 1
"""

HEAVY = """
import resource, sys
from deltastore.backends import LocalBackend
from deltastore.errors import NoSpace
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
backend = LocalBackend(sys.argv[1])
backend.put("small", bytes(1_000_000))
for put in backend.put, backend.put_if_absent:
    try:
        put("large", bytes(1_000_001))
    except NoSpace:
        print("no space")
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def racers(root: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [start(RACER, root, me) for me in range(4)]
    yield processes
    for process in processes:
        stop(process)


def test_one_of_racing_processes_creates(
    files: Callable[[], list[str]], racers: list[subprocess.Popen[str]], backend: Backend
) -> None:
    for turn in range(100):
        for racer in racers:
            assert racer.stdin
            racer.stdin.write(f"{turn}\n")
            racer.stdin.flush()
        outcomes = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
        winners = [me for me, outcome in enumerate(outcomes) if outcome == Put.CREATED]
        assert sorted(outcomes) == ["created", "exists", "exists", "exists"]
        assert backend.get(f"race/{turn}", max_size=BIG) == str(winners[0]).encode() * 1000
    assert not [name for name in files() if TEMP_PREFIX in name]


def test_killed_writer_leaves_whole_objects_only(root: Path, backend: Backend) -> None:
    chance = random.Random(4)
    for attempt in range(8):
        writer = start(WRITER, root, attempt * 10_000)
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.01, 0.12))
        writer.send_signal(signal.SIGKILL)
        stop(writer)
        assert writer.returncode == -signal.SIGKILL
    listed = list(backend.list())
    assert len(listed) > 8
    for info in listed:
        data = backend.get(info.key, max_size=BIG)
        assert data == data[:8] * 40_000
        assert info.key in {"head", f"objects/{int(data[:8]) % 3}/{data[:8].decode()}"}


def test_file_size_limit_leaves_nothing(root: Path, files: Callable[[], list[str]]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", HEAVY, str(root)], capture_output=True, text=True, check=True
    )
    assert result.stdout == "no space\n" * 2
    assert files() == ["small"]
