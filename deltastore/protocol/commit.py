"""Outcome rules of a commit (spec, Writing): what a put that may have happened turns out to have done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deltastore.protocol.records import Slot, Tombstone


class Outcome(StrEnum):
    """What reading a slot back says of a put."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    SUPERSEDED = "committed and superseded"
    CONFLICT = "conflict"


def judge(data: bytes, sha256: str, found: Slot | None) -> Outcome:
    """The outcome of a conditional put of `data`, from what is stored now (DS-COMMIT-3).

    Ours means byte-equal, never that a nonce is the same. An absent record proves nothing: the put may
    still be on its way.

    Args:
        data: The bytes of the put.
        sha256: Of these bytes.
        found: What is stored, or None.
    """
    if found is None:
        return Outcome.UNKNOWN
    if isinstance(found.record, Tombstone):
        return Outcome.SUPERSEDED if found.record.record_sha256 == sha256 else Outcome.CONFLICT
    return Outcome.COMMITTED if found.data == data else Outcome.CONFLICT


TAKEOVER_AGE: Final = 900.0
"""Seconds for which the last record counts as young."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What is known of the producer that wrote the last record."""

    closed: bool
    gone: bool
    age: float


def may_claim(holder: Holder, *, takeover: bool) -> bool:
    """Whether a new producer may claim unasked (DS-CLAIM-3): advice against two that fence each other.

    Args:
        holder: The last record's.
        takeover: The operator says that it is dead.
    """
    return takeover or holder.closed or holder.gone or holder.age > TAKEOVER_AGE
