"""The goals of the codecs and kernels, and whether results reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.parts.growth import FIT
from bench.rows import Row, Section, number, where

Sections = Mapping[str, Section]


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure to reach.

    Attributes:
        what: In words.
        limit: What it must be at most, or at least.
        at_least: Which of the two.
        find: The figures in the results, the worst of which counts; none if they do not tell.
        unit: For tables.
    """

    what: str
    limit: float
    find: Callable[[Sections], Iterable[float]]
    at_least: bool = False
    unit: str = ""

    def verdict(self, sections: Sections) -> tuple[float | None, bool | None]:
        """The worst figure, and whether it reaches the goal."""
        found = list(self.find(sections))
        if not found:
            return None, None
        worst = min(found) if self.at_least else max(found)
        return worst, worst >= self.limit if self.at_least else worst <= self.limit


def _rows(sections: Sections, part: str) -> list[Row]:
    """Rows with deltastore's own choice of kernels: where the numpy twin ran as well, not that one."""
    rows = sections[part].rows if part in sections else []
    compiled = [row for row in rows if not str(row.get("kernels", "")).startswith("numpy")]
    return compiled or rows


def _size(
    form: str, column: str, low: float, high: float, *, real: bool, least: int = 0
) -> Callable[[Sections], list[float]]:
    return lambda sections: [
        number(row, column)
        for row in where(_rows(sections, "size"), form=form, real=real)
        if low <= number(row, "density") <= high and number(row, "changed") >= least
    ]


def _ratio_of_sizes(form: str, to: str, *, real: bool) -> Callable[[Sections], list[float]]:
    def find(sections: Sections) -> list[float]:
        rows = _rows(sections, "size")
        other = {row["pair"]: number(row, "bytes_per_change") for row in where(rows, form=to)}
        return [
            number(row, "bytes_per_change") / other[row["pair"]]
            for row in where(rows, form=form, real=real)
            if row["pair"] in other
        ]

    return find


def _speed(
    form: str, side: str, column: str, low: float, high: float, *, cores: int = 1
) -> Callable[[Sections], list[float]]:
    return lambda sections: [
        number(row, column)
        for row in where(_rows(sections, "speed"), form=form, side=side, cores=cores)
        if low <= number(row, "density") <= high
    ]


def _scaling(sections: Sections) -> list[float]:
    """Speed of the producer on all cores over that on one, density by density."""
    rows = where(_rows(sections, "speed"), form="ulp", side="producer")
    one = {row["density"]: number(row, "ms_per_gb") for row in rows if row["cores"] == 1}
    return [
        one[row["density"]] / number(row, "ms_per_gb")
        for row in rows
        if row["cores"] != 1 and row["density"] in one
    ]


def _against(*names: str, others: bool = False) -> Callable[[Sections], list[float]]:
    """Producer of peers over ours, on all cores; `others` means the peers that are not named."""

    def find(sections: Sections) -> list[float]:
        rows = [row for row in where(_rows(sections, "speed"), side="producer") if row["cores"] != 1]
        mine = {row["density"]: number(row, "ms_per_gb") for row in where(rows, form="ulp")}
        return [
            number(row, "ms_per_gb") / mine[row["density"]]
            for row in where(rows, ours=False)
            if row["density"] in mine and (row["form"] in names) is not others
        ]

    return find


def _digest(path: str) -> Callable[[Sections], list[float]]:
    def find(sections: Sections) -> list[float]:
        rows = sections["digest"].rows if "digest" in sections else []
        return [number(row, "gb_per_s") for row in where(rows, what="speed", path=path, cores=1)]

    return find


def _misses(sections: Sections) -> list[float]:
    return [
        max(number(row, column) for column in ("missed_64", "missed_low_32", "missed_high_32"))
        for row in where(_rows(sections, "digest"), what="faults")
    ]


def _merge(steps: int) -> Callable[[Sections], list[float]]:
    return lambda sections: [
        number(row, "ms_per_gb") for row in where(_rows(sections, "merge"), steps=steps, cores=1)
    ]


def _memory(sections: Sections) -> list[float]:
    """Share of what is allowed: 5 % of the model and 64 MiB."""
    return [
        number(row, "extra_mb") / (0.05 * number(row, "model_mb") + 64 * 1.048576)
        for row in where(_rows(sections, "memory"), form="ulp")
    ]


def _sizes(*, real: bool) -> list[Goal]:
    """Goals of sizes, for the recorded pairs and for the synthetic ones."""
    pairs = "real" if real else "synthetic"
    peer = "PULSEPT1 v3 (basilica-sdk)"

    def bound(codec: str, limit: float, words: str, **span: float) -> Goal:
        column = "over_order0" if codec == "ulp" else "over_exponent"
        low, high, least = span.get("low", 0), span.get("high", 1), int(span.get("least", 0))
        found = _size(codec, column, low, high, real=real, least=least)
        return Goal(f"`{codec}` over its bound, {pairs}, {words}", limit, found)

    return [
        bound("ulp", 1.015, "1-3 %", low=0.009, high=0.031),
        bound("ulp", 1.03, "0.1-10 %", low=0.0009, high=0.101),
        bound("ctx", 1.03, "from 75 k changes", least=75_000),
        bound("ctx", 1.04, "from 30 k changes", least=30_000),
        Goal(f"`ctx` over `ulp`, bytes, {pairs}", 0.75, _ratio_of_sizes("ctx", "ulp", real=real)),
        Goal(f"`ctx` over PULSEPT1 v3, bytes, {pairs}", 0.80, _ratio_of_sizes("ctx", peer, real=real)),
    ]


GOALS: Final = (
    *(goal for real in (True, False) for goal in _sizes(real=real)),
    Goal(
        "anchor `plane` of bf16",
        0.666,
        lambda s: [number(r, "of_bf16") for r in where(_rows(s, "anchors"), what="size", form="plane")],
    ),
    Goal(
        "producer `ulp` over a two-stream read, one core, 1-2 %",
        2.2,
        _speed("ulp", "producer", "over_read2", 0.009, 0.021),
    ),
    Goal("producer `ulp`, all cores over one", 1.4, _scaling, at_least=True),
    Goal("producer: naive torch over ours, all cores", 10, _against("COO (torch)"), at_least=True),
    Goal(
        "producer: every other peer over ours, all cores",
        5,
        _against("COO (torch)", others=True),
        at_least=True,
    ),
    Goal(
        "consumer `ulp` over memcpy, one core, 1 %",
        1.9,
        _speed("ulp", "consumer", "over_memcpy", 0.009, 0.011),
    ),
    Goal(
        "consumer `ulp` over memcpy, one core, 3 %",
        2.9,
        _speed("ulp", "consumer", "over_memcpy", 0.029, 0.031),
    ),
    *(
        Goal(
            f"pause `ulp`, one core, {100 * at:g} %",
            limit,
            _speed("ulp", "pause", "ms_per_gb", at - 0.001, at + 0.001),
            unit=" ms/GB",
        )
        for at, limit in ((0.01, 70), (0.02, 75), (0.03, 85))
    ),
    *(
        Goal(
            f"`ctx` {side}, one core, {words}", limit, _speed("ctx", side, "ms_per_gb", *span), unit=" ms/GB"
        )
        for side in ("encode", "decode")
        for words, limit, span in (("0.3 %", 400, (0.002, 0.0061)), ("1.6 %", 600, (0.015, 0.017)))
    ),
    Goal("digest, C, one core", 6, _digest("C kernel"), at_least=True, unit=" GB/s"),
    Goal("digest, numpy, one core", 2, _digest("numpy twin"), at_least=True, unit=" GB/s"),
    Goal("digest, torch, one core", 1, _digest("torch, as on a device"), at_least=True, unit=" GB/s"),
    Goal("digest, most misses of any fault", 0, _misses),
    Goal("merge of 8 steps, one core", 400, _merge(8), unit=" ms/GB"),
    Goal("merge of 32 steps, one core", 1200, _merge(32), unit=" ms/GB"),
    Goal("peak extra memory over 5 % of the model + 64 MiB", 1, _memory),
    Goal(
        "growth, exponent of the power law",
        1.1,
        lambda s: [number(r, "exponent") for r in where(_rows(s, "growth"), what=FIT)],
    ),
)
