"""Merging: successive deltas into one, compared byte by byte with the delta of the two ends."""

from __future__ import annotations

from typing import Final

from bench import machine, process, rss, synthetic
from bench.forms.base import Message, Missing
from bench.forms.merging import MERGERS, Merger
from bench.forms.ours import kernels_in_use
from bench.model import Model
from bench.rows import Row, Section
from bench.settings import Settings
from bench.timing import Spread, seconds

DENSITY: Final = 0.01
_SHARE: Final = 2
"""The model is half of the speed part's: every step of the chain must be made."""


class WrongMerge(Exception):
    """A merged delta is not that of the ends: the bench stops."""


def run(settings: Settings) -> Section:
    """Every way to merge, on one core and on all."""
    section = Section()
    for merger in MERGERS:
        try:
            merger.require()
        except Missing as reason:
            section.note(f"{merger.name} was not run: {reason}")
            continue
        for cores in sorted({1, machine.cores()}):
            section.extend(process.run("merge", settings, cores=cores, merger=merger.name))
    section.note(
        f"Steps of {100 * DENSITY:g} % each; ms per GB of model; every merge equals the direct delta."
    )
    return section


def task(settings: Settings, *, cores: int, merger: str) -> Section:
    """One way on the cores of this process."""
    chosen = next(one for one in MERGERS if one.name == merger)
    weights = max(1 << 20, settings.weights // _SHARE)
    base = synthetic.base(weights, seed=settings.seed)
    section = Section()
    current, held = base, base.copy()
    messages: list[Message] = []
    for count in range(1, max(settings.merge_steps) + 1):
        current = synthetic.step(current, DENSITY, seed=settings.seed + count)
        messages.append(chosen.delta(held, current))
        if count in settings.merge_steps:
            direct = chosen.delta(base.copy(), current)
            row = _measure(chosen, base, messages, direct, repeats=settings.peer_repeats, cores=cores)
            section.rows.append({**row, "kernels": kernels_in_use()})
    return section


def _measure(
    merger: Merger, base: Model, messages: list[Message], direct: Message, *, repeats: int, cores: int
) -> Row:
    merged = merger.merge(base, messages, cores)
    if merged.parts != direct.parts:
        raise WrongMerge(f"{merger.name}: {len(messages)} merged deltas are not the delta of their ends")
    del merged
    extra = rss.peak(lambda: merger.merge(base, messages, cores)) if rss.measurable() else None
    gigabytes = base.nbytes / 1e9
    samples = [1000 * seconds(merger.merge, base, messages, cores) / gigabytes for _ in range(repeats)]
    return {
        "merger": merger.name,
        "steps": len(messages),
        "cores": cores,
        **Spread.of(samples).cells("ms_per_gb"),
        "in_mb": sum(message.size for message in messages) / 1e6,
        "out_mb": direct.size / 1e6,
        "extra_mb": None if extra is None else extra / 1e6,
    }
