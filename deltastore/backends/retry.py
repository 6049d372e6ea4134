"""The one retry policy (spec, Notes for implementers): full jitter under a monotonic deadline.

Drivers raise `Throttled` and `Unavailable` and leave it to this module to try again. Conditional puts
never come here: after an error their outcome has to be read back first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from deltastore.errors import Throttled, Unavailable, UsageError
from deltastore.runtime import SYSTEM, Runtime

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how eagerly to try again.

    Attributes:
        deadline: Seconds from the first attempt after which no other begins; 0 is a single attempt.
        base: Upper bound of the first wait in seconds; it doubles with each.
        cap: Upper bound of every wait in seconds, unless the store itself asks for a longer one.
    """

    deadline: float = 60.0
    base: float = 0.1
    cap: float = 5.0

    def __post_init__(self) -> None:
        if not (self.deadline >= 0 and 0 < self.base <= self.cap):
            raise UsageError(f"{self} cannot be followed", hint="It needs deadline >= 0 and 0 < base <= cap")


DEFAULT = RetryPolicy()


def call(operation: Callable[[], T], *, policy: RetryPolicy = DEFAULT, runtime: Runtime = SYSTEM) -> T:
    """Calls an idempotent operation until it succeeds, fails for good, or time is up.

    A wait is uniform in [0, bound), so that a fleet that failed together does not come back together;
    the store's own `retry_after` is added in front of it.

    Raises:
        Throttled, Unavailable: The last one, once the deadline has come or `retry_after` lies past it.
    """
    begun = runtime.monotonic()
    bound = policy.base
    attempts = 0
    while True:
        attempts += 1
        try:
            return operation()
        except (Throttled, Unavailable) as error:
            asked = max(0.0, error.retry_after or 0.0) if isinstance(error, Throttled) else 0.0
            elapsed = runtime.monotonic() - begun
            remaining = policy.deadline - elapsed
            if remaining <= 0 or asked > remaining:
                error.add_note(f"Gave up after {attempts} attempt(s) in {elapsed:.1f} s")
                raise
            wait = min(remaining, asked + bound * _fraction(runtime))
            _log.debug("retrying", extra={"attempt": attempts, "wait": wait, "error": error.what})
        runtime.sleep(wait)
        bound = min(policy.cap, bound * 2)


def _fraction(runtime: Runtime) -> float:
    """A uniform number in [0, 1)."""
    return (int.from_bytes(runtime.random_bytes(8), "little") >> 11) / 2**53
