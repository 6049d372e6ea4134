"""Times what is interleaved: in every round each candidate runs once, so that noise hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Self

from bench.rows import Cell, Row

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Of at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples))

    def cells(self, name: str) -> Row:
        """As cells of a row: `name`, `name_low`, `name_high`."""
        return {name: self.median, f"{name}_low": self.low, f"{name}_high": self.high}


def seconds(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - start


class Rounds:
    """Samples by round and candidate; ratios are taken within a round."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, float]] = []

    def begin(self) -> None:
        """Starts a round."""
        self._rounds.append({})

    def add(self, name: str, took: float) -> None:
        """A sample of the current round."""
        self._rounds[-1][name] = took

    def samples(self, name: str) -> list[float]:
        """Seconds of a candidate, round by round."""
        return [done[name] for done in self._rounds if name in done]

    def over(self, name: str, limit: str) -> list[float]:
        """Ratios to a limit, round by round."""
        return [done[name] / done[limit] for done in self._rounds if name in done]

    def row(self, name: str, *, gigabytes: float, limits: dict[str, str], **cells: Cell) -> Row:
        """A row with milliseconds per GB and with the ratios to limits.

        Args:
            name: The candidate.
            gigabytes: What a run works on.
            limits: Column of a ratio by the name of the limit.
            cells: What else the row says.
        """
        samples = self.samples(name)
        row: Row = dict(cells)
        row |= Spread.of([1000 * took / gigabytes for took in samples]).cells("ms_per_gb")
        for limit, column in limits.items():
            row |= Spread.of(self.over(name, limit)).cells(column)
        row["repetitions"] = len(samples)
        return row
