"""What a consumer writes to (spec, Reading): something with a layout that can stage and commit.

`stage` may fail and changes nothing that serving sees; `commit` does no I/O and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

import numpy as np

from deltastore.codec import kernels
from deltastore.codec.types import Positions, SliceSpec, Sparse
from deltastore.consumer.places import Place, Write, check_arrived, place_of
from deltastore.errors import SchemaMismatch
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.protocol.schema import Schema
from deltastore.state import Local, Patch, evaluate_here
from deltastore.store import Store, VersionInfo
from deltastore.tensors.convert import memory_of, pairs
from deltastore.tensors.names import DDP, clean
from deltastore.tensors.overlap import refuse_overlaps

if TYPE_CHECKING:
    import torch

    from deltastore.tensors.convert import Tensor

P = TypeVar("P")
Binding = dict[str, list[Place]]
"""Where each tensor that owns its storage lies; more than one place where a tie is not one in memory."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes one version out of what a target holds.

    Attributes:
        info: The version that they lead to.
        schema: Its schema.
        patches: New bits by name of the tensor that owns them; after an anchor, of all tensors.
        files: Its side files.
        store: Where these can be fetched.
    """

    info: VersionInfo
    schema: Schema
    patches: Mapping[str, Patch]
    files: Mapping[str, Descriptor]
    store: Store


@runtime_checkable
class Target(Protocol[P]):
    """Weights that follow a store."""

    @property
    def holds_files(self) -> bool:
        """Whether side files belong to what it holds: it is staged anew where only they change."""
        ...

    def bind(self, schema: Schema) -> None:
        """Makes sure that weights of this schema fit.

        Raises:
            SchemaMismatch: They do not; the message lists what is missing, extra or different.
        """
        ...

    def intact(self) -> bool:
        """Whether it is still the memory, or the files, that it was at the last call.

        After a False it goes on with what is there now, of which nothing is known.
        """
        ...

    def can_read_old(self) -> bool:
        """Whether the bits that were committed last can be read back."""
        ...

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes of a tensor at flat positions."""
        ...

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` of a tensor."""
        ...

    def view(self, name: str) -> Lanes | None:
        """All lanes of a tensor as they lie in host memory, or None if they do not lie there in a row."""
        ...

    def state(self, schema: Schema) -> int | None:
        """The digest of every byte; None if tied tensors differ, so that it holds no state at all."""
        ...

    def hint(self) -> int | None:
        """The version that the target says it holds; checked by its digest before it is believed."""
        ...

    def stage(self, changes: Changes) -> P:
        """Prepares changes; may fail, and serving does not see it."""
        ...

    def commit(self, staged: P) -> None:
        """Makes them: all of them, or none. May raise a `DeltaStoreError` only where nothing has moved."""
        ...

    def discard(self, staged: P) -> None:
        """Forgets what was staged."""
        ...


class TensorsTarget(Local):
    """Tensors in memory: a state dict, or a module's; torch on any device, or numpy.

    Args:
        tensors: Names and tensors, or a module. Wrappers are taken off the names.
    """

    holds_files: Final = False

    def __init__(self, tensors: torch.nn.Module | Mapping[str, Tensor]) -> None:
        self._source = tensors
        self._places: dict[str, Place] = {}
        self._layout: list[object] = []
        self._bindings: dict[str, Binding] = {}
        self._bound: Binding = {}
        self._open()

    def intact(self) -> bool:
        """Whether all tensors lie where they did: `.data =`, `.to()` and `assign=` replace them."""
        if self._fingerprint() == self._layout:
            return True
        self._open()
        return False

    def _fingerprint(self) -> list[object]:
        return [(n, type(t), str(t.dtype), tuple(t.shape), memory_of(t)) for n, t in pairs(self._source)]

    def _open(self) -> None:
        """Finds out where each tensor lies; the same memory under two names is one place."""
        named = list(pairs(self._source))
        places: dict[str, Place] = {}
        memories: dict[object, Place] = {}
        for name, (raw, tensor) in zip(clean([name for name, _ in named]), named, strict=True):
            if name in places:
                raise SchemaMismatch(
                    f"two tensors are called {name!r} once wrappers are taken off", tensor=raw
                )
            memory = memory_of(tensor)
            place = memories.get(memory) if memory is not None else None
            places[name] = place or place_of(name, tensor)
            if memory is not None:
                memories[memory] = places[name]
        refuse_overlaps(place.extent for place in {id(p): p for p in places.values()}.values())
        self._places, self._layout = places, self._fingerprint()
        self._bindings, self._bound = {}, {}

    def bind(self, schema: Schema) -> None:
        """Maps each tensor of the schema to the memory that holds it, ties included."""
        self._bound = self._binding(schema)

    def _binding(self, schema: Schema) -> Binding:
        known = self._bindings.get(schema.sha256)
        if known is None:
            known = self._bindings[schema.sha256] = _bind(self._places, schema)
        return known

    def can_read_old(self) -> bool:
        """Always: the weights are what is served."""
        return True

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array."""
        return self._bound[name][0].gather(positions)

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop`."""
        return self._bound[name][0].read(start, stop)

    def view(self, name: str) -> Lanes | None:
        """All lanes, of a tensor on the CPU."""
        return self._bound[name][0].view()

    def evaluate(self, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
        """See `Local.evaluate`."""
        place = self._bound[spec.name][0]
        return place.evaluate(spec, change) if isinstance(place, Local) else evaluate_here(self, spec, change)

    def slice_digest(self, spec: SliceSpec) -> int:
        """See `Local.slice_digest`."""
        return _digest(self._bound[spec.name][0], spec)

    def state(self, schema: Schema) -> int | None:
        """The digest of every byte; None if tied tensors that have memory of their own differ."""
        binding, total = self._binding(schema), 0
        for tensor in schema.owners:
            digests = {_digest(place, SliceSpec.of(tensor)) for place in binding[tensor.name]}
            if len(digests) > 1:
                return None
            total += digests.pop()
        return total & MASK

    def hint(self) -> int | None:
        """Memory does not say."""
        return None

    def stage(self, changes: Changes) -> list[Write]:
        """Brings new bits to where the weights are, and keeps the old ones for undoing."""
        return [
            place.prepare(patch) for name, patch in changes.patches.items() for place in self._bound[name]
        ]

    def commit(self, staged: list[Write]) -> None:
        """Scatters, and waits until it is there; on an error takes back what was done."""
        done: list[Write] = []
        try:
            for write in staged:
                done.append(write)
                write.apply()
            check_arrived(done)
        except BaseException:
            while done:
                done.pop().undo()
            raise

    def discard(self, staged: list[Write]) -> None:
        """Nothing is outside of `staged`."""


def _digest(place: Place, spec: SliceSpec) -> int:
    if isinstance(place, Local):
        return place.slice_digest(spec)
    lanes = np.ascontiguousarray(place.read(spec.start, spec.stop))
    return kernels.digest(lanes, tensor_key(spec.name), spec.first_word)


def _bind(named: Mapping[str, Place], schema: Schema) -> Binding:
    """The places of each tensor that owns its storage; whatever does not fit is refused with a list."""
    bound: Binding = {}
    users: dict[int, str] = {}
    if not any(name in schema for name in named) and all(DDP + name in schema for name in named):
        # A model whose only child is really called `module`, as its checkpoint says.
        named = {DDP + name: place for name, place in named.items()}
    wanted = {id(place) for name, place in named.items() if name in schema}
    problems = [
        f"extra {name!r}" for name, place in named.items() if name not in schema and id(place) not in wanted
    ]
    for tensor in schema.tensors:
        owner = tensor.alias_of or tensor.name
        place = named.get(tensor.name)
        if place is None:
            continue
        if (place.dtype, place.shape) != (tensor.dtype, tensor.shape):
            here, there = f"{place.dtype}{list(place.shape)}", f"{tensor.dtype}{list(tensor.shape)}"
            problems.append(f"{tensor.name!r} is {here}, not {there}")
        if users.setdefault(id(place), owner) != owner:
            problems.append(f"{tensor.name!r} shares memory with {users[id(place)]!r} only here")
        places = bound.setdefault(owner, [])
        if all(place is not other for other in places):
            places.append(place)
    problems += [f"missing {tensor.name!r}" for tensor in schema.owners if tensor.name not in bound]
    if problems:
        raise _does_not_fit(problems)
    return bound


def _does_not_fit(problems: Iterable[str]) -> SchemaMismatch:
    listed = list(problems)
    shown = "; ".join(listed[:8]) + (f"; and {len(listed) - 8} more" if len(listed) > 8 else "")
    return SchemaMismatch(
        f"the target does not fit the store's schema: {shown}",
        hint="Load the model that the store was made from, with the same dtypes",
        problems=len(listed),
    )
