"""The hot loops of the codecs in numpy, the twin of the compiled ones (spec, Codecs; State digest).

Pure functions on arrays, of bit patterns throughout, modulo 2^width, never floats. No count from a file is
trusted: whatever does not add up is `BadShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltastore.codec.types import Diff, Positions, SliceSpec, Sparse, uint, whole_copy
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK, Lanes, Words, sum_mixes, tensor_key

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Read = Callable[[Positions], Lanes]
"""Reads lanes of a slice at positions counted from its start."""

BLOCK: Final = 1 << 18
"""Lanes of a block: the cursor of the gap code starts again at each."""
_CHUNK: Final = 1 << 16
"""Words per step of the comparison: 256 Ki lanes of 2 bytes."""


# --- Diff and digest ---------------------------------------------------------------------------------


def diff(spec: SliceSpec, base: Lanes, new: Lanes) -> Diff:
    """Compares, and moves `base` to `new` in place.

    `Diff.undo` takes the move back.

    Args:
        spec: The slice that both arrays are.
        base: Lanes before; writable.
        new: Lanes after; only read.

    Raises:
        SchemaMismatch: An array is not of the slice.
        Unsupported: The slice ends inside a word that is not the tensor's last.
    """
    spec.check(base)
    spec.check(new)
    spec.check_end()
    hits, old_words, new_words = _differing_words(base, new)
    delta = _delta(spec, hits, old_words, new_words)
    per_word = 8 // spec.lane_bytes
    before, after = old_words.view(spec.uint), new_words.view(spec.uint)
    flat = np.flatnonzero(before != after)
    row, column = np.divmod(flat, per_word)
    positions = hits[row] * per_word + column
    old, now = before[flat], after[flat]
    base[positions] = now
    return Diff(spec, positions, old, now, delta, whole_copy(base, positions.size))


def _differing_words(base: Lanes, new: Lanes) -> tuple[Positions, Words, Words]:
    """Indices within the slice of the words that differ, and the words; the last one zero-padded."""
    full = base.nbytes // 8
    one, two = _words(base, full), _words(new, full)
    hits: list[Positions] = []
    old_words: list[Words] = []
    new_words: list[Words] = []
    for start in range(0, full, _CHUNK):
        left, right = one[start : start + _CHUNK], two[start : start + _CHUNK]
        hit = np.flatnonzero(left != right)
        if hit.size:
            old_words.append(left[hit])
            new_words.append(right[hit])
            hits.append(hit + start)
    if base.nbytes % 8:
        last, changed = _last_word(base, full), _last_word(new, full)
        if last[0] != changed[0]:
            hits.append(np.array([full], np.int64))
            old_words.append(last)
            new_words.append(changed)
    if not hits:
        none = np.empty(0, np.uint64)
        return np.empty(0, np.int64), none, none
    return np.concatenate(hits), np.concatenate(old_words), np.concatenate(new_words)


def _words(lanes: Lanes, full: int) -> Words:
    return lanes.view(np.uint8)[: full * 8].view("<u8")


def _last_word(lanes: Lanes, full: int) -> Words:
    tail = lanes.view(np.uint8)[full * 8 :]
    padded = np.zeros(8, np.uint8)
    padded[: tail.size] = tail
    return padded.view("<u8")


def _delta(spec: SliceSpec, hits: Positions, old: Words, new: Words) -> int:
    key = tensor_key(spec.name)
    indices = hits + spec.first_word
    return (sum_mixes(new, indices, key) - sum_mixes(old, indices, key)) & MASK


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The words that some lanes lie in, read once.

    Attributes:
        spec: The slice.
        words: int64, index of each word within the slice.
        lanes: The lanes of those words, one word after the other, zero-padded at the end of the tensor.
        slots: int64, where in `lanes` each position is.
    """

    spec: SliceSpec
    words: Positions
    lanes: Lanes
    slots: Positions

    @property
    def old(self) -> Lanes:
        """The bits at the positions."""
        return self.lanes[self.slots]

    def delta(self, new: Lanes) -> int:
        """Change of the digest, modulo 2^64, when `new` takes the place of `old`."""
        after = self.lanes.copy()
        after[self.slots] = new
        return _delta(self.spec, self.words, self.lanes.view("<u8"), after.view("<u8"))


def gather_words(spec: SliceSpec, read: Read, positions: Positions) -> Gathered:
    """Reads the whole words that the lanes at `positions` lie in, each once.

    Raises:
        Unsupported: The slice ends inside a word that is not the tensor's last.
    """
    spec.check_end()
    per_word = 8 // spec.lane_bytes
    if per_word == 1:
        return Gathered(spec, positions, read(positions), np.arange(positions.size))
    word, column = np.divmod(positions, per_word)
    first = np.empty(word.size, np.bool_)
    first[:1] = True
    np.not_equal(word[1:], word[:-1], out=first[1:])
    words = word[first]
    slots = (np.cumsum(first) - 1) * per_word + column
    wanted = (words[:, None] * per_word + np.arange(per_word)).ravel()
    inside = int(np.searchsorted(wanted, spec.lanes))
    lanes = np.zeros(wanted.size, spec.uint)
    lanes[:inside] = read(wanted[:inside])
    return Gathered(spec, words, lanes, slots)


def new_bits(change: Sparse, old: Lanes) -> Lanes:
    """The bits after a change, given those before it at the same positions."""
    return old + change.values if change.relative else change.values


def patch(spec: SliceSpec, lanes: Lanes, change: Sparse) -> tuple[Lanes, int]:
    """New bits of a change, and what they do to the digest; nothing is written.

    Args:
        spec: The slice.
        lanes: All lanes of the slice, contiguous.
        change: What changes.
    """
    gathered = gather_words(spec, lambda positions: lanes[positions], change.positions)
    values = new_bits(change, gathered.old)
    return values, gathered.delta(values)


def scatter(lanes: Lanes, positions: Positions, values: Lanes) -> None:
    """Sets lanes at positions."""
    lanes[positions] = values


def gather(lanes: Lanes, positions: Positions) -> Lanes:
    """Lanes at positions, as a new array."""
    taken: Lanes = lanes[positions]
    return taken


# --- Gaps --------------------------------------------------------------------------------------------


def blocks(lanes: int) -> int:
    """Number of blocks of a slice."""
    return -(-lanes // BLOCK)


def block_ends(lanes: int) -> Counts:
    """int64, one past the last lane of each block of a slice."""
    ends = np.arange(1, blocks(lanes) + 1, dtype=np.int64) * BLOCK
    return np.minimum(ends, lanes)


def per_block(indices: Positions, ends: Counts) -> Counts:
    """How many of some ascending indices lie in each of the ranges that end at `ends`."""
    counts = np.searchsorted(indices, ends)
    counts[1:] -= counts[:-1].copy()
    return counts


def gap_encode(positions: Positions, changes: Counts, width: int) -> tuple[Lanes, Counts]:
    """Symbols of the gap code, and their number per block.

    Args:
        positions: The changes of one slice.
        changes: int64, how many lie in each block.
        width: Bytes of a symbol, 1 or 2; the largest symbol means "go on, no change here".
    """
    gaps = positions.copy()
    gaps[1:] -= positions[:-1] + 1
    ends = np.cumsum(changes)
    filled = np.flatnonzero(changes)
    firsts = (ends - changes)[filled]
    gaps[firsts] = positions[firsts] - filled * BLOCK
    largest = (1 << 8 * width) - 1
    runs, rest = np.divmod(gaps, largest)
    last = np.cumsum(runs + 1)
    symbols = np.full(int(last[-1]) if last.size else 0, largest, uint(width))
    symbols[last - 1] = rest
    before = np.concatenate((np.zeros(1, np.int64), last))
    return symbols, np.diff(before[ends], prepend=0)


def gap_decode(symbols: Lanes, counts: Counts, changes: Counts, lanes: int) -> Positions:
    """Positions of the changes of one slice.

    Args:
        symbols: uint8 or uint16.
        counts: int64, symbols of each block; they add up to the symbols.
        changes: int64, declared changes of each block.
        lanes: Lanes of the slice.

    Raises:
        BadShard: Other counts than declared, a position outside its block, or a block that does not end
            with a change.
    """
    is_change = symbols != np.iinfo(symbols.dtype).max
    where = np.flatnonzero(is_change)
    ends = np.cumsum(counts)
    if not np.array_equal(per_block(where, ends), changes):
        raise BadShard("a block does not hold as many changes as its table says")
    filled = np.flatnonzero(changes)
    if not is_change[ends[counts > 0] - 1].all():
        raise BadShard("the gaps of a block go on after its last change")
    total = np.cumsum(symbols, dtype=np.int64)
    before = np.concatenate((np.zeros(1, np.int64), total))[ends - counts]
    rank = np.cumsum(changes)
    shift = np.arange(changes.size, dtype=np.int64) * BLOCK - before - (rank - changes)
    positions = total[where]
    positions += np.arange(where.size)
    positions += np.repeat(shift, changes)
    if (positions[rank[filled] - 1] >= block_ends(lanes)[filled]).any():
        raise BadShard("a change lies outside its block")
    return positions


# --- Values ------------------------------------------------------------------------------------------


def _code_slots(counts: Counts) -> tuple[Positions, int]:
    """Where the codes of each block go, blocks beginning at multiples of four, and the padded length."""
    padded = (counts + 3) // 4 * 4
    shift = (np.cumsum(padded) - padded) - (np.cumsum(counts) - counts)
    slots = np.arange(int(counts.sum())) + np.repeat(shift, counts)
    return slots, int(padded.sum())


def pack2(codes: Bytes, counts: Counts) -> Bytes:
    """Packs 2-bit codes, the least significant first, with a fresh byte per block of `counts` codes."""
    slots, length = _code_slots(counts)
    padded = np.zeros(length, np.uint8)
    padded[slots] = codes
    packed = padded[0::4].copy()
    for k in range(1, 4):
        packed |= padded[k::4] << np.uint8(2 * k)
    return packed


def unpack2(packed: Bytes, counts: Counts) -> Bytes:
    """Undoes `pack2`; `packed` has exactly the bytes that `counts` need.

    Raises:
        BadShard: Padding bits that are not zero.
    """
    slots, length = _code_slots(counts)
    padded = np.empty(length, np.uint8)
    for k in range(4):
        padded[k::4] = packed >> np.uint8(2 * k) & np.uint8(3)
    codes = padded[slots]
    padded[slots] = 0
    if padded.any():
        raise BadShard("padding bits of the 2-bit codes are set")
    return codes


def zigzag(steps: Lanes) -> Lanes:
    """Signed steps as unsigned numbers: -1 is 1, 1 is 2, -2 is 3 and so on, modulo 2^width."""
    one = steps.dtype.type(1)
    sign = steps >> steps.dtype.type(8 * steps.itemsize - 1)
    numbers: Lanes = steps << one ^ (~sign + one)
    return numbers


def unzigzag(numbers: Lanes) -> Lanes:
    """Undoes `zigzag`."""
    one = numbers.dtype.type(1)
    steps: Lanes = numbers >> one ^ (~(numbers & one) + one)
    return steps


def split_planes(lanes: Lanes, *, rotation: int = 0) -> list[Bytes]:
    """Byte i, little-endian, of every lane rotated to the left by so many bits, for each i."""
    rows = _rotated(lanes, rotation).view(np.uint8).reshape(-1, lanes.itemsize)
    return [np.ascontiguousarray(rows[:, i]) for i in range(lanes.itemsize)]


def merge_planes(planes: Sequence[Bytes], *, rotation: int = 0) -> Lanes:
    """Undoes `split_planes`."""
    rows: NDArray[Any] = np.empty((planes[0].size, len(planes)), np.uint8)
    for i, plane in enumerate(planes):
        rows[:, i] = plane
    lanes: Lanes = rows.reshape(-1).view(uint(len(planes)))
    return _rotated(lanes, 8 * lanes.itemsize - rotation)


def _rotated(lanes: Lanes, left: int) -> Lanes:
    bits = 8 * lanes.itemsize
    if left % bits == 0:
        return lanes
    result: Lanes = lanes << lanes.dtype.type(left)
    result |= lanes >> lanes.dtype.type(bits - left)
    return result
