"""The producer's base: the state that it committed or queued last, which moves in place with each diff."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from deltastore import codec as codecs
from deltastore.codec.types import Delta, SliceSpec
from deltastore.errors import Broken, DeltaStoreError
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
        making: Making,
        inspect: Callable[[str, int], None],
    ) -> Move:
        """Diffs tensors against the base, which moves to them; all or nothing.

        Args:
            tensors: Tensors that own their storage, in any order, conforming to the schema.
            making: The codec that compares, in the form that it encodes.
            inspect: Called with the name of a tensor and how many of its new values are not finite; what it
                raises undoes the move.
        """
        slices: dict[str, list[Slice]] = {}
        for one in (one for group in self._groups for one in group):
            slices.setdefault(one.tensor.name, []).append(one)
        move = Move(self, {})
        compare = codecs.DELTA[making.delta].diff
        try:
            for tensor, host in tensors:
                held = self.base.lanes(tensor.name)
                for one in slices[tensor.name]:
                    part = np.s_[one.start : one.stop]
                    delta = _compared(compare, spec_of(one), held[part], host.lanes[part])
                    move.deltas[tensor.name, one.start] = delta
                    inspect(tensor.name, delta.nonfinite)
        except BaseException:
            move.undo()
            raise
        self.state = (self.state + sum(delta.state_delta for delta in move.deltas.values())) & MASK
        return move

    def anchors(self, making: Making) -> list[Make]:
        """How to make the shards of an anchor; they read the base when they are called."""
        return [partial(self._anchor, group, making) for group in self._groups]

    def deltas(self, move: Move, making: Making) -> list[Make]:
        """How to make the shards of a delta; they read the base only if the codec does."""
        unchanged = codecs.DELTA[making.delta].unchanged
        return [
            partial(
                make_delta,
                making.delta,
                self.base.schema,
                group,
                [move.deltas.get((one.tensor.name, one.start)) or unchanged(spec_of(one)) for one in group],
                base=self._read,
                nonce=making.nonce(),
                check=making.check,
            )
            for group in self._groups
        ]

    def _read(self, one: Slice) -> Lanes:
        return self.base.read(one.tensor.name, one.start, one.stop)

    def _anchor(self, group: list[Slice], making: Making) -> Shard:
        denses = [dense(one, self._read(one)) for one in group]
        schema = self.base.schema
        return make_anchor(making.anchor, schema, group, denses, nonce=making.nonce(), check=making.check)


def _compared(
    compare: Callable[[SliceSpec, Lanes, Lanes], Delta], spec: SliceSpec, base: Lanes, new: Lanes
) -> Delta:
    """Compares one slice; what breaks off in the middle leaves a base that nothing can be built on."""
    try:
        return compare(spec, base, new)
    except DeltaStoreError:
        raise
    except Exception as error:
        raise Broken(
            f"comparing tensor {spec.label!r} broke off: {error!r}",
            hint="Nothing was published; close this producer and open a new one",
            tensor=spec.name,
        ) from error


@dataclass(slots=True)
class Move:
    """What moved the base, slice by slice."""

    snapshot: Snapshot
    deltas: dict[tuple[str, int], Delta]

    def undo(self) -> None:
        """Takes the base back to where it was."""
        for delta in self.deltas.values():
            base = self.snapshot.base.lanes(delta.spec.name)
            delta.undo(base[delta.spec.start : delta.spec.stop])
