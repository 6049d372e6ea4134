"""A version between its two phases: staged while the target serves, committed in one go (spec, Reading)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltastore.consumer.reading import Held
from deltastore.store import VersionInfo

if TYPE_CHECKING:
    from deltastore.consumer.consumer import Consumer


class Staged:
    """A version that is ready: fetched, checked and brought to where the weights are.

    Attributes:
        info: What it is.
        bytes_fetched: What it took.
        consumer: Who staged it.
        goal: What the target will hold.
        epoch: The consumer's count of changes when it was staged.
    """

    def __init__(
        self,
        consumer: Consumer,
        info: VersionInfo,
        goal: Held,
        *,
        epoch: int,
        prepared: object | None = None,
        bytes_fetched: int = 0,
    ) -> None:
        self.consumer = consumer
        self.info = info
        self.goal = goal
        self.epoch = epoch
        self.bytes_fetched = bytes_fetched
        self._prepared = prepared

    @property
    def version(self) -> int:
        """Its number."""
        return self.info.version

    def commit(self) -> VersionInfo:
        """Swaps it in, once; again, after a lost reply say, is an acknowledgement while it is held.

        Raises:
            Conflict: The target has moved to another state meanwhile; nothing was changed.
            Poisoned: The swap broke off; do not serve.
        """
        return self.consumer.commit(self)

    def discard(self) -> None:
        """Forgets it."""
        self.consumer.discard(self)

    def take(self) -> object | None:
        """What was prepared; whoever takes it commits or discards it, and nobody else."""
        prepared, self._prepared = self._prepared, None
        return prepared
