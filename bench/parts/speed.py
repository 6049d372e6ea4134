"""Speed: producer and consumer per GB of model, on one core and on all, beside the limits of the memory."""

from __future__ import annotations

from typing import Final

from bench import limits, machine, process, synthetic
from bench.checks import runnable, sent
from bench.forms import DELTAS, SELF_CHECKED
from bench.forms.base import DeltaForm, Message, Sender
from bench.forms.ours import OurReceiver, OurSender, kernels_in_use
from bench.model import Model, Pair
from bench.rows import Row, Section
from bench.settings import Settings
from bench.timing import Rounds, seconds

OVER: Final = {limits.READ2: "over_read2", limits.COPY: "over_memcpy"}
TWIN: Final = "numpy"
LIMIT: Final = "limit"
SIDES: Final = ("producer", "consumer", "pause")
OUR_SIDES: Final = (*SIDES, "encode", "decode")


def run(settings: Settings) -> Section:
    """Every density, on one core and on all; the numpy twin on one core at one density."""
    section = Section()
    section.note(
        "ms per GB of model (10^9 bytes of bf16); ratios are taken within a round, to the limit measured in "
        "that round. Producer: compare, encode, digest, compress, move the base. Consumer: inflate, decode, "
        "digest (stage) and scatter (commit); pause is the latter alone. Encode and decode are the codec's "
        "share: the producer without the comparison, the consumer without digests and scatter. What is "
        "checked of the result: " + _digests() + "."
    )
    for cores in sorted({1, machine.cores()}):
        for density in settings.speed_densities:
            section.extend(process.run("speed", settings, cores=cores, density=density))
    if TWIN not in kernels_in_use():
        density = settings.peer_density
        section.extend(process.run("speed", settings, cores=1, kernels=TWIN, density=density, peers=False))
    return section


def _digests() -> str:
    return "; ".join(f"{form.name}: {form.digest or 'nothing'}" for form in DELTAS)


def task(settings: Settings, *, cores: int, density: float, peers: bool | None = None) -> Section:
    """One density on the cores of this process."""
    section = Section()
    with_peers = density == settings.peer_density if peers is None else peers
    forms = [form for form in runnable((*DELTAS, SELF_CHECKED), section) if form.ours or with_peers]
    pair = synthetic.pair(settings.weights, density, seed=settings.seed)
    clock = _Clock(pair, cores)
    for form in forms:
        sent(form, pair, cores=cores, made=clock.reset)
    for number in range(settings.repeats):
        clock.limits()
        for form in forms:
            if form.ours or number < settings.peer_repeats:
                clock.form(form)
    section.rows += clock.rows(forms, density=density)
    return section


class _Clock:
    """Times on one block of memory that is put back before each use."""

    def __init__(self, pair: Pair, cores: int) -> None:
        self._pair = pair
        self._cores = cores
        self._held = pair.old.copy()
        self._rounds = Rounds()

    def reset(self) -> Model:
        """The held model as it was at first; also clears the caches of anything else."""
        self._held.overwrite(self._pair.old)
        return self._held

    def limits(self) -> None:
        """Begins a round with the limits."""
        self._rounds.begin()
        old, new = self._pair.old.flat, self._pair.new.flat
        for limit in limits.LIMITS:
            other = self._held.flat if limit.name == limits.COPY else new
            self._rounds.add(limit.name, seconds(limit.run, old, other, self._cores))

    def form(self, form: DeltaForm) -> None:
        """A message there and back."""
        messages: list[Message] = []
        sender = form.sender(self.reset(), self._cores)
        took = seconds(_keep, messages, sender, self._pair.new)
        self._rounds.add(f"{form.name} producer", took)
        if isinstance(sender, OurSender):
            self._rounds.add(f"{form.name} encode", sender.encoding)
        del sender
        receiver = form.receiver(self.reset(), self._cores)
        if isinstance(receiver, OurReceiver):
            self._rounds.add(f"{form.name} decode", seconds(receiver.decode, messages[0]))
        stage = seconds(receiver.stage, messages[0])
        commit = seconds(receiver.commit)
        self._rounds.add(f"{form.name} consumer", stage + commit)
        self._rounds.add(f"{form.name} pause", commit)

    def rows(self, forms: list[DeltaForm], *, density: float) -> list[Row]:
        """One row per limit, and per form and side."""
        common: Row = {"cores": self._cores, "kernels": kernels_in_use(), "density": density}
        gigabytes = self._pair.old.nbytes / 1e9
        found = [
            self._rounds.row(one.name, gigabytes=gigabytes, limits=OVER, form=one.name, side=LIMIT, **common)
            for one in limits.LIMITS
        ]
        for form in forms:
            for side in OUR_SIDES if form.ours else SIDES:
                row = self._rounds.row(
                    f"{form.name} {side}", gigabytes=gigabytes, limits=OVER, side=side, **common
                )
                found.append({"form": form.name, "ours": form.ours, **row})
        return found


def _keep(messages: list[Message], sender: Sender, new: Model) -> None:
    messages.append(sender.send(new))
