from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.backends.retry import RetryPolicy, call
from deltastore.errors import (
    AuthError,
    BackendError,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Unavailable,
    UsageError,
)
from deltastore.runtime import Runtime


class World:
    """A clock that only sleeping and working move, and a die that always shows the same."""

    def __init__(self, fraction: float = 0.5) -> None:
        self.time = 1000.0
        self.sleeps: list[float] = []
        word = min(int(fraction * 2**64), 2**64 - 1)
        self.runtime = Runtime(
            monotonic=lambda: self.time,
            sleep=self._sleep,
            random_bytes=lambda n: word.to_bytes(8, "little")[:n],
        )

    def _sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.time += seconds


def failing(*errors: Exception, result: str = "done") -> Callable[[], str]:
    """An operation that raises each error in turn, then succeeds."""
    pending = list(errors)

    def operation() -> str:
        if pending:
            raise pending.pop(0)
        return result

    return operation


def test_success_needs_no_wait() -> None:
    world = World()
    assert call(failing(), runtime=world.runtime) == "done"
    assert world.sleeps == []


def test_transient_errors_are_retried_with_growing_waits_up_to_the_cap() -> None:
    world = World(fraction=0.5)
    policy = RetryPolicy(deadline=60, base=1, cap=4)
    operation = failing(*[Unavailable("down")] * 5)
    assert call(operation, policy=policy, runtime=world.runtime) == "done"
    assert world.sleeps == [0.5, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", [NotFound, AuthError, NoSpace, OutcomeUnknown])
def test_other_errors_pass_through_at_once(kind: type[BackendError]) -> None:
    world = World()
    with pytest.raises(kind):
        call(failing(kind("no"), result="never"), runtime=world.runtime)
    assert world.sleeps == []


def test_errors_that_are_not_ours_pass_through_at_once() -> None:
    world = World()
    with pytest.raises(ZeroDivisionError):
        call(failing(ZeroDivisionError()), runtime=world.runtime)
    assert world.sleeps == []


def test_last_error_is_raised_when_the_deadline_has_come() -> None:
    world = World(fraction=0.5)
    attempts: list[float] = []

    def operation() -> None:
        attempts.append(world.time - 1000)
        raise Unavailable(f"attempt {len(attempts)}")

    policy = RetryPolicy(deadline=10, base=1, cap=4)
    with pytest.raises(Unavailable) as caught:
        call(operation, policy=policy, runtime=world.runtime)
    assert caught.value.what == f"attempt {len(attempts)}"
    assert caught.value.__notes__ == [f"Gave up after {len(attempts)} attempt(s) in 10.0 s"]
    assert attempts == [0, 0.5, 1.5, 3.5, 5.5, 7.5, 9.5, 10.0]


def test_time_that_the_operation_takes_counts() -> None:
    world = World()

    def operation() -> None:
        world.time += 7
        raise Unavailable("timed out")

    with pytest.raises(Unavailable):
        call(operation, policy=RetryPolicy(deadline=10), runtime=world.runtime)
    assert world.time < 1000 + 2 * 7 + 1


def test_no_deadline_means_one_attempt() -> None:
    world = World()
    with pytest.raises(Unavailable):
        call(failing(Unavailable("down")), policy=RetryPolicy(deadline=0), runtime=world.runtime)
    assert world.sleeps == []


def test_retry_after_is_honoured_beyond_the_cap() -> None:
    world = World(fraction=0.5)
    policy = RetryPolicy(deadline=60, base=1, cap=4)
    operation = failing(Throttled("slow down", retry_after=20.0))
    assert call(operation, policy=policy, runtime=world.runtime) == "done"
    assert world.sleeps == [20.5]


def test_retry_after_past_the_deadline_is_not_waited_for() -> None:
    world = World()
    with pytest.raises(Throttled, match="slow down"):
        call(failing(Throttled("slow down", retry_after=61.0)), runtime=world.runtime)
    assert world.sleeps == []


@pytest.mark.parametrize("retry_after", [None, -5.0, 0.0, float("nan")])
def test_throttling_without_a_usable_time_backs_off(retry_after: float | None) -> None:
    world = World(fraction=0.5)
    operation = failing(Throttled("slow down", retry_after=retry_after))
    policy = RetryPolicy(base=1, cap=4)
    assert call(operation, policy=policy, runtime=world.runtime) == "done"
    assert world.sleeps == [0.5]


@given(fraction=st.floats(0, 1), failures=st.integers(1, 12))
def test_jitter_is_bounded(fraction: float, failures: int) -> None:
    world = World(fraction)
    policy = RetryPolicy(deadline=1000, base=0.25, cap=4)
    call(failing(*[Unavailable("down")] * failures), policy=policy, runtime=world.runtime)
    for attempt, slept in enumerate(world.sleeps):
        bound = min(4, 0.25 * 2**attempt)
        assert 0 <= slept < bound
        assert slept == pytest.approx(fraction * bound)


@pytest.mark.parametrize(
    ("deadline", "base", "cap"), [(-1, 1, 1), (1, 0, 1), (1, 2, 1), (float("nan"), 1, 1)]
)
def test_policy_without_sense_is_refused(deadline: float, base: float, cap: float) -> None:
    with pytest.raises(UsageError, match="cannot be followed"):
        RetryPolicy(deadline=deadline, base=base, cap=cap)
