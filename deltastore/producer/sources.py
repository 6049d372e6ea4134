"""What a trainer hands over as named bits (spec, Writing): modules, state dicts, iterators, numpy arrays.

Names lose their wrappers, dtypes become the serving ones, ties are found, and what does not fit the schema is
refused with a list.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deltastore.errors import NonFinite, SchemaMismatch, Unsupported, UsageError
from deltastore.producer.private import PrivateState
from deltastore.protocol import limits
from deltastore.protocol.schema import METADATA, Schema, TensorSpec
from deltastore.tensors.bits import Bits, require
from deltastore.tensors.convert import Compare, is_module, memory_of, pairs, private, stable, to_bits
from deltastore.tensors.names import DDP, clean, unwrap

if TYPE_CHECKING:
    from deltastore.tensors.convert import Weights

OnNonFinite = Literal["raise", "allow"]


@dataclass(frozen=True, slots=True)
class Intake:
    """How weights are taken in.

    Attributes:
        dtypes: Serving dtypes by pattern of names, first match wins; others stay what they are.
        export: Maps a name of the trainer's to the checkpoint's, or to None to leave it out.
        on_nonfinite: What NaN and infinity come to.
        compare: Where torch tensors are compared.
    """

    dtypes: Mapping[str, str]
    export: Callable[[str], str | None] | None = None
    on_nonfinite: OnNonFinite = "raise"
    compare: Compare = "auto"

    def __post_init__(self) -> None:
        if self.on_nonfinite not in {"raise", "allow"}:
            raise UsageError(f"on_nonfinite={self.on_nonfinite!r}", hint="It is 'raise' or 'allow'")
        if self.compare not in {"auto", "host", "device"}:
            raise UsageError(f"compare={self.compare!r}", hint="It is 'auto', 'host' or 'device'")

    def collect(self, weights: Weights) -> PrivateState:
        """A private copy of all weights and the schema that they make.

        Raises:
            NonFinite: A tensor holds NaN or infinity.
            SchemaMismatch: Two tensors have one name, or one that cannot be stored, or there are none.
            Unsupported: A dtype that safetensors does not have, or that a tensor cannot be cast to.
        """
        specs: dict[str, TensorSpec] = {}
        held: dict[str, Bits] = {}
        owners: dict[object, str] = {}
        keep = stable(weights)
        named = [(name, tensor if keep else private(tensor)) for name, tensor in pairs(weights)]
        for name, (_, tensor) in zip(self._names([name for name, _ in named]), named, strict=True):
            if name is None:
                continue
            if name in specs:
                raise SchemaMismatch(
                    f"two tensors are called {name!r} once wrappers are taken off", tensor=name
                )
            owner = owners.setdefault(memory_of(tensor) or name, name)
            cast = self._dtype(owner)
            bits = to_bits(name, tensor, cast=cast, compare=self.compare)
            if cast not in {None, bits.dtype}:
                raise Unsupported(
                    f"tensor {name!r} is no torch tensor: {bits.dtype} is not cast", tensor=name
                )
            specs[name] = TensorSpec(name, bits.dtype, bits.shape, None if owner == name else owner)
            if owner == name:
                self.check_finite(name, bits)
                held[name] = bits.copy()
        if not specs:
            raise SchemaMismatch(
                "there are no tensors to publish", hint="Is it an iterator that was used before?"
            )
        return PrivateState(Schema.of(specs.values()), held)

    def check_names(self, weights: Weights) -> None:
        """Refuses names that cannot be stored, where they can be seen without draining an iterator.

        Raises:
            SchemaMismatch: A tensor has such a name.
        """
        if isinstance(weights, dict):
            self._names(list(weights))
        elif stable(weights) and not is_module(weights):
            self._names([name for name, _ in pairs(weights)])

    def _names(self, raw: list[str]) -> list[str | None]:
        """The names that a whole model is stored under."""
        for name in raw:
            if not isinstance(name, str):
                raise _unstorable(name)
        names = [self.export(name) if self.export else name for name in clean(raw)]
        for stored in names:
            if stored is not None and not _storable(stored):
                raise _unstorable(stored)
        return names

    def whole(self, weights: Weights, schema: Schema) -> PrivateState:
        """A private copy of all weights, as `schema` has them; errors as `collect` and `conform`."""

        def checked() -> Iterator[tuple[TensorSpec, Bits]]:
            for spec, bits in self.conform(weights, schema):
                self.check_finite(spec.name, bits)
                yield spec, bits

        return PrivateState.copied(schema, checked())

    def conform(
        self, weights: Weights, schema: Schema, *, partial: bool = False
    ) -> Iterator[tuple[TensorSpec, Bits]]:
        """The tensors that own their storage, checked and cast to a schema, in the order they come.

        Tied ones are compared with their owner's bits where they are other memory.

        Raises:
            SchemaMismatch: Missing, extra or doubled names, or other shapes, with a list.
        """
        keep = stable(weights)
        tied = {t.alias_of for t in schema.tensors if t.alias_of is not None}
        seen: set[str] = set()
        owners: dict[str, Bits] = {}
        ties: list[tuple[TensorSpec, Bits]] = []
        extra: dict[str, object] = {}
        memories: set[object] = set()
        for raw, tensor in pairs(weights):
            name = self._known_name(raw, schema)
            if name is None:
                continue
            if name not in schema:
                extra[name] = memory_of(tensor) if keep else None
                continue
            if name in seen:
                raise SchemaMismatch(f"tensor {name!r} was handed over twice", tensor=name)
            seen.add(name)
            memories.add(memory_of(tensor))
            spec = schema[name]
            bits = to_bits(name, tensor, cast=spec.dtype, compare=self.compare)
            require(name, bits, spec.dtype, spec.shape)
            if not keep and (name in tied or spec.alias_of is not None):
                bits = bits.copy()
            if spec.alias_of is not None:
                ties.append((spec, bits))
                continue
            if name in tied:
                owners[name] = bits
            yield spec, bits
        for owner, bits in _settle(ties, owners):
            seen.add(owner)
            yield schema[owner], bits
        unknown = [name for name, memory in extra.items() if memory is None or memory not in memories]
        missing = [] if partial else [t.name for t in schema.owners if t.name not in seen]
        if unknown or missing:
            raise _mismatch(missing, unknown)

    def check_finite(self, name: str, bits: Bits) -> None:
        """Refuses NaN and infinity, where they are refused.

        Raises:
            NonFinite: There is one.
        """
        self.check_count(name, bits.nonfinite())

    def check_count(self, name: str, nonfinite: int) -> None:
        """The same for values that were counted already."""
        if self.on_nonfinite == "raise" and nonfinite:
            raise NonFinite(
                f"tensor {name!r} holds NaN or infinity",
                hint="Nothing was published; look at the training step, or pass on_nonfinite='allow'",
                tensor=name,
            )

    def _dtype(self, name: str) -> str | None:
        return next((d for p, d in self.dtypes.items() if fnmatch.fnmatchcase(name, p)), None)

    def _known_name(self, raw: str, schema: Schema) -> str | None:
        name = unwrap(raw)
        exported = self.export(name) if self.export else name
        if exported not in schema and name.startswith(DDP):
            inner = name.removeprefix(DDP)
            return self.export(inner) if self.export else inner
        return exported


def no_part() -> UsageError:
    """What a part of nothing comes to."""
    hint = "Publish all tensors once; parts can follow"
    return UsageError("partial=True, but there are no weights yet to be a part of", hint=hint)


def _storable(name: object) -> bool:
    try:
        return isinstance(name, str) and name != METADATA and 0 < len(name.encode()) <= limits.NAME_BYTES
    except UnicodeEncodeError:
        return False


def _unstorable(name: object) -> SchemaMismatch:
    return SchemaMismatch(
        f"{ascii(name)[:80]} cannot be the name of a tensor",
        hint=f"Names are text of 1 to {limits.NAME_BYTES} bytes, and not {METADATA}; export= maps them",
        tensor=ascii(name)[:80],
    )


def _settle(ties: list[tuple[TensorSpec, Bits]], owners: dict[str, Bits]) -> Iterator[tuple[str, Bits]]:
    """Owners that came only under a tied name; tied tensors must have their owner's bits."""
    for spec, bits in ties:
        name = spec.alias_of or spec.name
        owner = owners.get(name)
        if owner is None:
            owners[name] = bits
            yield name, bits
        elif owner.memory() != bits.memory() and not owner.same(bits):
            raise SchemaMismatch(
                f"tensor {spec.name!r} is tied to {name!r} and has other bits now",
                hint="Tie them again, or publish with new_schema=True",
                tensor=spec.name,
            )


def _mismatch(missing: list[str], extra: list[str]) -> SchemaMismatch:
    parts = [f"{what}: {_some(names)}" for what, names in (("missing", missing), ("extra", extra)) if names]
    return SchemaMismatch(
        f"the weights are not those of the schema ({'; '.join(parts)})",
        hint="Map names with export=, pass partial=True for a part, or new_schema=True for another model",
        missing=len(missing),
        extra=len(extra),
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
