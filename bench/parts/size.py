"""Size: bytes per changed weight, complete files, beside the entropy bounds."""

from __future__ import annotations

from collections.abc import Iterator

from bench import real, synthetic
from bench.bounds import delta_bounds
from bench.checks import runnable, sent
from bench.forms import DELTAS
from bench.forms.ours import Delta
from bench.model import Pair
from bench.rows import Cell, Row, Section
from bench.settings import Settings
from bench.training import NoModel

ORDER0 = "order-0 bound"
EXPONENT = "exponent-conditional bound"


def run(settings: Settings) -> Section:
    """Sizes of all forms on real and synthetic pairs."""
    section = Section()
    section.note(
        "Bytes per changed weight, complete files; for ours the shards, as for peers without their manifests."
    )
    section.note(
        f"{ORDER0}: each tensor's density, and the frequencies of steps over all. {EXPONENT}: the density of "
        "each tensor at each exponent of the old value, and the frequencies of steps at that exponent. "
        "Parameters are free of charge in both, which flatters the bounds most where changes are few."
    )
    for pair in _pairs(settings, section):
        measure(pair, section)
    return section


def measure(pair: Pair, section: Section) -> None:
    """Adds the rows of one pair."""
    bounds = delta_bounds(pair)
    changed = pair.changed
    density = changed / pair.old.weights
    shared: Row = {"pair": pair.name, "real": pair.real, "density": density, "changed": changed}

    def add(name: str, size: float, **cells: Cell) -> None:
        over: Row = {"over_order0": size / bounds.order0, "over_exponent": size / bounds.exponent}
        section.rows.append({**shared, "form": name, "bytes_per_change": size, **over, **cells})

    add(ORDER0, bounds.order0, ours=False)
    add(EXPONENT, bounds.exponent, ours=False)
    for form in runnable(DELTAS, section):
        message = sent(form, pair)
        streams = None
        if isinstance(message, Delta):
            streams = (message.size - message.header) / changed / bounds.order0
        add(form.name, message.size / changed, ours=form.ours, streams_over_order0=streams)


def _pairs(settings: Settings, section: Section) -> Iterator[Pair]:
    try:
        yield from real.pairs(settings.real_pairs)
    except NoModel as reason:
        section.note(f"No real pairs: {reason}.")
    old = synthetic.base(settings.size_weights, seed=settings.seed)
    for density in settings.densities:
        new = synthetic.step(old, density, seed=settings.seed + 1)
        yield Pair(f"synthetic {100 * density:g} %", old, new, real=False)
