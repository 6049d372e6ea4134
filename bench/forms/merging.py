"""Merging of successive deltas into one, without any state; each way is an entry of `MERGERS`.

No peer has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bench.forms.base import Message, each
from bench.forms.ours import Delta, Ours, schema_of
from bench.model import Model
from deltastore.codec import merging
from deltastore.protocol.descriptors import Slice, resolve
from deltastore.protocol.edges import Edge
from deltastore.shards import Shard, make_merged


class Merger(Protocol):
    """A way to merge."""

    @property
    def name(self) -> str:
        """For tables."""

    def require(self) -> None:
        """Makes sure that it can run.

        Raises:
            Missing: It cannot.
        """

    def delta(self, held: Model, new: Model) -> Message:
        """One delta; `held` moves to `new`."""

    def merge(self, model: Model, messages: Sequence[Message], cores: int) -> Message:
        """One delta for successive ones, oldest first: the bytes that `delta` gives for their ends.

        Of the model only names, dtypes and shapes are read.
        """


class Shards:
    """`ulp` shards as they are stored, merged as for skips; nonces are zero."""

    name: Final = f"{merging.CODEC} shards"

    def require(self) -> None:
        """See `Merger`."""
        Ours(merging.CODEC).require()

    def delta(self, held: Model, new: Model) -> Message:
        """See `Merger`."""
        return Ours(merging.CODEC).sender(held, 1).send(new)

    def merge(self, model: Model, messages: Sequence[Message], cores: int) -> Message:
        """See `Merger`; one group of shards after the other on each core."""
        schema = schema_of(model)
        deltas = [message for message in messages if isinstance(message, Delta)]

        def one(number: int) -> Shard:
            shards = [(delta.edge.shards[number], delta.parts[number]) for delta in deltas]
            slices: list[Slice] = list(resolve(schema, shards[0][0].slices))
            return make_merged(schema, slices, shards, nonce=bytes(16))

        made = each(cores, one, range(len(deltas[0].parts)))
        first, last = deltas[0].edge, deltas[-1].edge
        shards = tuple(shard.descriptor for shard in made)
        edge = Edge(first.base, first.base_state, last.target, last.state, shards)
        return Delta(tuple(shard.data for shard in made), edge)


MERGERS: Final[tuple[Merger, ...]] = (Shards(),)
