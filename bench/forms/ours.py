"""deltastore through the functions that producers and consumers run; only this and `merging` call them.

Whatever kernels these functions pick are what is measured.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from bench.forms.base import Message, Missing
from bench.model import Model
from deltastore import codec
from deltastore.codec import ANCHOR, DELTA, kernels
from deltastore.codec.types import InMemory
from deltastore.parallel import INLINE, Workers
from deltastore.producer.private import PrivateState
from deltastore.producer.snapshot import Making, Snapshot
from deltastore.protocol.descriptors import Descriptor, resolve
from deltastore.protocol.digest import MASK
from deltastore.protocol.edges import Edge
from deltastore.protocol.planning import Plan
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.replay import Replay
from deltastore.shards import Shard, spec_of
from deltastore.slicing import SHARD_BYTES
from deltastore.state import HostState, Patch
from deltastore.tensors import device
from deltastore.tensors.host import HostTensor

DTYPE: Final = "BF16"
Scan = Callable[[NDArray[np.uint16], int, int], int]
"""Digest of lanes, with a key and the index of the first word."""


def kernels_in_use() -> str:
    """Name of the kernels, as deltastore tells it."""
    name = vars(kernels).get("NAME")
    return name if isinstance(name, str) else "numpy (deltastore.codec.kernels has no NAME)"


def native_digest() -> Scan | None:
    """The compiled kernel's digest, whether or not deltastore uses it yet; None if it was not built."""
    if os.environ.get("DELTASTORE_KERNELS") == "numpy" or find_spec("deltastore.codec._native") is None:
        return None
    found: Scan = importlib.import_module("deltastore.codec._native").digest
    return found


def public_digest(lanes: NDArray[np.uint16], key: int, first_word: int) -> int:
    """The digest as everything in deltastore calls it."""
    return kernels.digest(lanes, key, first_word)


def device_digest(lanes: NDArray[np.uint16], key: int, first_word: int) -> int:
    """The digest of tensors on a device, here on the CPU."""
    return device.digest(torch.from_numpy(lanes.view(np.int16)), key, first_word)


def schema_of(model: Model) -> Schema:
    """A model's schema."""
    return Schema.of(TensorSpec(name, DTYPE, shape) for name, shape in model.shapes.items())


def state_of(model: Model) -> HostState:
    """A model as a state; they share memory."""
    return HostState(schema_of(model), model.bits)


def _workers(cores: int) -> Workers:
    return INLINE if cores == 1 else Workers(threads=cores)


def _tensors(model: Model, schema: Schema) -> Iterator[tuple[TensorSpec, HostTensor]]:
    for spec in schema.tensors:
        yield spec, HostTensor(DTYPE, spec.shape, model.bits[spec.name])


def _inspect(name: str, nonfinite: int) -> None:
    """What a producer does with whatever changed: refuse NaN and infinity."""
    if nonfinite:
        raise ValueError(f"tensor {name!r} is not finite")


@dataclass(frozen=True, slots=True)
class Delta(Message):
    """Shards, and the edge that a record would hold."""

    edge: Edge

    @property
    def header(self) -> int:
        """Bytes of the shards that are not streams: the headers of safetensors."""
        return sum(8 + int.from_bytes(part[:8], "little") for part in self.parts)


@dataclass(frozen=True)
class Ours:
    """A delta codec of deltastore.

    Attributes:
        codec: Its id.
        check: Whether the producer decodes its own shards, as it does unless told otherwise.
    """

    codec: str
    check: bool = False
    ours: bool = True
    digest: str = "state digest, before weights change"

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.codec}, self-checked" if self.check else self.codec

    def require(self) -> None:
        """See `DeltaForm`."""
        if self.codec not in DELTA:
            raise Missing(f"this deltastore has no codec {self.codec}")

    def sender(self, held: Model, cores: int) -> OurSender:
        """See `DeltaForm`."""
        return OurSender(self, held, cores)

    def receiver(self, held: Model, cores: int) -> OurReceiver:
        """See `DeltaForm`."""
        return OurReceiver(held, cores)


class OurSender:
    """A producer without a store.

    Attributes:
        encoding: Seconds that the last message took, but for the comparison.
    """

    def __init__(self, form: Ours, held: Model, cores: int) -> None:
        state = state_of(held)
        schema = Descriptor(state.schema.sha256, len(state.schema.data))
        self._held = held
        self._snapshot = Snapshot(PrivateState.of(state), schema, state.digest(), shard_bytes=SHARD_BYTES)
        self._making = Making(form.codec, "plain", form.check, lambda: bytes(16))
        self._workers = _workers(cores)
        self.encoding = 0.0

    def send(self, new: Model) -> Delta:
        """See `Sender`."""
        snapshot = self._snapshot
        before = snapshot.state
        move = snapshot.move(_tensors(new, snapshot.base.schema), self._making, _inspect, keep=True)
        makes = snapshot.deltas(move, self._making)
        start = time.perf_counter()
        shards = list(self._workers.map(_made, makes))
        self.encoding = time.perf_counter() - start
        edge = Edge(0, before, 1, snapshot.state, tuple(shard.descriptor for shard in shards))
        return Delta(tuple(shard.data for shard in shards), edge)

    def holds(self, model: Model) -> bool:
        """See `Sender`."""
        return self._held.same(model) and self._snapshot.state == state_of(model).digest()


class OurReceiver:
    """A consumer without a store."""

    def __init__(self, held: Model, cores: int) -> None:
        self._held = held
        self._state = state_of(held)
        self._digest = self._state.digest()
        self._workers = _workers(cores)
        self._patches: dict[str, Patch] = {}

    def stage(self, message: Message) -> None:
        """See `Receiver`."""
        if not isinstance(message, Delta):
            raise TypeError("not a message of deltastore")
        edge = message.edge
        shards = {d.sha256: data for d, data in zip(edge.shards, message.parts, strict=True)}
        replay = Replay(self._state.schema, edge.state, lambda d: shards[d.sha256], self._workers)
        self._patches = replay.run(Plan(0, (edge,), edge.size), self._state, base_state=self._digest)

    def decode(self, message: Message) -> None:
        """The part of `stage` that is the codec's: inflating and decoding, without digests."""
        if not isinstance(message, Delta):
            raise TypeError("not a message of deltastore")
        for shard, data in zip(message.edge.shards, message.parts, strict=True):
            specs = [spec_of(one) for one in resolve(self._state.schema, shard.slices)]
            held = [self._state.lanes(spec.name)[spec.start : spec.stop] for spec in specs]
            codec.decode(shard.codec, data, specs, raw_size=shard.raw_size, base=InMemory(held))

    def commit(self) -> None:
        """See `Receiver`."""
        self._state.apply(self._patches)

    def holds(self, model: Model) -> bool:
        """See `Receiver`."""
        return self._held.same(model)


@dataclass(frozen=True)
class OurAnchor:
    """An anchor codec of deltastore.

    Attributes:
        codec: Its id.
    """

    codec: str
    ours: bool = True

    @property
    def name(self) -> str:
        """For tables."""
        return self.codec

    def require(self) -> None:
        """See `DeltaForm`."""
        if self.codec not in ANCHOR:
            raise Missing(f"this deltastore has no codec {self.codec}")

    def pack(self, model: Model, cores: int) -> Delta:
        """See `AnchorForm`; digests and the SHA-256 of the shards are in the time."""
        state = state_of(model)
        schema = Descriptor(state.schema.sha256, len(state.schema.data))
        snapshot = Snapshot(PrivateState.of(state), schema, 0, shard_bytes=SHARD_BYTES)
        making = Making("ulp", self.codec, check=False, nonce=lambda: bytes(16))
        shards = list(_workers(cores).map(_made, snapshot.anchors(making)))
        total = sum(shard.descriptor.state_delta for shard in shards) & MASK
        edge = Edge("none", None, 1, total, tuple(shard.descriptor for shard in shards))
        return Delta(tuple(shard.data for shard in shards), edge)

    def unpack(self, message: Message, into: Model, cores: int) -> None:
        """See `AnchorForm`; digests are in the time."""
        if not isinstance(message, Delta):
            raise TypeError("not a message of deltastore")
        state, edge = state_of(into), message.edge
        shards = {d.sha256: data for d, data in zip(edge.shards, message.parts, strict=True)}
        replay = Replay(state.schema, edge.state, lambda d: shards[d.sha256], _workers(cores))
        state.apply(replay.run(Plan("none", (edge,), edge.size), None))


def _made(make: Callable[[], Shard]) -> Shard:
    return make()


def ours() -> list[Ours]:
    """Every delta codec of this deltastore."""
    return [Ours(codec) for codec in DELTA]


def our_anchors() -> list[OurAnchor]:
    """Every anchor codec of this deltastore."""
    return [OurAnchor(codec) for codec in ANCHOR]
