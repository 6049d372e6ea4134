"""Who wrote the last record, and is it still there? Advice for takeovers; no safety rule reads it.

Spec, Terms and claims.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from deltastore.errors import BackendError, LimitExceeded
from deltastore.protocol import keys
from deltastore.protocol.commit import Holder
from deltastore.protocol.records import Slot
from deltastore.store import Store

_STATUS_BYTES = 4096
_CLOCK = keys.status("clock")


@dataclass(frozen=True, slots=True)
class Process:
    """This process, as another one on the same host can recognise it."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def started(self) -> str:
        """When it started, in the kernel's ticks; a process id is used again, the pair is not."""
        return _started(self.pid)

    def gone(self, host: str, pid: int, started: str) -> bool:
        """Whether another process is known to have ended, or to be this very one."""
        if host != self.host:
            return False
        return pid == self.pid or _started(pid) != started


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def write_status(store: Store, term: int, process: Process, *, closed: bool) -> None:
    """Says who holds a term; a store that does not take it is no reason to stop."""
    status = {"host": process.host, "pid": process.pid, "started": process.started, "closed": closed}
    try:
        store.access.backend.put(_key(term), json.dumps(status).encode())
    except BackendError:
        return


def read_holder(store: Store, last: Slot, process: Process) -> Holder:
    """What is known of the producer that wrote the last record, by the store's own clock."""
    backend = store.access.backend
    store.access.call(lambda: backend.put(_CLOCK, b""))
    now = store.access.call(lambda: backend.head(_CLOCK)).modified
    age = now - store.access.call(lambda: backend.head(keys.version(last.version))).modified
    try:
        status = json.loads(store.access.get(_key(last.record.term), most=_STATUS_BYTES))
        gone = process.gone(str(status["host"]), int(status["pid"]), str(status["started"]))
        return Holder(closed=status["closed"] is True, gone=gone, age=age)
    except (BackendError, LimitExceeded, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Holder(closed=False, gone=False, age=age)


def _key(term: int) -> str:
    return keys.status(f"producer-{term}")
