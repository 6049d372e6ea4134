"""The other end of `bench.process`: an order comes from standard input, the result is the last line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from bench.parts import anchors, digests, growth, memory, merge, speed
from bench.process import as_json
from bench.rows import Section
from bench.settings import Settings

TASKS: Final[Mapping[str, Callable[..., Section]]] = {
    "speed": speed.task,
    "anchors": anchors.task,
    "merge": merge.task,
    "digest": digests.task,
    "faults": digests.faults,
    "memory": memory.task,
    "growth": growth.task,
}
"""Each takes settings, cores, and its own keyword arguments."""


def main() -> None:
    """Does one task."""
    order = json.load(sys.stdin)
    cores: int = order["cores"]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    settings = Settings.from_json(order["settings"])
    section = TASKS[order["task"]](settings, cores=cores, **order["arguments"])
    sys.stdout.write(as_json(section) + "\n")


if __name__ == "__main__":
    main()
