"""One operation on a store: retried where that is sound, bounded, on behalf of all that is above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from deltastore.backends.base import Backend
from deltastore.backends.retry import RetryPolicy, call
from deltastore.protocol.identity import Identity
from deltastore.runtime import SYSTEM, Runtime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """What every part of a store needs.

    Attributes:
        backend: Where the store lies.
        identity: What STORE.json said when it was opened.
        runtime: Time and randomness.
        retry: How long transient errors are tried again.
    """

    backend: Backend
    identity: Identity
    runtime: Runtime = SYSTEM
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def get(self, key: str, *, most: int) -> bytes:
        """Fetches an object of at most `most` bytes."""
        return self.call(partial(self.backend.get, key, max_size=most))

    def call(self, operation: Callable[[], T]) -> T:
        """Runs an idempotent operation under the retry policy."""
        return call(operation, policy=self.retry, runtime=self.runtime)
