"""Logs by hand, and terms over storage whose clock tests move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from record_samples import SCHEMA, STORE, anchor, delta, short_log

from deltastore.backends.base import Buffer, Put
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.producer.holder import Process
from deltastore.producer.term import Content, Term
from deltastore.protocol import keys
from deltastore.protocol.identity import Identity
from deltastore.protocol.records import Slot, Stats, VersionRecord
from deltastore.runtime import Runtime
from deltastore.store import Store
from deltastore.testing import FaultBackend

LOG = short_log()
ME = Process("here", 11)
YOU = Process("there", 22)
ONCE = RetryPolicy(deadline=0)


class Storage(MemoryBackend):
    """Memory with a clock that tests move, and with what was put."""

    def __init__(self) -> None:
        self.time = 5000.0
        self.puts: list[bytes] = []
        super().__init__(clock=lambda: self.time)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        self.puts.append(bytes(data))
        return super().put_if_absent(key, data)


def holding(slots: list[Slot], **identity: Any) -> Storage:
    storage = Storage()
    storage.put(keys.STORE, Identity(store=STORE, **identity).to_bytes())
    for one in slots:
        storage.put(keys.version(one.version), one.data)
    return storage


def opened(storage: MemoryBackend | FaultBackend) -> Store:
    return Store.open(storage, retry=ONCE, runtime=Runtime(now=lambda: 1e9, sleep=lambda _: None))


def begin(storage: MemoryBackend | FaultBackend, *, process: Process = ME, takeover: bool = True) -> Term:
    return Term.begin(opened(storage), takeover=takeover, process=process)


def record(found: Slot | None) -> VersionRecord:
    assert found is not None
    assert isinstance(found.record, VersionRecord)
    return found.record


def content(term: Term, **changes: Any) -> Content:
    last = term.last
    assert last is not None
    version, old = term.next_version, last.record.state
    state = 7000 + version
    edge = anchor(version, state) if old is None else delta(last.version, old, version, state)
    made = Content(
        schema=SCHEMA,
        files={},
        state=state,
        edge=edge,
        step=version,
        last_anchor=None,
        resumed_from=None,
        stats=Stats(1, 2, 3, 4),
        user={},
    )
    return replace(made, **changes)


def versions(storage: MemoryBackend) -> list[str]:
    return [info.key for info in storage.list("versions/")]
