"""Round trips: nothing is measured that has not just given every bit back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from bench.forms.base import AnchorForm, DeltaForm, Message, Missing
from bench.model import Model, Pair
from bench.rows import Section

F = TypeVar("F", DeltaForm, AnchorForm)


class WrongBits(Exception):
    """A form does not give back what went in: the bench stops."""


def runnable(forms: Iterable[F], section: Section) -> list[F]:
    """The forms that can run here; for the others a note says why."""
    found = []
    for form in forms:
        try:
            form.require()
        except Missing as reason:
            section.note(f"{form.name} was not run: {reason}")
        else:
            found.append(form)
    return found


def sent(form: DeltaForm, pair: Pair, *, cores: int = 1, made: Callable[[], Model] | None = None) -> Message:
    """The message of a form for a pair, after both ends have proved to hold the new bits.

    Args:
        form: Which.
        pair: What to send.
        cores: For it.
        made: Gives a copy of the old model; by default a new one each time.

    Raises:
        WrongBits: One of them does not.
    """
    held = pair.old.copy if made is None else made
    sender = form.sender(held(), cores)
    message = sender.send(pair.new)
    if not sender.holds(pair.new):
        raise WrongBits(f"{form.name}: the sender's base is not what it sent ({pair.name})")
    del sender
    receiver = form.receiver(held(), cores)
    receiver.stage(message)
    receiver.commit()
    if not receiver.holds(pair.new):
        raise WrongBits(f"{form.name}: the receiver has other bits than the sender ({pair.name})")
    return message


def packed(form: AnchorForm, model: Model, *, cores: int = 1) -> Message:
    """The message of an anchor form, after it has given the model back.

    Raises:
        WrongBits: It has not.
    """
    message = form.pack(model, cores)
    other = Model.empty(model.shapes)
    form.unpack(message, other, cores)
    if not other.same(model):
        raise WrongBits(f"{form.name}: the model does not come back")
    return message
