"""Work is spread over the cores, in order, and never goes on behind the caller's back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from deltastore import threads
from deltastore.parallel import INLINE, Workers

WAIT = 60.0


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many threads compute."""
    return lambda count: monkeypatch.setenv("DELTASTORE_THREADS", str(count))


class Gauge:
    """How many are inside at once, at most, and in which threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0
        self.threads: set[int] = set()

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def test_what_is_not_a_number_of_threads_leaves_it_at_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTASTORE_THREADS", raising=False)
    every = threads.count()
    for asked in ("", "all", "-1", "\N{SUPERSCRIPT TWO}"):
        monkeypatch.setenv("DELTASTORE_THREADS", asked)
        assert threads.count() == every


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_results_come_in_order(cores: Callable[[int], None], count: int) -> None:
    cores(count)
    assert threads.spread(lambda i: i * i, range(200)) == [i * i for i in range(200)]
    assert list(threads.flow(str, range(50), budget=7, size=lambda i: i % 3)) == [str(i) for i in range(50)]
    assert threads.spread(str, []) == []


def test_idle_cores_help(cores: Callable[[int], None]) -> None:
    cores(3)
    together = threading.Barrier(3)
    threads.spread(lambda _: together.wait(WAIT), range(3))


def test_a_stream_of_work_is_begun_while_more_is_drawn(cores: Callable[[int], None]) -> None:
    cores(2)
    begun = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert begun.wait(WAIT)
        yield 1

    def work(i: int) -> int:
        begun.set()
        return i

    assert list(threads.flow(work, items(), budget=10)) == [0, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_work_inside_of_work_neither_blocks_nor_takes_more_cores(
    cores: Callable[[int], None], count: int
) -> None:
    cores(count)
    gauge = Gauge()

    def leaf(i: int) -> int:
        with gauge:
            return sum(range(i % 50))

    def branch(i: int) -> list[int]:
        return threads.spread(leaf, range(i, i + 20))

    def worker(i: int) -> list[list[int]]:
        with threads.core():
            return threads.spread(branch, range(i, i + 10))

    with ThreadPoolExecutor(6) as waiting:
        found = list(waiting.map(worker, range(12), timeout=WAIT))
    values = [sum(range(k % 50)) for k in range(60)]
    assert found == [[values[j : j + 20] for j in range(i, i + 10)] for i in range(12)]
    assert gauge.most <= count


def test_who_waits_for_stores_computes_on_no_more_threads_than_there_are_cores(
    cores: Callable[[int], None],
) -> None:
    cores(2)
    gauge = Gauge()

    def work(i: int) -> int:
        with threads.core(), threads.core(), gauge:
            return i

    assert list(Workers(threads=8).map(work, range(100))) == list(range(100))
    assert gauge.most <= 2


def test_inline_workers_do_everything_in_the_callers_thread(cores: Callable[[int], None]) -> None:
    cores(8)
    gauge = Gauge()

    def leaf(i: int) -> int:
        with gauge:
            return i

    def work(_: int) -> list[int]:
        with threads.core():
            return threads.spread(leaf, range(30))

    assert list(INLINE.map(work, range(3))) == [list(range(30))] * 3
    assert gauge.threads == {threading.get_ident()}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_first_error_in_order_is_raised(cores: Callable[[int], None], count: int) -> None:
    cores(count)

    def work(i: int) -> int:
        if i % 7 == 5:
            raise ValueError(i)
        return i

    for _ in range(20):
        with pytest.raises(ValueError, match=r"^5$"):
            threads.spread(work, range(60))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_goes_on_after_an_error(cores: Callable[[int], None], error: type[BaseException]) -> None:
    """The caller's own piece breaks off while another thread is in the middle of its own."""
    cores(2)
    caller = threading.get_ident()
    other, broken = threading.Event(), threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def work(i: int) -> None:
        begun.append(i)
        if threading.get_ident() == caller:
            assert other.wait(WAIT)
            broken.set()
            raise error
        other.set()
        assert broken.wait(WAIT)
        ended.append(i)

    with pytest.raises(error):
        threads.spread(work, range(10))
    assert len(begun) == 2
    assert len(ended) == 1


def test_a_stream_that_is_not_taken_to_its_end_begins_nothing_more(cores: Callable[[int], None]) -> None:
    cores(2)
    begun: list[int] = []
    with closing(threads.flow(begun.append, range(1000), budget=3)) as flow:
        next(flow)
    there = len(begun)
    threads.spread(str, range(10))
    assert len(begun) == there < 10


def test_no_more_is_drawn_than_the_budget_allows(cores: Callable[[int], None]) -> None:
    cores(4)
    caller = threading.get_ident()
    drawn, taken = [], []

    def items() -> Iterator[int]:
        for i in range(100):
            assert threading.get_ident() == caller
            drawn.append(i)
            yield i

    for i in threads.flow(lambda i: i, items(), budget=20, size=lambda _: 4):
        taken.append(i)
        assert len(drawn) - len(taken) < 5


def test_items_are_put_together_to_pieces() -> None:
    assert list(threads.groups([3, 3, 9, 1, 1], lambda i: i, most=5)) == [[3, 3], [9], [1, 1]]
    assert list(threads.groups([3, 3], lambda i: i, most=0)) == [[3], [3]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(cores: Callable[[int], None]) -> None:
    cores(3)
    together = threading.Barrier(3)
    threads.spread(lambda _: together.wait(WAIT), range(3))
    with threads.core():  # which the child never gives back
        child = os.fork()
        if child == 0:
            together = threading.Barrier(3)
            try:
                threads.spread(lambda _: together.wait(WAIT), range(3))
            except BaseException:  # noqa: BLE001 - the parent is told, and pytest must not go on here
                os._exit(1)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
