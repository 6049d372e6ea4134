"""The producer's base: the state that it committed or queued last, which moves in place with each diff."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from deltastore.codec import kernels
from deltastore.codec.types import Diff
from deltastore.protocol.descriptors import Descriptor, Slice
from deltastore.protocol.digest import MASK, Lanes
from deltastore.protocol.schema import TensorSpec
from deltastore.shards import Shard, dense, make_anchor, make_delta, spec_of
from deltastore.slicing import cut
from deltastore.state import HostState
from deltastore.tensors.host import HostTensor

Make = Callable[[], Shard]


@dataclass(frozen=True, slots=True)
class Making:
    """How shards are made.

    Attributes:
        delta: Id of the codec of deltas.
        anchor: Id of the codec of anchors.
        check: Whether to decode what was encoded.
        nonce: 16 random bytes.
    """

    delta: str
    anchor: str
    check: bool
    nonce: Callable[[], bytes]


class Snapshot:
    """A state and how it is cut.

    Attributes:
        base: The bits.
        schema: Descriptor of their schema.
        state: Their digest.
    """

    def __init__(self, base: HostState, schema: Descriptor, state: int, *, shard_bytes: int) -> None:
        self.base = base
        self.schema = schema
        self.state = state
        self._groups = cut(base.schema, shard_bytes=shard_bytes)

    def move(
        self,
        tensors: Iterable[tuple[TensorSpec, HostTensor]],
        inspect: Callable[[str, str, Lanes], None],
    ) -> Move:
        """Diffs tensors against the base, which moves to them; all or nothing.

        Args:
            tensors: Tensors that own their storage, in any order, conforming to the schema.
            inspect: Called with name, dtype and new bits of whatever changed; what it raises undoes the move.
        """
        slices: dict[str, list[Slice]] = {}
        for one in (one for group in self._groups for one in group):
            slices.setdefault(one.tensor.name, []).append(one)
        move = Move(self, {})
        try:
            for tensor, host in tensors:
                held = self.base.lanes(tensor.name)
                for one in slices[tensor.name]:
                    part = np.s_[one.start : one.stop]
                    diff = kernels.diff(spec_of(one), held[part], host.lanes[part])
                    move.diffs[tensor.name, one.start] = diff
                    inspect(tensor.name, tensor.dtype, diff.new)
        except BaseException:
            move.undo()
            raise
        self.state = (self.state + sum(diff.state_delta for diff in move.diffs.values())) & MASK
        return move

    def anchors(self, making: Making) -> list[Make]:
        """How to make the shards of an anchor; they read the base when they are called."""
        return [partial(self._anchor, group, making) for group in self._groups]

    def deltas(self, move: Move, making: Making) -> list[Make]:
        """How to make the shards of a delta; they no longer read the base."""
        return [
            partial(
                make_delta,
                making.delta,
                self.base.schema,
                group,
                [move.diffs.get((one.tensor.name, one.start)) or _unchanged(one) for one in group],
                nonce=making.nonce(),
                check=making.check,
            )
            for group in self._groups
        ]

    def _anchor(self, group: list[Slice], making: Making) -> Shard:
        denses = [dense(one, self.base.read(one.tensor.name, one.start, one.stop)) for one in group]
        schema = self.base.schema
        return make_anchor(making.anchor, schema, group, denses, nonce=making.nonce(), check=making.check)


@dataclass(slots=True)
class Move:
    """What moved the base, slice by slice."""

    snapshot: Snapshot
    diffs: dict[tuple[str, int], Diff]

    def undo(self) -> None:
        """Takes the base back to where it was."""
        for diff in self.diffs.values():
            base = self.snapshot.base.lanes(diff.spec.name)
            diff.undo(base[diff.spec.start : diff.spec.stop])


def _unchanged(one: Slice) -> Diff:
    spec = spec_of(one)
    none = np.empty(0, spec.uint)
    return Diff(spec, np.empty(0, np.int64), none, none, 0)
