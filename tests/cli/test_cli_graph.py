"""The graph column: lines from the targets of skips to their bases."""

from __future__ import annotations

from deltastore.cli.graph import Skip, draw


def column(versions: list[int], *skips: tuple[int, int]) -> list[str]:
    return list(draw(versions, ["o"] * len(versions), [Skip(*skip) for skip in skips]))


def test_without_skips_there_are_only_nodes() -> None:
    assert column([3, 2, 1]) == ["o", "o", "o"]


def test_a_skip_leads_from_its_target_down_to_its_base() -> None:
    assert column([4, 3, 2, 1], (1, 4)) == ["o─╮", "o │", "o │", "o─╯"]


def test_skips_that_follow_each_other_share_a_lane() -> None:
    assert column([4, 3, 2, 1, 0], (2, 4), (0, 2)) == ["o─╮", "o │", "o─┤", "o │", "o─╯"]


def test_a_long_skip_runs_outside_of_short_ones() -> None:
    drawn = column([4, 3, 2, 1, 0], (0, 4), (2, 4), (0, 2))
    assert drawn == ["o─┬─╮", "o │ │", "o─┤ │", "o │ │", "o─┴─╯"]


def test_a_skip_that_starts_while_another_runs_crosses_it() -> None:
    assert column([5, 4, 3, 2, 1], (1, 5), (2, 4)) == ["o─╮", "o─┼─╮", "o │ │", "o─┼─╯", "o─╯"]


def test_a_base_below_the_window_is_out_of_sight() -> None:
    assert column([9, 8], (1, 9)) == ["o─╮", "o │"]


def test_a_base_that_is_folded_away_ends_at_the_next_older_row() -> None:
    assert column([6, 4, 3], (5, 6)) == ["o─╮", "o─╯", "o"]


def test_a_skip_to_a_version_that_is_not_shown_is_left_out() -> None:
    assert column([3, 2], (1, 9)) == ["o", "o"]


def test_more_skips_than_lanes_leave_the_column_narrow() -> None:
    drawn = column([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], *((base, 9) for base in range(8)))
    assert max(map(len, drawn)) == 1 + 2 * 4
