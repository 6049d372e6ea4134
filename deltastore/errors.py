"""The tree of errors, grouped by what whoever catches one can do about it.

Each leaf says what happened, to which key, tensor or version, and what to do; the same facts are in its
`fields` for programs. `code` is the exit status that the command line gives to the group.
"""

from __future__ import annotations

from typing import ClassVar

Field = str | int | float | bool | None


class DeltaStoreError(Exception):
    """Anything that this library raises on purpose.

    Args:
        what: What happened, naming the key, tensor or version.
        hint: What to do about it; appended to the message.
        fields: The same facts for programs.
    """

    code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "", **fields: Field) -> None:
        super().__init__(f"{what}. {hint}" if hint else what)
        self.what = what
        self.hint = hint
        self.fields = fields


# --- The call was wrong: fix the call ---------------------------------------------------------------


class UsageError(DeltaStoreError):
    """The caller asked for something that cannot be done as asked; nothing was changed."""

    code = 2


class BadKey(UsageError):
    """A key outside the grammar of section 4 of the spec."""


class BadURL(UsageError):
    """A root URL that no backend understands."""


class StoreExists(UsageError):
    """A store is already at this root."""


class SchemaMismatch(UsageError):
    """Names, dtypes or shapes are not those of the schema in force."""


class NonFinite(UsageError):
    """A tensor to be published holds NaN or infinity."""


class StepWentBack(UsageError):
    """A publish with a smaller step than the one before it in the same term."""


class Unsupported(UsageError):
    """The backend, dtype or object cannot do what was asked."""


class UnknownFeature(UsageError):
    """The store requires a feature that this release does not know."""


# --- The world was in the way: try again, or fix the world -------------------------------------------


class BackendError(DeltaStoreError):
    """The storage did not do what it was asked."""

    code = 3


class NotFound(BackendError):
    """No object at this key, or no store at this root."""


class Throttled(BackendError):
    """The store asks to slow down; `retry_after` is in seconds, if it said so."""

    def __init__(
        self, what: str, *, retry_after: float | None = None, hint: str = "", **fields: Field
    ) -> None:
        super().__init__(what, hint=hint, retry_after=retry_after, **fields)
        self.retry_after = retry_after


class AuthError(BackendError):
    """The credentials do not allow this, or the root is read-only."""


class NoSpace(BackendError):
    """The disk or the quota is full."""


class Unavailable(BackendError):
    """The store cannot be reached, or it failed; a later try may succeed."""


class OutcomeUnknown(BackendError):
    """A conditional put whose outcome could not be learned; only the same bytes may be tried again."""


# --- Bytes are not what they should be: investigate --------------------------------------------------


class IntegrityError(DeltaStoreError):
    """Stored or served bytes are not what they must be; nothing of them was used."""

    code = 4


class BadRecord(IntegrityError):
    """A record, schema or STORE.json that breaks the spec."""


class BadObject(IntegrityError):
    """An object whose size or hash is not what its descriptor says."""


class BadShard(IntegrityError):
    """A shard whose content breaks the rules of its codec."""


class LimitExceeded(IntegrityError):
    """A size or count over the limit that the spec sets; nothing was allocated for it."""


class Diverged(IntegrityError):
    """The log does not continue what was read before: a chain, a term or a floor is broken."""


class StoreReplaced(IntegrityError):
    """Another store is at this root than the one that was opened."""


class BadEdge(IntegrityError):
    """An edge that does not lead from its base state to its target state; memory is as it was."""


class Poisoned(IntegrityError):
    """The target's weights are not any version's: they must not be served until re-anchored."""


# --- Somebody else writes: decide who should ----------------------------------------------------------


class ConflictError(DeltaStoreError):
    """Another writer has, or had, its hand on this store."""

    code = 5


class Conflict(ConflictError):
    """Another record has taken the slot."""


class Fenced(ConflictError):
    """A later term has begun; this producer can never commit again."""


class TakeoverRefused(ConflictError):
    """The last writer may be alive; `takeover=True` says that it is not."""


class Broken(ConflictError):
    """This producer stopped after an error; open a new one to go on."""


# --- The version is not to be had: choose another ------------------------------------------------------


class UnreachableError(DeltaStoreError):
    """A version cannot be read."""

    code = 6


class NoSuchVersion(UnreachableError):
    """The version was never committed, or the store holds none yet."""


class Collected(UnreachableError):
    """The version was collected; its slot holds a tombstone."""


class NoPath(UnreachableError):
    """No sequence of usable edges leads from what is held to the version."""
