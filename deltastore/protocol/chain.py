"""The log as a chain (spec, The log): what a slot must be to the one before it; finding the newest."""

from __future__ import annotations

from collections.abc import Callable

from deltastore.errors import Diverged
from deltastore.protocol.records import Kind, Slot, Tombstone, VersionRecord


def check_successor(before: Slot, after: Slot) -> None:
    """Checks that `after` continues the log behind `before` (DS-CHAIN-1 to DS-CHAIN-6).

    Tombstones keep what the chain needs, so either slot may hold one.

    Raises:
        Diverged: It does not. Stop: it is never an automatic re-anchor.
    """
    old, new = before.record, after.record
    if after.version != before.version + 1:
        raise Diverged(f"version {after.version} does not follow {before.version}", version=after.version)
    if new.parent != before.sha256:
        raise _diverged(after, f"names {new.parent} as its parent, not {before.sha256}")
    claims = new.term_start == new.version
    if claims != (new.term == old.term + 1) or (not claims and new.term != old.term):
        raise _diverged(after, f"has term {new.term} after term {old.term}")
    if not claims and new.term_start != old.term_start:
        raise _diverged(after, "moves the start of its term")
    if not claims and new.step is not None and old.step is not None and new.step < old.step:
        raise _diverged(after, f"goes back from step {old.step} to {new.step} within its term")
    if isinstance(new, VersionRecord):
        _check_record(before, new, after)


def _check_record(before: Slot, new: VersionRecord, after: Slot) -> None:
    old = before.record
    if isinstance(old, VersionRecord) and not new.requires.includes(old.requires):
        raise _diverged(after, "requires less than the record before it")
    if new.kind is Kind.CLAIM:
        if (new.state, new.schema) != (old.state, old.schema):
            raise _diverged(after, "is a claim that changes the state or the schema")
        return
    for edge in new.edges:
        from_parent = edge.base == before.version
        if from_parent or (edge.base == "external" and before.version == 0):
            if edge.base_state != old.state:
                raise _diverged(after, "has an edge from another state than its parent's")
            if new.schema != old.schema:
                raise _diverged(after, "has a delta across schemas")
        elif not edge.is_anchor:
            raise _diverged(after, f"embeds an edge from {edge.base}, which is not its parent")


def newest(exists: Callable[[int], bool], *, known: int) -> int:
    """The newest version, by galloping: slots are dense and never freed (DS-GALLOP-1).

    Args:
        exists: Whether a version's slot is taken.
        known: A version whose slot is known to be taken, or the first version minus one.

    Returns:
        The newest version, or `known` where there is none after it.
    """
    step = 1
    while exists(known + step):
        known += step
        step *= 2
    low, high = known, known + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


def collected(slot: Slot) -> bool:
    """Whether the slot holds a tombstone."""
    return isinstance(slot.record, Tombstone)


def _diverged(slot: Slot, problem: str) -> Diverged:
    return Diverged(
        f"record of version {slot.version} {problem}",
        hint="The log was forked, rewritten or damaged: run `deltastore doctor`, do not write",
        version=slot.version,
    )
