"""Codec `plain` (spec, Codec plain): whole tensors in an ordinary safetensors file; an anchor.

A whole tensor has its own name, dtype and shape, so that other tools load the file as it is; a part of one is
flat and named `NAME[start:stop]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltastore.codec import shard
from deltastore.codec.types import Decoded, Dense, Encoded, SliceSpec, Whole
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK

_FOR_OTHERS: Final = {"format": "pt"}
"""Loaders of checkpoints refuse files that do not say which framework they are of."""


class Plain:
    """Whole slices as they are."""

    id: Final = "plain"
    kind: Final = "anchor"

    def encode(self, denses: Sequence[Dense], *, nonce: bytes) -> Encoded:
        """See `AnchorCodec.encode`; tensors whose names would collide are refused."""
        tensors: list[tuple[str, shard.Tensor]] = []
        for dense in denses:
            dense.spec.check(dense.lanes)
            dtype, shape = _layout(dense.spec)
            data = dense.lanes.data.cast("B") if dense.lanes.size else b""
            tensors.append((dense.spec.label, shard.Tensor(dtype, shape, data)))
        digests = [dense.digest for dense in denses]
        meta = shard.Meta(self.id, shard.nonce_text(nonce), digests)
        return Encoded(
            data=shard.build(meta, tensors, extra=_FOR_OTHERS),
            raw_size=sum(dense.spec.nbytes for dense in denses),
            state_delta=sum(digests) & MASK,
            changed=sum(dense.spec.lanes for dense in denses),
        )

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """See `AnchorCodec.decode`; the changes are views of `data`."""
        file = shard.open_shard(data, codec=self.id, digests=len(specs))
        digests = file.meta.digest
        shard.check_raw_size(raw_size, sum(len(t.data) for t in file.tensors.values()), specs)
        names = [spec.label for spec in specs]
        if file.meta.raw or len(names) != len(file.tensors) or set(names) != file.tensors.keys():
            raise BadShard("the tensors of the shard are not those of its slices")
        changes = [_read(spec, digest, file.tensors) for spec, digest in zip(specs, digests, strict=True)]
        return Decoded([*changes], [*digests])


def _layout(spec: SliceSpec) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape in the file; lanes of packed elements are bytes, which only the whole tensor hides."""
    if spec.whole:
        return spec.dtype, spec.shape
    return ("U8" if spec.packed else spec.dtype), (spec.lanes,)


def _read(spec: SliceSpec, digest: int, tensors: Mapping[str, shard.Tensor]) -> Whole:
    tensor = tensors[spec.label]
    if (tensor.dtype, tensor.shape) != _layout(spec) or len(tensor.data) != spec.nbytes:
        raise BadShard(f"tensor {spec.label!r} has another dtype or shape than its slice")
    if not spec.lanes:
        shard.check_idle(spec, digest)
    return Whole(tensor.lanes(spec.uint))
