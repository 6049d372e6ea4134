"""Memory: peak beyond the base and the new weights, of the producer and of the consumer."""

from __future__ import annotations

from typing import Final

from bench import machine, process, rss, synthetic
from bench.checks import runnable
from bench.forms import DELTAS, SELF_CHECKED
from bench.forms.base import DeltaForm, Message
from bench.forms.ours import kernels_in_use
from bench.model import Pair
from bench.rows import Section
from bench.settings import Settings

DENSITY: Final = 0.02
_PEERS: Final = ("COO (torch)", "PULSE/grail form", "NeMo form", "PULSEPT1 v3 (basilica-sdk)")

_FORMS: Final = (*DELTAS, SELF_CHECKED)


def run(settings: Settings) -> Section:
    """Each form in a process of its own."""
    section = Section()
    if not rss.measurable():
        section.note("Not measured: this system does not tell a process's peak memory.")
        return section
    section.note(
        "Peak resident memory during the work, less that before it, over the model's bytes; "
        f"{100 * DENSITY:g} % changed. Base, receiver's weights and new weights are there before."
    )
    for form in runnable(_FORMS, section):
        if form.ours or (form.name in _PEERS and not settings.quick):
            section.extend(process.run("memory", settings, cores=machine.cores(), form=form.name))
    return section


def task(settings: Settings, *, cores: int, form: str) -> Section:
    """One form."""
    chosen = next(one for one in _FORMS if one.name == form)
    pair = synthetic.pair(settings.weights, DENSITY, seed=settings.seed)
    # A small one first: modules, thread pools and buffers of libraries are not the form's doing.
    _work(chosen, synthetic.pair(1 << 20, DENSITY, seed=1), cores)
    section = Section()
    for side, extra in _work(chosen, pair, cores).items():
        section.rows.append(
            {
                "form": chosen.name,
                "ours": chosen.ours,
                "side": side,
                "cores": cores,
                "kernels": kernels_in_use(),
                "model_mb": pair.old.nbytes / 1e6,
                "extra_mb": extra / 1e6,
                "extra_of_model": extra / pair.old.nbytes,
            }
        )
    return section


def _work(form: DeltaForm, pair: Pair, cores: int) -> dict[str, int]:
    messages: list[Message] = []
    produced = _produce(form, pair, cores, messages)
    receiver = form.receiver(pair.old.copy(), cores)

    def consume() -> None:
        receiver.stage(messages[0])
        receiver.commit()

    consumed = rss.peak(consume)
    if not receiver.holds(pair.new):
        raise ValueError(f"{form.name}: the receiver has other bits than the sender")
    return {"producer": produced, "consumer": consumed}


def _produce(form: DeltaForm, pair: Pair, cores: int, messages: list[Message]) -> int:
    sender = form.sender(pair.old.copy(), cores)
    return rss.peak(lambda: messages.append(sender.send(pair.new)))
