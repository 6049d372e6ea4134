"""When a version deserves an anchor (spec, Anchors): policies as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Chain:
    """The log since the last anchor.

    Attributes:
        data_versions: Versions with data since then.
        delta_bytes: Stored bytes of their deltas.
        anchor_bytes: Stored bytes of that anchor; what a new one would cost.
    """

    data_versions: int
    delta_bytes: int
    anchor_bytes: int


class AnchorPolicy(Protocol):
    """Decides whether the newest version should get an anchor."""

    def due(self, chain: Chain) -> bool:
        """Whether it should."""
        ...


@dataclass(frozen=True, slots=True)
class CatchUpBytes:
    """An anchor when replaying from the last one costs more than `ratio` anchors."""

    ratio: float = 1.0

    def due(self, chain: Chain) -> bool:
        """Whether it does."""
        return chain.data_versions > 0 and chain.delta_bytes > self.ratio * chain.anchor_bytes


@dataclass(frozen=True, slots=True)
class MaxChain:
    """An anchor every `versions` versions with data."""

    versions: int = 256

    def due(self, chain: Chain) -> bool:
        """Whether that many have come."""
        return chain.data_versions >= self.versions


@dataclass(frozen=True, slots=True)
class AnyOf:
    """An anchor when one of several policies wants one."""

    policies: tuple[AnchorPolicy, ...]

    def due(self, chain: Chain) -> bool:
        """Whether one does."""
        return any(policy.due(chain) for policy in self.policies)


DEFAULT: AnchorPolicy = AnyOf((CatchUpBytes(), MaxChain()))
