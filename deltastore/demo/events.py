"""What the processes of the demo tell whoever started them: one JSON object per line of stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Warmed:
    """The warm start has come so far."""

    step: int
    reward: float


@dataclass(frozen=True, slots=True)
class Trained:
    """One step of the policy gradient.

    Attributes:
        step: Which.
        reward: Mean reward of its rollouts.
        clipped: Share of their tokens whose importance ratio was outside of the clip.
        staleness: Of each of its batches, by how many versions it was behind.
        dropped: Batches that were too old to be used.
    """

    step: int
    reward: float
    clipped: float
    staleness: list[int]
    dropped: int


@dataclass(frozen=True, slots=True)
class Published:
    """A version is committed.

    Attributes:
        version: Its number.
        step: The trainer's step.
        sha256: Of the weights that were handed to the library.
        size: Their bytes.
        changed: Elements whose bits differ from the version before.
        elements: Elements in all.
        milliseconds: From the call to the commit.
    """

    version: int
    step: int
    sha256: str
    size: int
    changed: int
    elements: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Committed:
    """A worker serves another version.

    Attributes:
        worker: Which worker.
        version: The version.
        sha256: Of its weights after the commit.
        pause: Milliseconds for which it could not sample.
        fetched: Bytes that it downloaded for it.
        audit: Whether this was the walk over all versions at the end, and not serving.
    """

    worker: str
    version: int
    sha256: str
    pause: float
    fetched: int
    audit: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Expected reward on held-out prompts, with weights that came through the store.

    Attributes:
        first: At the first version.
        last: At the last.
        error: Standard error of the difference, over prompts.
    """

    first: float
    last: float
    error: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The trainer has published its last version."""

    version: int


Event = Warmed | Trained | Published | Committed | Measured | Finished

_KINDS: Final[dict[str, type[Event]]] = {
    kind.__name__: kind for kind in (Warmed, Trained, Published, Committed, Measured, Finished)
}
_saying = threading.Lock()


def say(event: Event) -> None:
    """Writes an event to stdout, from any thread."""
    line = json.dumps({"event": type(event).__name__, **asdict(event)})
    with _saying:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def parse(line: str) -> Event:
    """The event of a line that `say` wrote."""
    values = json.loads(line)
    return _KINDS[values.pop("event")](**values)


class Orphaned:
    """Whether the process that started this one is gone, so that nobody would end it."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def __bool__(self) -> bool:
        return os.getppid() != self._parent
