"""Growth: time against the number of weights, for the default codec; a power law is fitted."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from bench import limits, machine, process, synthetic
from bench.checks import sent
from bench.forms.ours import Ours, kernels_in_use
from bench.model import Model
from bench.rows import Row, Section, number, where
from bench.settings import Settings
from bench.timing import Spread, seconds

DENSITY: Final = 0.01
SIDES: Final = ("producer", "consumer")
POINT, FIT = "point", "fit"
_COPIES: Final = 3.6
"""Models in memory at once: old, new and held, and what the work needs."""
_REPEATS: Final = 3


def run(settings: Settings) -> Section:
    """Each size in a process of its own, then the fit."""
    section = Section()
    room = int(machine.available_bytes() / (2 * _COPIES))
    sizes = [weights for weights in settings.growth if weights <= room]
    if len(sizes) < len(settings.growth):
        left = ", ".join(f"{w / 1e9:g} G" for w in settings.growth if w > room)
        section.note(f"Left out for want of memory: {left} weights.")
    for weights in sizes:
        section.extend(process.run("growth", settings, cores=machine.cores(), weights=weights))
    for side in SIDES:
        points = where(section.rows, what=POINT, side=side)
        if len(points) > 1:
            section.rows.append({"what": FIT, "side": side, **fit(points)})
    section.note(
        "Fit: seconds = a * weights^exponent over the medians; 1 is linear. r2 is that of a straight line."
    )
    return section


def fit(points: list[Row]) -> Row:
    """Exponent of a power law, and how well a straight line does."""
    sizes = np.array([number(row, "weights") for row in points])
    times = np.array([number(row, "seconds") for row in points])
    exponent = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    slope, offset = np.polyfit(sizes, times, 1)
    rest = times - (slope * sizes + offset)
    spread = ((times - times.mean()) ** 2).sum()
    r2 = 1.0 if math.isclose(spread, 0) else float(1 - (rest**2).sum() / spread)
    return {"exponent": exponent, "r2": r2, "ms_per_gb_slope": float(slope) * 1000 * 1e9 / 2}


def task(settings: Settings, *, cores: int, weights: int) -> Section:
    """One size on the cores of this process."""
    form = Ours("ulp")
    pair = synthetic.pair(weights, DENSITY, seed=settings.seed)
    held = pair.old.copy()
    section = Section()
    taken: dict[str, list[float]] = {side: [] for side in (*SIDES, limits.READ2)}

    def reset() -> Model:
        held.overwrite(pair.old)
        return held

    message = sent(form, pair, cores=cores, made=reset)
    for _ in range(_REPEATS):
        read = seconds(limits.limit(limits.READ2).run, pair.old.flat, pair.new.flat, cores)
        taken[limits.READ2].append(read)
        taken["producer"].append(seconds(form.sender(reset(), cores).send, pair.new))
        receiver = form.receiver(reset(), cores)
        taken["consumer"].append(seconds(receiver.stage, message) + seconds(receiver.commit))
    for side, samples in taken.items():
        row: Row = {"what": POINT, "side": side, "weights": pair.old.weights, "cores": cores}
        row |= {"kernels": kernels_in_use(), **Spread.of(samples).cells("seconds")}
        row["ms_per_gb"] = 1000 * number(row, "seconds") / (pair.old.nbytes / 1e9)
        section.rows.append(row)
    return section
