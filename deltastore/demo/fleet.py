"""The processes of the demo: how they are started, heard, killed and waited for."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from deltastore.demo.config import Job
from deltastore.demo.events import Event, parse
from deltastore.demo.failure import DemoFailed

_GRACE = 5.0
_TAIL = 12


@dataclass(frozen=True, slots=True)
class _Process:
    popen: subprocess.Popen[str]
    listener: threading.Thread
    log: Path


class Fleet:
    """Processes by name, and one queue of what they say.

    Args:
        logs: The directory for what they write to stderr.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._running: dict[str, _Process] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(self, module: str, job: Job) -> None:
        """Starts a process under the name of its job."""
        log = self._logs / f"{job.name}.log"
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        with log.open("a") as errors:
            popen = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
                [sys.executable, "-m", module, job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert popen.stdout is not None  # noqa: S101 - it was asked for
        listener = threading.Thread(target=self._listen, args=(popen.stdout,), name=job.name, daemon=True)
        listener.start()
        self._running[job.name] = _Process(popen, listener, log)

    def next_event(self, timeout: float) -> Event | None:
        """What was said next, or None after so many seconds of silence.

        Raises:
            DemoFailed: A process ended that should not have.
        """
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            self._look_after()
            return None

    def kill(self, name: str) -> None:
        """Kills a process at once, as a lost machine would: SIGKILL, no clean-up of any kind.

        Raises:
            DemoFailed: It, or another, ended before that.
        """
        self._look_after()
        process = self._running.pop(name)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        process.listener.join()

    def is_over(self) -> bool:
        """Whether every process has ended, and all that they said was taken."""
        return not self._running and self._events.empty()

    def close(self) -> None:
        """Ends whatever still runs."""
        for process in self._running.values():
            process.popen.terminate()
        for process in self._running.values():
            try:
                process.popen.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            process.listener.join()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                if line.endswith("\n"):
                    self._events.put(parse(line))

    def _look_after(self) -> None:
        for name, process in list(self._running.items()):
            status = process.popen.poll()
            if status is None:
                continue
            process.listener.join()
            del self._running[name]
            if status != 0:
                said = process.log.read_text().strip().splitlines()[-_TAIL:]
                raise DemoFailed(
                    f"the process {name} ended with status {status}:\n" + "\n".join(said) + "\n",
                    hint=f"All that it said is in {process.log}",
                    process=name,
                    status=status,
                )
