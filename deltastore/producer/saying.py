"""What a record says besides weights (spec, Version record), checked before anything of a publish moves."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from deltastore.errors import BadRecord, StepWentBack, UsageError
from deltastore.protocol.limits import MAX_INT
from deltastore.protocol.records import stored_user
from deltastore.protocol.wire import Value


@dataclass(frozen=True, slots=True)
class Saying:
    """A step and what the trainer says of it.

    Attributes:
        step: The training step.
        user: A copy that nobody else holds.
        resumed_from: The earlier version that has the same weights.
    """

    step: int
    user: Mapping[str, Value]
    resumed_from: int | None = None

    @classmethod
    def of(cls, step: object, user: Mapping[str, Value] | None, *, last: int) -> Self:
        """What a caller passed, as records hold it.

        Args:
            step: Trainers' counters come as integers of numpy and torch too.
            user: Anything that a record can hold.
            last: The step before.

        Raises:
            UsageError: One of them cannot be stored.
            LimitExceeded: `user` is too large.
            StepWentBack: `step` is below `last`.
        """
        number = _whole_number(step)
        if number < last:
            raise StepWentBack(
                f"step {number} comes after step {last}",
                hint="After going back to a checkpoint, open a new producer",
                step=number,
            )
        try:
            return cls(number, stored_user(user or {}))
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError, BadRecord) as error:
            raise UsageError(
                f"user= cannot be stored: {error}", hint="Use numbers, strings, lists and maps"
            ) from error


def _whole_number(step: object) -> int:
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_INT:
        raise UsageError(f"step {step!r} is not an integer from 0 to {MAX_INT}")
    return number
