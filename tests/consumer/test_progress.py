"""Progress of a consumer: told in bytes, up to those of the plan."""

from __future__ import annotations

import threading
import time

from support import State, blank, producer, stepped

from deltastore import Consumer, Store
from deltastore.parallel import Workers


def test_progress_ends_at_the_bytes_of_the_plan(store: Store, weights: State) -> None:
    with producer(store, shard_bytes=512) as publishing:
        publishing.publish(weights, step=1).result(60)
        publishing.publish(stepped(weights, 1), step=2).result(60)
    told: list[tuple[int, int]] = []
    following = Consumer(store, blank(weights), progress=lambda done, goal: told.append((done, goal)))
    fetched = following.stage().bytes_fetched
    assert len(told) > 2
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {goal for _, goal in told} == {fetched}
    assert told[-1] == (fetched, fetched)


def test_each_plan_counts_from_nothing(store: Store, weights: State) -> None:
    told: list[tuple[int, int]] = []
    following = Consumer(store, blank(weights), progress=lambda done, goal: told.append((done, goal)))
    with producer(store) as publishing:
        publishing.publish(weights, step=1).result(60)
        following.update()
        told.clear()
        publishing.publish(stepped(weights, 1), step=2).result(60)
    staged = following.stage()
    assert told == [(staged.bytes_fetched, staged.bytes_fetched)]


def test_progress_is_never_told_by_two_threads_at_once(store: Store, weights: State) -> None:
    with producer(store, shard_bytes=64) as publishing:
        publishing.publish(weights, step=1).result(60)
    inside = threading.Lock()
    collisions = []

    def progress(done: int, goal: int) -> None:
        if not inside.acquire(blocking=False):
            collisions.append(done)
            return
        time.sleep(0.002)
        inside.release()

    Consumer(store, blank(weights), progress=progress, workers=Workers(8)).stage()
    assert collisions == []
