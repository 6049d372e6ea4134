"""Stores with logs that were written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from record_samples import STORE

from deltastore.backends.base import Backend
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.protocol import keys
from deltastore.protocol.identity import Identity
from deltastore.protocol.records import Slot
from deltastore.runtime import Runtime
from deltastore.store import Store

ONCE = RetryPolicy(deadline=0)


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def runtime(self) -> Runtime:
        return Runtime(now=lambda: 1e9 + self.now, monotonic=lambda: self.now, sleep=self.sleep)


def holding(slots: Iterable[Slot] = (), *, conditional: bool = True, **identity: Any) -> MemoryBackend:
    """Storage with a store and these slots."""
    backend = MemoryBackend(conditional=conditional)
    backend.put(keys.STORE, Identity(store=STORE, **identity).to_bytes())
    for slot in slots:
        backend.put(keys.version(slot.version), slot.data)
    return backend


def opened(backend: Backend, *, retry: RetryPolicy = ONCE) -> Store:
    return Store.open(backend, retry=retry, runtime=Clock().runtime())
