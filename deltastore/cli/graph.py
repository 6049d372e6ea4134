"""The graph column of `deltastore log`: a node per version, and lines beside them for the skips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_LANES: Final = 4
"""Skips drawn side by side; what is beyond is still counted in the row of its target."""

_BOX: Final = {
    (False, False, False, False): " ",
    (True, True, False, False): "│",
    (False, False, True, True): "─",
    (False, True, True, False): "╮",
    (False, True, True, True): "┬",
    (True, False, True, False): "╯",
    (True, False, True, True): "┴",
    (True, True, True, False): "┤",
    (True, True, True, True): "┼",
}
"""Signs by where their lines go: up, down, left, right."""


@dataclass(frozen=True, slots=True)
class Skip:
    """An edge that skips versions."""

    base: int
    target: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A skip as it is drawn: from a row down to another, or out of sight."""

    lane: int
    top: int
    bottom: int


def draw(versions: Sequence[int], nodes: Sequence[str], skips: Iterable[Skip]) -> Iterator[str]:
    """The column, row by row.

    Args:
        versions: Shown, newest first.
        nodes: The sign of each.
        skips: Edges from an older version to a shown one. One whose base is not shown ends at the next
            older row, and goes on downwards where there is none.
    """
    lines = list(_lines(versions, skips))
    width = max((line.lane for line in lines), default=-1) + 1
    for row, node in enumerate(nodes):
        touching = [line.lane for line in lines if row in {line.top, line.bottom}]
        reach = max(touching, default=-1)
        cells = [node]
        for lane in range(width):
            here = [line for line in lines if line.lane == lane and line.top <= row <= line.bottom]
            up = any(line.top < row for line in here)
            down = any(line.bottom > row for line in here)
            left, right = lane <= reach, lane < reach
            cells.append(("─" if left else " ") + _BOX[up, down, left, right])
        yield "".join(cells).rstrip()


def _lines(versions: Sequence[int], skips: Iterable[Skip]) -> Iterator[_Line]:
    free = [0] * _LANES
    rows = {version: row for row, version in enumerate(versions)}
    shown = [skip for skip in set(skips) if skip.target in rows]
    for skip in sorted(shown, key=lambda s: (rows[s.target], s.target - s.base)):
        top = rows[skip.target]
        bottom = next((row for row, v in enumerate(versions) if v <= skip.base), len(versions))
        lane = next((lane for lane, row in enumerate(free) if row <= top), None)
        if lane is not None:
            free[lane] = bottom
            yield _Line(lane, top, bottom)
