"""Time and randomness as values, so that a simulator can pass in its own (spec, Notes for implementers)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the world outside the store and the protocol provides.

    Attributes:
        now: Wall clock in Unix seconds. Informative: no safety rule reads it.
        monotonic: Seconds that never go back, for deadlines and intervals.
        sleep: Waits so many seconds.
        random_bytes: So many unpredictable bytes, for nonces and store ids.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random_bytes: Callable[[int], bytes] = secrets.token_bytes


SYSTEM = Runtime()
