"""Features that a store may require, per operation (spec, Features)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from deltastore.errors import UnknownFeature
from deltastore.protocol.limits import FEATURES
from deltastore.protocol.wire import Fields, Value

Operation = Literal["read", "write", "gc"]

KNOWN: Final[frozenset[str]] = frozenset()
"""The features that this release implements; version 1 of the spec defines none."""


@dataclass(frozen=True, slots=True)
class Requires:
    """What a reader, a writer and a collector must know."""

    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    gc: frozenset[str] = frozenset()

    def to_value(self) -> Value:
        """As stored."""
        return {"read": sorted(self.read), "write": sorted(self.write), "gc": sorted(self.gc)}

    @classmethod
    def read_from(cls, fields: Fields) -> Requires:
        """Reads one from a map."""
        read, write, gc = (frozenset(fields.texts(n, most=FEATURES)) for n in ("read", "write", "gc"))
        return cls(read, write, gc)

    def of(self, operation: Operation) -> frozenset[str]:
        """The features that one operation needs."""
        return {"read": self.read, "write": self.write, "gc": self.gc}[operation]

    def includes(self, other: Requires) -> bool:
        """Whether nothing that `other` requires is missing here: along the log it only grows (DS-FEAT-2)."""
        return self.read >= other.read and self.write >= other.write and self.gc >= other.gc


def check(requires: Requires, operation: Operation, *, where: str) -> None:
    """Refuses an operation that needs an unknown feature, by name (DS-FEAT-1).

    Raises:
        UnknownFeature: At least one.
    """
    unknown = sorted(requires.of(operation) - KNOWN)
    if unknown:
        raise UnknownFeature(
            f"{where} requires {', '.join(unknown)} to {operation}",
            hint="Upgrade deltastore",
            feature=unknown[0],
        )
