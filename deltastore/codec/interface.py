"""What a codec is (spec, Codecs): it turns what changed, or whole slices, into a shard and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from deltastore.codec.types import Base, CopyWhole, Decoded, Delta, Dense, Diff, Encoded, SliceSpec
from deltastore.protocol.digest import Lanes

D = TypeVar("D", bound=Delta)
"""The form of a delta that a codec makes and takes."""


class DeltaCodec(Protocol[D]):
    """Compares, and turns what changed into a shard and back."""

    @property
    def id(self) -> str:
        """The codec's name in descriptors."""

    @property
    def kind(self) -> Literal["delta"]:
        """Which edges it is for."""

    @property
    def reads_base(self) -> bool:
        """Whether `encode` and `decode` need the base."""

    def diff(self, spec: SliceSpec, base: Lanes, new: Lanes) -> D:
        """Compares, and moves `base` to `new` in place.

        Raises:
            SchemaMismatch: An array is not of the slice; the base has not moved. After any other error it may
                have.
        """

    def of(self, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> D:
        """What was compared elsewhere, as `diff` gives it.

        Args:
            spec: The slice.
            parts: What changed in each of its parts, in order; they begin at blocks of the slice.
            whole: Called behind the last part with the number of changes; gives the copy of all lanes after
                that `whole_copy` would have made, or None.
        """

    def unchanged(self, spec: SliceSpec) -> D:
        """A slice in which nothing changed."""

    def encode(self, deltas: Sequence[D], *, nonce: bytes, base: Base | None = None) -> Encoded:
        """Writes a shard with one slice per delta.

        Args:
            deltas: In schema order.
            nonce: 16 random bytes, so that two encodings never share a key.
            base: The slices after the deltas; not read unless `reads_base`.

        Raises:
            UsageError: The diffs cannot be written; the error says which and why.
        """

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
    ) -> Decoded:
        """Reads a shard that holds exactly these slices.

        Args:
            data: The shard.
            specs: The slices.
            raw_size: What the descriptor declares.
            base: The slices before the deltas; needed where `reads_base`. Others may use what lies in memory
                to say new bits, and what they do to the digest, at once.

        Raises:
            BadShard: Anything in it breaks the rules of the codec.
            LimitExceeded: It declares more than the limits allow; nothing was allocated for it.
        """


class AnchorCodec(Protocol):
    """Turns whole slices into a shard and back."""

    @property
    def id(self) -> str:
        """The codec's name in descriptors."""

    @property
    def kind(self) -> Literal["anchor"]:
        """Which edges it is for."""

    def encode(self, denses: Sequence[Dense], *, nonce: bytes) -> Encoded:
        """Writes a shard of whole slices; arguments and errors as for `DeltaCodec.encode`."""

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """Reads a shard that holds exactly these slices; every change is `Whole`. Errors as for deltas."""
