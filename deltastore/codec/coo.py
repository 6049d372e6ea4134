"""Codec `coo` (spec, Codec coo): indices and values as plain tensors that any tool reads, not compressed.

Indices count from the start of the whole tensor, whatever part of it the slice is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from deltastore.codec import kernels, shard
from deltastore.codec.types import Base, CopyWhole, Decoded, Diff, Encoded, SliceSpec, Sparse
from deltastore.errors import BadShard, Unsupported
from deltastore.protocol.digest import MASK, Lanes

_WIDE: Final = 2**31


class Coo:
    """Coordinates: for debugging and exchange."""

    id: Final = "coo"
    kind: Final = "delta"
    reads_base: Final = False

    def diff(self, spec: SliceSpec, base: Lanes, new: Lanes) -> Diff:
        """See `DeltaCodec.diff`."""
        return kernels.diff(spec, base, new)

    def of(self, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> Diff:
        """See `DeltaCodec.of`."""
        return Diff.joined(spec, parts, whole)

    def unchanged(self, spec: SliceSpec) -> Diff:
        """See `DeltaCodec.unchanged`."""
        return Diff.none(spec)

    def encode(self, deltas: Sequence[Diff], *, nonce: bytes, base: Base | None = None) -> Encoded:
        """See `DeltaCodec.encode`; tensors whose names would collide are refused."""
        twice = _twice([diff.spec for diff in deltas])
        if twice:
            raise Unsupported(
                f"two slices of a shard would be called {twice!r}",
                hint="Use another codec, or rename the tensor",
                tensor=twice,
            )
        tensors = [tensor for diff in deltas if diff.changed for tensor in _tensors(diff)]
        digests = [diff.state_delta for diff in deltas]
        meta = shard.Meta(self.id, shard.nonce_text(nonce), digests)
        return Encoded(
            data=shard.build(meta, tensors),
            raw_size=sum(len(tensor.data) for _, tensor in tensors),
            state_delta=sum(digests) & MASK,
            changed=sum(diff.changed for diff in deltas),
        )

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
    ) -> Decoded:
        """See `DeltaCodec.decode`; all changes are sparse and absolute."""
        file = shard.open_shard(data, codec=self.id, digests=len(specs))
        shard.check_raw_size(raw_size, sum(len(t.data) for t in file.tensors.values()), specs)
        digests = file.meta.digest
        known = {name for spec in specs for name in _names(spec)}
        if file.meta.raw or _twice(specs) or not file.tensors.keys() <= known:
            raise BadShard("the tensors of the shard are not those of its slices")
        changes = [_read(spec, digest, file.tensors) for spec, digest in zip(specs, digests, strict=True)]
        return Decoded([*changes], [*digests])


def _twice(specs: Sequence[SliceSpec]) -> str | None:
    """A label that two slices have; whose changes are there could not be told then."""
    counts = Counter(spec.label for spec in specs)
    return next((label for label, count in counts.items() if count > 1), None)


def _names(spec: SliceSpec) -> tuple[str, str]:
    return f"{spec.label}.indices", f"{spec.label}.values"


def _index_dtype(spec: SliceSpec) -> str:
    return "I32" if spec.total < _WIDE else "I64"


def _value_dtype(spec: SliceSpec) -> str:
    return "U8" if spec.packed else spec.dtype


def _tensors(diff: Diff) -> list[tuple[str, shard.Tensor]]:
    spec, shape = diff.spec, (diff.changed,)
    dtype = _index_dtype(spec)
    indices = (diff.positions + spec.start).astype("<i4" if dtype == "I32" else "<i8")
    values = shard.Tensor(_value_dtype(spec), shape, diff.new.tobytes())
    return list(zip(_names(spec), (shard.Tensor(dtype, shape, indices.tobytes()), values), strict=True))


def _read(spec: SliceSpec, digest: int, tensors: Mapping[str, shard.Tensor]) -> Sparse:
    indices, values = (tensors.get(name) for name in _names(spec))
    if indices is None and values is None:
        shard.check_idle(spec, digest)
        return Sparse(np.empty(0, np.int64), np.empty(0, spec.uint), relative=False)
    if indices is None or values is None:
        raise BadShard(f"slice {spec.label!r} has indices without values, or values without indices")
    changed = math.prod(indices.shape)
    if not changed:
        raise BadShard(f"slice {spec.label!r} has indices, but none in them")
    for tensor, dtype in ((indices, _index_dtype(spec)), (values, _value_dtype(spec))):
        if tensor.dtype != dtype or tensor.shape != (changed,):
            raise BadShard(
                f"slice {spec.label!r} has {tensor.dtype}{list(tensor.shape)}, not {dtype}[{changed}]"
            )
    # Unsigned and compared before the start is taken off: no index can wrap into range.
    found = indices.lanes(np.dtype("<u4" if indices.dtype == "I32" else "<u8"))
    if found[0] < spec.start or found[-1] >= spec.stop or (found[1:] <= found[:-1]).any():
        raise BadShard(f"the indices of slice {spec.label!r} do not ascend within it")
    return Sparse(found.astype(np.int64) - spec.start, values.lanes(spec.uint), relative=False)
