"""The producer's base: the state that it committed or queued last, which moves in place with each diff."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

from deltastore import codec as codecs
from deltastore import threads
from deltastore.codec.choice import AUTO, choose
from deltastore.codec.interface import DeltaCodec
from deltastore.codec.types import Delta, SliceSpec
from deltastore.codec.ulp import Steps
from deltastore.errors import Broken, DeltaStoreError, Unsupported, UsageError
from deltastore.producer.private import PrivateState
from deltastore.protocol.descriptors import Descriptor, Slice
from deltastore.protocol.digest import MASK, Lanes
from deltastore.protocol.schema import TensorSpec
from deltastore.shards import Shard, dense, make_anchor, make_delta, spec_of
from deltastore.slicing import cut
from deltastore.tensors.bits import Bits

Make = Callable[[], Shard]
_ALIVE: Final = 128 << 20
"""Bytes of a trainer's tensors that are alive at once: they may be casts that nobody else holds."""


@dataclass(frozen=True, slots=True)
class Making:
    """How shards are made.

    Attributes:
        delta: Id of the codec of deltas, or `auto`.
        anchor: Id of the codec of anchors.
        check: Whether to decode what was encoded.
        nonce: 16 random bytes.
        link: Bytes per second of the slowest link to a server, for `auto`; None if it is not slow.
    """

    delta: str
    anchor: str
    check: bool
    nonce: Callable[[], bytes]
    link: float | None = None

    def __post_init__(self) -> None:
        if self.delta not in {AUTO, *codecs.DELTA} or self.anchor not in codecs.ANCHOR:
            known = f"{AUTO}, {', '.join(codecs.DELTA)} for deltas, {', '.join(codecs.ANCHOR)} for anchors"
            raise Unsupported(f"there is no codec {self.delta!r} or {self.anchor!r}", hint=known)
        if self.link is not None and (self.delta != AUTO or not self.link > 0):
            hint = "Bytes per second, more than 0, and codec='auto'"
            raise UsageError(f"link={self.link!r} with codec={self.delta!r}", hint=hint)

    @property
    def compares(self) -> DeltaCodec[Any]:
        """The codec in whose form changes are found; `auto` chooses between two that have the same."""
        return codecs.DELTA["ulp" if self.delta == AUTO else self.delta]

    def settled(self, move: Move) -> Making:
        """The same with the codec that some changes are best written in, where that was left open."""
        if self.delta != AUTO:
            return self
        found = [delta for delta in move.deltas.values() if isinstance(delta, Steps)]
        return replace(self, delta=choose(found, link=self.link), link=None)

    @property
    def reads_base(self) -> bool:
        """Whether deltas are encoded from the base as well; it must not move until then."""
        return codecs.reads_base(self.delta)


class Snapshot:
    """A state and how it is cut.

    Attributes:
        base: The bits.
        schema: Descriptor of their schema.
        state: Their digest.
    """

    def __init__(self, base: PrivateState, schema: Descriptor, state: int, *, shard_bytes: int) -> None:
        self.base = base
        self.schema = schema
        self.state = state
        self._groups = cut(base.schema, shard_bytes=shard_bytes)

    def move(
        self,
        tensors: Iterable[tuple[TensorSpec, Bits]],
        making: Making,
        inspect: Callable[[str, int], None],
        *,
        keep: bool = False,
    ) -> Move:
        """Diffs tensors against the base, which moves to them; all or nothing.

        Tensors are drawn and inspected in the caller's thread, and compared in several.

        Args:
            tensors: Tensors that own their storage, in any order, conforming to the schema.
            making: Says which codec compares, and so in what form changes are noted.
            inspect: Called with the name of a tensor and how many of its new values are not finite; what it
                raises undoes the move.
            keep: Whether a tensor stays what it is while those after it are drawn. One that may not is done
                with before the next is drawn; of others so many are alive at once as keep all cores busy.

        Raises:
            Broken: A comparison broke off in the middle; nothing can be built on the base.
        """
        slices: dict[str, list[Slice]] = {}
        for one in (one for group in self._groups for one in group):
            slices.setdefault(one.tensor.name, []).append(one)
        move = Move(self, {}, making.compares)
        parts = self._parts(tensors, slices, move)
        groups = threads.groups(parts, _Part.nbytes, most=threads.PIECE if keep else 0)
        budget = min(2 * threads.count() * threads.PIECE, _ALIVE) if keep else 0
        flow = threads.flow(move.compare, groups, budget=budget, size=lambda g: sum(map(_Part.nbytes, g)))
        try:
            with closing(flow) as done:
                for delta in chain.from_iterable(done):
                    inspect(delta.spec.name, delta.nonfinite)
        except BaseException as error:
            move.undo()
            if move.broken is not None and isinstance(error, Exception):
                raise move.broken from error
            raise
        self.state = (self.state + sum(delta.state_delta for delta in move.deltas.values())) & MASK
        return move

    def anchors(self, making: Making) -> list[Make]:
        """How to make the shards of an anchor; they read the base when they are called."""
        return [partial(self._anchor, group, making) for group in self._groups]

    def deltas(self, move: Move, making: Making) -> list[Make]:
        """How to make the shards of a delta; the codec is settled, and they read the base only if it does."""
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

    def _parts(
        self, tensors: Iterable[tuple[TensorSpec, Bits]], slices: Mapping[str, list[Slice]], move: Move
    ) -> Iterator[_Part]:
        """What is to be compared; on a device it is, at once: its streams are those of this thread."""
        for tensor, bits in tensors:
            held = self.base.near(tensor.name, bits)
            for one in slices[tensor.name]:
                part = _Part(spec_of(one), held, bits)
                if not held.any_thread:
                    move.compare([part])
                yield part

    def _read(self, one: Slice) -> Lanes:
        return self.base[one.tensor.name].read(one.start, one.stop)

    def _anchor(self, group: list[Slice], making: Making) -> Shard:
        denses = [dense(one, self._read(one)) for one in group]
        schema = self.base.schema
        return make_anchor(making.anchor, schema, group, denses, nonce=making.nonce(), check=making.check)


@dataclass(frozen=True, slots=True)
class _Part:
    """A slice to compare: its whole tensor in the base, and the new one beside it."""

    spec: SliceSpec
    base: Bits
    new: Bits

    def nbytes(self) -> int:
        return self.spec.nbytes


@dataclass(slots=True)
class Move:
    """What moved the base, slice by slice.

    Attributes:
        snapshot: Whose base.
        deltas: By tensor and first lane.
        codec: What compares them.
        broken: Why the base is not known any more, if it is not.
    """

    snapshot: Snapshot
    deltas: dict[tuple[str, int], Delta]
    codec: DeltaCodec[Delta]
    broken: Broken | None = None

    def compare(self, parts: list[_Part]) -> list[Delta]:
        """Compares some slices, in any thread; each is noted as soon as the base has moved, and done once."""
        return [
            self.deltas.get((part.spec.name, part.spec.start))
            or self._compare(part.spec, part.base, part.new)
            for part in parts
        ]

    def _compare(self, spec: SliceSpec, base: Bits, new: Bits) -> Delta:
        try:
            delta = self.deltas[spec.name, spec.start] = base.move(self.codec, spec, new)
        except DeltaStoreError:
            raise
        except Exception as error:
            self.broken = Broken(
                f"comparing tensor {spec.label!r} broke off: {error!r}",
                hint="Nothing was published; close this producer and open a new one",
                tensor=spec.name,
            )
            raise self.broken from error
        return delta

    def undo(self) -> None:
        """Takes the base back to where it was."""
        for delta in self.deltas.values():
            self.snapshot.base[delta.spec.name].undo(delta)
