"""Processes that tests kill: a trainer that publishes for ever, and servers that follow for ever.

Run as `python workers.py ROLE ROOT PLACE SEED`. Every version's bits follow from its step alone, so that
whoever looks at it afterwards needs no word from the process that made it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deltastore import Consumer, MaxChain, Producer, Store
from deltastore.errors import Conflict, Fenced
from deltastore.parallel import Workers

NAMES = ("embed", "head", "norm")
LANES = (40_000, 30_001, 77)
Arrays = dict[str, NDArray[np.float32]]


def state(step: int) -> Arrays:
    """The weights at a step: each differs in a few places from those of the step before."""
    found = {}
    for name, lanes in zip(NAMES, LANES, strict=True):
        array = np.arange(lanes, dtype=np.float32)
        for k in range(max(0, step - 40), step + 1):
            array[k * 7919 % lanes :: 501] += k + 1
        found[name] = array
    return found


def publish(root: str, seed: int) -> None:
    """Publishes as fast as it can, each step under its own number."""
    store = Store.open(root)
    step = last_step(store) + 1
    workers = Workers(seed % 3)
    with Producer(store, takeover=True, anchors=MaxChain(3), shard_bytes=50_000, workers=workers) as out:
        while True:
            try:
                publication = out.publish(state(step), step=step)
            except Fenced:
                raise
            except Conflict:  # the one before was faster than our claim
                continue
            if seed % 2:
                publication.result()
                print(step, flush=True)
            step += 1


def last_step(store: Store) -> int:
    """The step of the newest version that has one."""
    newest = store.log.newest_number()
    for version in range(newest if newest is not None else -1, -1, -1):
        slot = store.log.slot(version)
        if slot is not None and slot.record.step is not None:
            return slot.record.step
    return 0


def follow(root: str, place: str, *, directory: bool) -> None:
    """Follows with a directory, or with memory and a cache."""
    store = Store.open(root)
    memory = {name: np.zeros(lanes, np.float32) for name, lanes in zip(NAMES, LANES, strict=True)}
    target = Path(place) / "model" if directory else memory
    reader = Consumer(store, target, cache=Path(place) / "cache", workers=Workers(2))
    while True:
        if (info := reader.update()) is not None:
            if info.step is not None and not directory:
                expected = state(info.step)
                assert all(memory[name].tobytes() == expected[name].tobytes() for name in NAMES)
            print(info.version, flush=True)
        time.sleep(0.001)


if __name__ == "__main__":
    role, root_, place_, seed_ = sys.argv[1:]
    if role == "publish":
        publish(root_, int(seed_))
    follow(root_, place_, directory=role == "directory")
