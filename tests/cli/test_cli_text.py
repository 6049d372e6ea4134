"""Numbers as people read them."""

from __future__ import annotations

import pytest

from deltastore.cli import text
from deltastore.cli.output import plain


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_999, "1.00 MB"),
        (1_234_567_890, "1.23 GB"),
        (2 * 10**18, "2000 PB"),
    ],
)
def test_sizes_have_three_digits(count: int, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 7, "0 %"),
        (1, 0, "-"),
        (1, 10**5, "0.001 %"),
        (1, 100, "1.00 %"),
        (1, 3, "33.3 %"),
        (7, 7, "100 %"),
    ],
)
def test_shares_have_the_digits_that_they_need(part: int, whole: int, shown: str) -> None:
    assert text.percent(part, whole) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3, "0 s"), (59, "59 s"), (60, "1 m"), (7200, "2 h"), (864_000, "10 d")]
)
def test_ages_are_in_their_largest_unit(seconds: float, shown: str) -> None:
    assert text.age(seconds) == shown


def test_a_moment_that_no_calendar_has_is_still_shown() -> None:
    assert text.when(0) == "1970-01-01 00:00:00 UTC"
    assert text.when(9e15).endswith("s after 1970")


def test_values_that_json_does_not_have_become_text() -> None:
    value = {"a": b"\x01\xff", "b": [float("nan"), 1.5, None, True], "c": (1, "x")}
    assert plain(value) == {"a": "01ff", "b": ["nan", 1.5, None, True], "c": [1, "x"]}
