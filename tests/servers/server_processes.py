"""Servers on loopback that tests start and stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def free_port(*, beside: int = 0) -> int:
    """A port that nothing listens on, nor on the one so far above it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + beside if beside else 0))
            except (OSError, OverflowError):
                continue
            return port


def installed(name: str) -> str:
    """Where a program is, that of this environment first; skips the test where it is not there.

    Raises:
        RuntimeError: It is not there, and all servers are to be.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        reason = f"{name} is not installed: make test-backends installs it"
        if os.environ.get("DELTASTORE_REQUIRE_SERVERS") == "1":
            raise RuntimeError(reason)
        pytest.skip(reason)
    return found


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    ready: Callable[[], object],
    env: Mapping[str, str] | None = None,
    patience: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server from the moment at which it answers; it is stopped with all that it started.

    Args:
        command: What to run.
        log: Where its output goes.
        ready: Called until it no longer raises OSError.
        env: More variables for it.
        patience: Seconds that it may take.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await(process, ready, patience=patience, log=log)
            yield process
        finally:
            for sent in (signal.SIGTERM, signal.SIGKILL):
                _signal(process, sent)
                try:
                    process.wait(3)
                    break
                except subprocess.TimeoutExpired:
                    continue


def accepts(port: int) -> Callable[[], None]:
    """For `ready`: something listens on the port."""

    def connect() -> None:
        socket.create_connection(("127.0.0.1", port), 1).close()

    return connect


def _await(
    process: subprocess.Popen[bytes], ready: Callable[[], object], *, patience: float, log: Path
) -> object:
    until = time.monotonic() + patience
    while True:
        try:
            return ready()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{process.args!r} does not answer: {error}\n{tail}") from error
        time.sleep(0.05)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To the server and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
