"""Tensors that are compared, digested and changed on their own device, in plain torch operations.

Only changes cross the bus. Lanes are integers throughout, whose sign does not matter to bits; int64 wraps as
the digest wants it (spec, State digest). Results are those of `codec.twin.diff` and `protocol.digest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch

from deltastore.codec.interface import DeltaCodec
from deltastore.codec.kernels import Bytes
from deltastore.codec.types import Delta, Diff, Positions, SliceSpec, Sparse, whole_or_none
from deltastore.errors import SchemaMismatch, Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.tensors import torch as adapter
from deltastore.tensors.bits import Bits, D

_GOLDEN: Final = 0x9E3779B97F4A7C15
_M1: Final = 0xBF58476D1CE4E5B9
_M2: Final = 0x94D049BB133111EB
_LANES: Final = 1 << 22
"""Lanes that are compared at once, whole blocks of the codecs; where all differ, notes take 76 bytes each."""
_CHANGES: Final = 1 << 20
"""Changes that are evaluated at once; each takes 135 bytes or so there."""
_WORDS: Final = {"cpu": 1 << 15}
_MANY_WORDS: Final = 1 << 21
"""Words that are digested at once: as many as stay in a CPU's cache; on a device, as keep it busy."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTensor:
    """Bits of a torch tensor of any device.

    Attributes:
        dtype: A dtype of safetensors.
        shape: In elements.
        lanes: Flat and contiguous, of an integer type.
        words: int64, the same memory in words of 8 bytes, the last one zero-padded; None if it is not a copy
            of one's own.
    """

    dtype: str
    shape: tuple[int, ...]
    lanes: torch.Tensor
    words: torch.Tensor | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, *, cast: str | None = None) -> DeviceTensor:
        """A tensor's bits where they lie; arguments and errors as for `adapter.flat`."""
        return cls(*adapter.flat(name, tensor, cast=cast))

    @property
    def any_thread(self) -> bool:
        """See `Bits.any_thread`."""
        return False

    def memory(self) -> tuple[object, ...] | None:
        """See `Bits.memory`."""
        key = adapter.storage_key(self.lanes)
        return None if key is None else (*key, self.dtype, self.shape)

    def read(self, start: int, stop: int) -> Lanes:
        """See `Bits.read`."""
        return adapter.fetch(self.lanes[start:stop], self.dtype)

    def copy(self) -> DeviceTensor:
        """See `Bits.copy`."""
        return self._filled(self.dtype, self.shape, self.lanes)

    def same(self, other: Bits) -> bool:
        """See `Bits.same`."""
        if isinstance(other, DeviceTensor) and other.lanes.device == self.lanes.device:
            return torch.equal(self.lanes, other.lanes)
        size = self.lanes.numel()
        return np.array_equal(self.read(0, size), other.read(0, size))

    def nonfinite(self) -> int:
        """See `Bits.nonfinite`."""
        return count_nonfinite(self.dtype, self.lanes)

    def digest(self, key: int) -> int:
        """See `Bits.digest`."""
        return digest(self.lanes, key)

    def near(self, other: Bits) -> DeviceTensor:
        """See `Bits.near`."""
        if not isinstance(other, DeviceTensor):
            host = np.array(other.read(0, self.lanes.numel()))
            return self._filled(other.dtype, other.shape, adapter.integers(host))
        if other.lanes.device == self.lanes.device:
            return other
        return self._filled(other.dtype, other.shape, other.lanes)

    def move(self, codec: DeltaCodec[D], spec: SliceSpec, new: Bits) -> D:
        """See `Bits.move`."""
        spec.check_end()
        words = _own(self.words)
        if not isinstance(new, DeviceTensor) or not _alike(new.lanes, self.lanes):
            raise SchemaMismatch(
                f"tensor {spec.label!r} lies elsewhere, or has other lanes", tensor=spec.name
            )
        part = np.s_[spec.start : spec.stop]
        parts = differences(spec, words[spec.first_word :], self.lanes[part], new.lanes[part])
        copy = partial(adapter.fetch, self.lanes[part], self.dtype, copy=True)
        return codec.of(spec, parts, lambda changed: whole_or_none(copy, changed, spec.lanes))

    def undo(self, delta: Delta) -> None:
        """See `Bits.undo`."""
        back = delta.reverse()
        if not back.positions.size:
            return
        lanes = self.lanes[delta.spec.start : delta.spec.stop]
        where, values = send(back.positions, lanes.device), send(back.values, lanes.device)
        lanes.index_copy_(0, where, lanes[where] + values if back.relative else values)
        wait(lanes.device)

    def _filled(self, dtype: str, shape: tuple[int, ...], lanes: torch.Tensor) -> DeviceTensor:
        """A copy of lanes on this tensor's device, which can be changed in and out of inference mode."""
        width, device = dtypes.lane_bytes(dtype), self.lanes.device
        with torch.inference_mode(False):  # noqa: FBT003 - that is how torch has it
            try:
                words = torch.zeros(-(-lanes.numel() * width // 8), dtype=torch.int64, device=device)
            except RuntimeError as error:
                raise Unsupported(
                    f"there is no room on {device} for a copy of {lanes.numel() * width} bytes of weights",
                    hint="compare='host' keeps what is compared with in host memory",
                ) from error
            own = words.view(adapter.integer(width))[: lanes.numel()]
            own.copy_(lanes)
        return DeviceTensor(dtype, shape, own, words)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)


def _own(words: torch.Tensor | None) -> torch.Tensor:
    if words is None:
        raise AssertionError("only copies of one's own are moved")
    return words


# --- Comparing ---------------------------------------------------------------------------------------


def differences(
    spec: SliceSpec, words: torch.Tensor, base: torch.Tensor, new: torch.Tensor
) -> Iterator[Diff]:
    """What differs, part by part; the base has moved to the new bits where a part was given.

    Args:
        spec: The slice that base and new lanes are.
        words: int64, the memory of the base from the first word of the slice on.
        base: Lanes before.
        new: Lanes after, on the same device.
    """
    key = tensor_key(spec.name)
    for at in range(0, spec.lanes, _LANES):
        stop = min(at + _LANES, spec.lanes)
        part = replace(spec, start=spec.start + at, stop=spec.start + stop)
        yield _moved(part, key, words[at * spec.lane_bytes // 8 :], base[at:stop], new[at:stop])


def _moved(spec: SliceSpec, key: int, words: torch.Tensor, base: torch.Tensor, new: torch.Tensor) -> Diff:
    where = torch.nonzero(base != new).view(-1)
    if not where.numel():
        return Diff.none(spec)
    old, now = base[where], new[where]
    word = where >> (8 // spec.lane_bytes).bit_length() - 1
    before = words[word]
    base.index_copy_(0, where, now)
    gain = mixes(words[word], word, key, spec.first_word) - mixes(before, word, key, spec.first_word)
    gain[1:] *= word[1:] != word[:-1]  # each word once
    # Fetched behind the write: once it is here, the base is what it says to every stream.
    near = _fetched(where.to(torch.int32), old, now, gain.sum().view(1))
    positions, was, now_ = near[0].view("<i4"), near[1].view(spec.uint), near[2].view(spec.uint)
    delta = int(near[3].view("<u8")[0])
    real = was != now_
    if not real.all():  # whoever writes to the new weights meanwhile has put some back
        positions, was, now_ = positions[real], was[real], now_[real]
    return Diff(spec, positions.astype(np.int64), was, now_, delta)


def _fetched(*parts: torch.Tensor) -> list[Bytes]:
    """Flat tensors as bytes in host memory, by one copy; wider ones lie first, so that all are aligned."""
    order = sorted(range(len(parts)), key=lambda i: -parts[i].element_size())
    packed = adapter.fetch(torch.cat([parts[i].view(torch.uint8) for i in order]), "U8")
    ends = np.cumsum([parts[i].numel() * parts[i].element_size() for i in order])
    pieces = np.split(packed, ends[:-1])
    return [pieces[order.index(i)] for i in range(len(parts))]


# --- Changing ----------------------------------------------------------------------------------------

Take = Callable[[torch.Tensor], torch.Tensor]
"""Reads lanes of a slice on the device, at positions counted from its start."""


def evaluate(spec: SliceSpec, take: Take, change: Sparse, where: torch.device) -> tuple[Lanes, int]:
    """See `codec.twin.patch`; positions and values go to the device, new bits come back, and a number.

    Args:
        spec: The slice.
        take: Reads it.
        change: What changes.
        where: The device.
    """
    spec.check_end()
    per_word, found, delta = 8 // spec.lane_bytes, [np.empty(0, spec.uint)], 0
    start, count = 0, change.positions.size
    while start < count:
        stop = min(start + _CHANGES, count)
        while stop < count and change.positions[stop] // per_word == change.positions[stop - 1] // per_word:
            stop += 1  # a word is evaluated once
        at, values = send(change.positions[start:stop], where), send(change.values[start:stop], where)
        new, gain = _evaluated(spec, take, at, values, relative=change.relative)
        bits, added = _fetched(new, gain.view(1))
        found.append(bits.view(spec.uint))
        delta += int(added.view("<u8")[0])
        start = stop
    return np.concatenate(found), delta & MASK


def _evaluated(
    spec: SliceSpec, take: Take, at: torch.Tensor, values: torch.Tensor, *, relative: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """New bits, and what they add to the digest: the words that they lie in are read whole, each once."""
    per_word = 8 // spec.lane_bytes
    word = at >> per_word.bit_length() - 1
    first = torch.ones_like(word, dtype=torch.bool)
    first[1:] = word[1:] != word[:-1]
    words = word[first]
    wanted = (words.view(-1, 1) * per_word + torch.arange(per_word, device=at.device)).view(-1)
    lanes = take(wanted.clamp(max=spec.lanes - 1)) * (wanted < spec.lanes)  # zeros behind the tensor's end
    slots = (torch.cumsum(first, 0) - 1 - word) * per_word + at
    new = lanes[slots] + values if relative else values
    after = lanes.index_copy(0, slots, new)
    key = tensor_key(spec.name)
    gain = mixes(after.view(torch.int64), words, key, spec.first_word)
    gain -= mixes(lanes.view(torch.int64), words, key, spec.first_word)
    return new, gain.sum()


def send(lanes: Lanes | Positions, where: torch.device) -> torch.Tensor:
    """Lanes, or positions as int64, as integers on a device; small positions cross in half the bytes."""
    if lanes.dtype.kind == "u":
        return adapter.integers(np.array(lanes)).to(where)
    if lanes.dtype == np.int32 or (lanes.size and lanes[-1] < 1 << 31):
        return torch.from_numpy(lanes.astype(np.int32)).to(where).to(torch.int64)
    return torch.from_numpy(np.array(lanes)).to(where)


def wait(where: torch.device) -> None:
    """Waits for what was queued on the current stream of a device: what comes next may be on another one."""
    torch.zeros(1, dtype=torch.int64, device=where).item()


# --- Digests -----------------------------------------------------------------------------------------


def digest(lanes: torch.Tensor, key: int, first_word: int = 0) -> int:
    """See `protocol.digest.digest`; one number leaves the device."""
    return int(total(lanes, key, first_word).item()) & MASK


def total(lanes: torch.Tensor, key: int, first_word: int = 0) -> torch.Tensor:
    """The same, as an int64 that stays on the device."""
    device, per_word = lanes.device, 8 // lanes.element_size()
    most = min(_WORDS.get(device.type, _MANY_WORDS), -(-lanes.numel() // per_word))
    ramp = torch.arange(1, most + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)
    summed = torch.zeros(1, dtype=torch.int64, device=device)
    for number, block in enumerate(torch.split(lanes, max(1, most * per_word))):
        mixed = words_of(block)
        mixed = mixed + ramp[: mixed.numel()]
        mixed += _signed(key + (first_word + number * most) * _GOLDEN)
        summed += _mix(mixed).sum()
    return summed


def words_of(lanes: torch.Tensor) -> torch.Tensor:
    """Lanes in a row, from a word boundary of their tensor on, as int64; a view where they can be one."""
    size, width = lanes.numel() * lanes.element_size(), lanes.element_size()
    aligned = lanes.data_ptr() % 8 == 0 and lanes.storage_offset() * width % 8 == 0
    if size and size % 8 == 0 and aligned and lanes.stride(0) == 1:
        return lanes.view(torch.int64)
    padded = torch.zeros(-(-size // 8), dtype=torch.int64, device=lanes.device)
    padded.view(lanes.dtype)[: lanes.numel()].copy_(lanes)
    return padded


def count_nonfinite(dtype: str, lanes: torch.Tensor) -> int:
    """See `codec.types.count_nonfinite`; one number leaves the device."""
    if dtype == "C64" and lanes.numel():
        return count_nonfinite("F32", lanes.view(torch.int32))
    if dtype not in dtypes.NONFINITE:
        return 0
    mask, value = dtypes.NONFINITE[dtype]
    total = torch.zeros(1, dtype=torch.int64, device=lanes.device)
    for block in torch.split(lanes, _LANES):
        total += torch.count_nonzero((block & mask) == value)
    return int(total.item())


def mixes(words: torch.Tensor, indices: torch.Tensor, key: int, first_word: int) -> torch.Tensor:
    """h(t, j) of words, j being their index behind `first_word` (DS-DIGEST-2)."""
    salted = indices * _signed(_GOLDEN)
    salted += _signed(key + (first_word + 1) * _GOLDEN)
    salted += words
    return _mix(salted)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser, in place; `>>` repeats the sign of an int64, so it is masked."""
    for shift, factor in ((30, _M1), (27, _M2), (31, None)):
        shifted = x >> shift
        shifted &= (1 << 64 - shift) - 1
        x ^= shifted
        if factor is not None:
            x *= _signed(factor)
    return x


def _signed(number: int) -> int:
    """A number modulo 2^64 as an int64."""
    return (number + (1 << 63) & MASK) - (1 << 63)
