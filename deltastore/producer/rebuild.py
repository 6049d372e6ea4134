"""What a producer's base is when it takes over a log (spec, Writing)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from deltastore.errors import DeltaStoreError, NoPath, NoSuchVersion
from deltastore.parallel import Workers
from deltastore.producer.private import PrivateState
from deltastore.protocol.records import Slot
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.replay import state_at
from deltastore.state import HostState
from deltastore.store import Store
from deltastore.tensors.bits import Bits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Where a producer goes on from.

    Attributes:
        base: The state at the head of the log; None if nothing leads to it, so that the next version
            must be an anchor.
        candidate: The weights that the trainer handed over; None if they were only a part of them.
        resumed_from: The earlier version that has the trainer's weights.
    """

    base: PrivateState | None
    candidate: PrivateState | None
    resumed_from: int | None


def rebuild(
    store: Store,
    head: Slot,
    tensors: Iterable[tuple[TensorSpec, Bits]],
    schema: Schema,
    *,
    step: int,
    partial: bool,
    external: HostState | None,
    workers: Workers,
) -> Rebuilt:
    """The base from the trainer's weights where their digest is the head's, else from the store.

    Args:
        store: The store.
        head: The claim that was just committed.
        tensors: The trainer's weights, conforming to `schema`.
        schema: The head's.
        step: Of the publish that asks.
        partial: Whether the weights are only a part; the base is then always rebuilt from the store.
        external: The external base, where there is one at hand.
        workers: Shards fetched at once.
    """
    candidate = None
    if not partial:
        candidate = PrivateState.copied(schema, tensors)
        state = candidate.digest()
        if state == head.record.state:
            return Rebuilt(candidate, candidate, None)
        resumed_from = _same(store, step, state, schema)
    else:
        resumed_from = None
    try:
        base = PrivateState.of(state_at(store, head, external=external, workers=workers))
    except NoPath as error:
        if candidate is None:
            raise
        _log.warning("the head cannot be rebuilt; an anchor comes next", extra={"error": str(error)})
        base = None
    return Rebuilt(base, candidate, resumed_from)


def _same(store: Store, step: int, state: int, schema: Schema) -> int | None:
    """The version of that step, if it has exactly that state."""
    try:
        info = store.find(step=step)
    except NoSuchVersion:
        return None
    except DeltaStoreError as error:
        _log.warning("the version of a step was not found", extra={"step": step, "error": str(error)})
        return None
    return info.version if (info.state, info.schema) == (state, schema.sha256) else None
