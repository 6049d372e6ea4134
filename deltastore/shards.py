"""Shards as they are made: encoded, checked by decoding them again, and described (spec, Shards)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from deltastore import codec
from deltastore.codec import kernels, merging
from deltastore.codec.types import Delta, Dense, Encoded, InMemory, SliceSpec, Whole
from deltastore.errors import BadShard, Unsupported
from deltastore.protocol.descriptors import ShardDescriptor, Slice, compress
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.protocol.limits import SHARD_BYTES
from deltastore.protocol.schema import Schema
from deltastore.protocol.wire import sha256

_FAULT: Final = "Nothing was published; this is a fault of deltastore or of the memory, report it"


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard that is ready to be stored.

    Attributes:
        data: Its bytes.
        descriptor: What records say of it.
        changed: Lanes that it changes.
    """

    data: bytes
    descriptor: ShardDescriptor
    changed: int


def spec_of(one: Slice) -> SliceSpec:
    """A slice as codecs take it."""
    tensor = one.tensor
    return SliceSpec(tensor.name, tensor.dtype, tensor.shape, one.start, one.stop, tensor.lanes)


def make_delta(
    codec_id: str,
    schema: Schema,
    slices: Sequence[Slice],
    deltas: Sequence[Delta],
    *,
    base: Callable[[Slice], Lanes],
    nonce: bytes,
    check: bool,
) -> Shard:
    """A shard of what changed in some slices.

    Args:
        codec_id: A delta codec.
        schema: That the slices are of.
        slices: In schema order.
        deltas: One for each of them.
        base: The lanes of a slice after the deltas; called only if the codec reads the base.
        nonce: 16 random bytes.
        check: Decode the result and compare it with the deltas: a wrong delta never enters the log.

    Raises:
        BadShard: It does not decode to the deltas.
    """
    chosen = codec.DELTA[codec_id]
    after = [base(one) for one in slices] if chosen.reads_base else []
    encoded = chosen.encode(deltas, nonce=nonce, base=InMemory(after))
    if check:
        specs = [delta.spec for delta in deltas]
        before = _Before(after, deltas) if chosen.reads_base else None
        decoded = chosen.decode(encoded.data, specs, raw_size=encoded.raw_size, base=before)
        for delta, change, said in zip(deltas, decoded.changes, decoded.deltas, strict=True):
            if said not in {None, delta.state_delta} or not delta.says(change):
                raise _not_itself(codec_id, delta.spec)
        _check_sum(codec_id, encoded, [delta.state_delta for delta in deltas])
    return _described(codec_id, schema, slices, encoded)


class _Before:
    """The lanes before some deltas, as a base: it has moved."""

    def __init__(self, after: Sequence[Lanes], deltas: Sequence[Delta]) -> None:
        self._parts = [delta.before(lanes) for delta, lanes in zip(deltas, after, strict=True)]

    def read(self, index: int, start: int, stop: int) -> Lanes:
        """See `Base.read`."""
        return self._parts[index](start, stop)

    def view(self, index: int) -> None:
        """See `Base.view`."""


def make_anchor(
    codec_id: str,
    schema: Schema,
    slices: Sequence[Slice],
    denses: Sequence[Dense],
    *,
    nonce: bytes,
    check: bool,
) -> Shard:
    """A shard of whole slices; arguments and errors as for `make_delta`."""
    chosen = codec.ANCHOR[codec_id]
    encoded = chosen.encode(denses, nonce=nonce)
    if check:
        decoded = chosen.decode(encoded.data, [d.spec for d in denses], raw_size=encoded.raw_size)
        for dense, change, said in zip(denses, decoded.changes, decoded.deltas, strict=True):
            same = isinstance(change, Whole) and np.array_equal(change.lanes, dense.lanes)
            if not same or said not in {None, dense.digest}:
                raise _not_itself(codec_id, dense.spec)
        _check_sum(codec_id, encoded, [dense.digest for dense in denses])
    return _described(codec_id, schema, slices, encoded)


def make_merged(
    schema: Schema,
    slices: Sequence[Slice],
    shards: Sequence[tuple[ShardDescriptor, bytes]],
    *,
    nonce: bytes,
) -> Shard:
    """One shard that does what those of successive deltas do; it is read again before it is returned.

    Args:
        schema: That the slices are of.
        slices: What each of the shards covers.
        shards: Oldest first, with their descriptors.
        nonce: 16 random bytes.

    Raises:
        Unsupported: A shard is of a codec that cannot be merged.
        IntegrityError: One is damaged, or they are not of successive deltas.
    """
    specs = [spec_of(one) for one in slices]
    stored = [merging.Stored(data, d.codec, d.raw_size, d.state_delta) for d, data in shards]
    encoded = merging.merge(stored, specs, nonce=nonce)
    result = merging.Stored(encoded.data, merging.CODEC, encoded.raw_size, encoded.state_delta)
    if merging.changed_by(result, specs) != encoded.changed:
        raise BadShard("a merged shard does not come back as it was", hint=_FAULT)
    return _described(merging.CODEC, schema, slices, encoded)


def dense(one: Slice, lanes: Lanes) -> Dense:
    """A whole slice with its digest."""
    spec = spec_of(one)
    return Dense(spec, lanes, kernels.digest(lanes, tensor_key(spec.name), spec.first_word))


def _described(codec_id: str, schema: Schema, slices: Sequence[Slice], encoded: Encoded) -> Shard:
    if len(encoded.data) > SHARD_BYTES:
        raise Unsupported(
            f"a shard of {slices[0].tensor.name!r} and others would have {len(encoded.data)} bytes",
            hint=f"At most {SHARD_BYTES}: cut the schema into smaller shards",
        )
    descriptor = ShardDescriptor(
        sha256=sha256(encoded.data),
        xxh3=xxhash.xxh3_64_intdigest(encoded.data),
        size=len(encoded.data),
        raw_size=encoded.raw_size,
        codec=codec_id,
        state_delta=encoded.state_delta,
        slices=compress(schema, slices),
    )
    return Shard(encoded.data, descriptor, encoded.changed)


def _check_sum(codec_id: str, encoded: Encoded, digests: Sequence[int]) -> None:
    if encoded.state_delta != sum(digests) & MASK:
        raise BadShard(f"codec {codec_id!r} has added up the digests of its slices wrongly", hint=_FAULT)


def _not_itself(codec_id: str, spec: SliceSpec) -> BadShard:
    return BadShard(
        f"codec {codec_id!r} does not give tensor {spec.label!r} back as it was",
        hint=_FAULT,
        tensor=spec.name,
    )
