"""Anchors: size and speed of whole models, beside plain zstd and zipnn and the entropy bound."""

from __future__ import annotations

from typing import Final

from bench import limits, machine, process, real, synthetic
from bench.bounds import anchor_bound
from bench.checks import packed, runnable
from bench.forms import ANCHORS
from bench.forms.ours import kernels_in_use
from bench.model import Model
from bench.rows import Section
from bench.settings import Settings
from bench.timing import Rounds, seconds
from bench.training import NoModel

BOUND: Final = "exponent entropy bound"
SIZE, PACK, UNPACK = "size", "pack", "unpack"
_SHARE: Final = 0.5
"""Of the speed part's model: anchors are slow, and linear."""


def run(settings: Settings) -> Section:
    """Sizes here, speeds on one core and on all."""
    section = Section()
    section.note(
        f"{BOUND}: raw signs and mantissas, each tensor's entropy of exponents. Times of ours include the "
        "digest and the SHA-256 of the shards; the peers' include neither."
    )
    try:
        for pair in real.pairs(1):
            sizes(pair.name.split()[0], pair.old, section)
    except NoModel as reason:
        section.note(f"No real model: {reason}.")
    sizes("synthetic", synthetic.base(settings.size_weights // 4, seed=settings.seed), section)
    for cores in sorted({1, machine.cores()}):
        section.extend(process.run("anchors", settings, cores=cores))
    return section


def sizes(name: str, model: Model, section: Section) -> None:
    """Adds the sizes of one model."""
    found = [(BOUND, False, anchor_bound(model))]
    found += [
        (form.name, form.ours, packed(form, model).size / model.nbytes) for form in runnable(ANCHORS, section)
    ]
    for form_name, ours, share in found:
        section.rows.append({"what": SIZE, "model": name, "form": form_name, "ours": ours, "of_bf16": share})


def task(settings: Settings, *, cores: int) -> Section:
    """Speeds on the cores of this process."""
    section = Section()
    forms = runnable(ANCHORS, section)
    model = synthetic.base(int(settings.weights * _SHARE), seed=settings.seed)
    messages = {form.name: packed(form, model, cores=cores) for form in forms}
    into = Model.empty(model.shapes)
    rounds = Rounds()
    for _ in range(settings.peer_repeats):
        rounds.begin()
        rounds.add(limits.COPY, seconds(limits.limit(limits.COPY).run, model.flat, into.flat, cores))
        for form in forms:
            rounds.add(f"{form.name} {PACK}", seconds(form.pack, model, cores))
            rounds.add(f"{form.name} {UNPACK}", seconds(form.unpack, messages[form.name], into, cores))
    over = {limits.COPY: "over_memcpy"}
    for form in forms:
        for what in (PACK, UNPACK):
            row = rounds.row(f"{form.name} {what}", gigabytes=model.nbytes / 1e9, limits=over, what=what)
            row |= {"form": form.name, "ours": form.ours, "cores": cores, "kernels": kernels_in_use()}
            section.rows.append(row)
    return section
