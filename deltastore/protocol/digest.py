"""The state digest (spec, State digest): additive, over 64-bit little-endian words, one key per tensor.

All functions take flat, contiguous *lanes*: unsigned integers of 1, 2, 4 or 8 bytes. A slice starts at a
multiple of 8 bytes within its tensor (`first_word` says which); the last word of a tensor is zero-padded.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""A 1-D contiguous array of uint8, uint16, uint32 or uint64: bit patterns, never floats."""
Words = NDArray[np.uint64]

MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
# Arrays without dimensions: of numpy's scalars each operation would make one anew.
_STEP: Final = np.array(_GOLDEN, np.uint64)
_M1: Final = np.array(0xBF58476D1CE4E5B9, np.uint64)
_M2: Final = np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31 = (np.array(bits, np.uint64) for bits in (30, 27, 31))
_CHUNK: Final = 1 << 15
"""Words per step of a scan: the two arrays of most operations fit into a second-level cache of 512 KiB."""


def tensor_key(name: str) -> int:
    """k(t): the first 8 bytes, little-endian, of the SHA-256 of the tensor's name (DS-DIGEST-1)."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def digest(lanes: Lanes, key: int, first_word: int = 0) -> int:
    """Digest of a slice from a word boundary to another, or to the end of its tensor (DS-DIGEST-2).

    Args:
        lanes: The slice.
        key: `tensor_key` of the tensor.
        first_word: Index within the tensor of the word that the slice starts with.
    """
    data = lanes.view(np.uint8)
    whole = data.size // 8
    total = _scan(data[: whole * 8].view("<u8"), key, first_word)
    if data.size % 8:
        last = np.zeros(8, np.uint8)
        last[: data.size % 8] = data[whole * 8 :]
        total += _scan(last.view("<u8"), key, first_word + whole)
    return total & MASK


def sum_mixes(words: Words, indices: NDArray[np.int64], key: int) -> int:
    """Sum of h(t, j) over the given words of one tensor, modulo 2^64 (DS-DIGEST-3).

    Args:
        words: uint64, the values.
        indices: int64, j of each word within the whole tensor.
        key: `tensor_key` of the tensor.
    """
    salted = indices.astype(np.uint64)
    salted += np.uint64(1)
    salted *= _STEP
    salted += np.uint64(key)
    salted += words
    return int(_mix(salted, np.empty_like(salted)).sum(dtype=np.uint64))


def _scan(words: Words, key: int, first: int) -> int:
    total = 0
    salts = np.arange(1, min(_CHUNK, words.size) + 1, dtype=np.uint64)
    salts *= _STEP
    salts += np.uint64((key + first * _GOLDEN) & MASK)
    advance = np.array(_CHUNK * _GOLDEN & MASK, np.uint64)
    mixed, scratch = np.empty_like(salts), np.empty_like(salts)
    for start in range(0, words.size, _CHUNK):
        part = words[start : start + _CHUNK]
        if part.size < salts.size:
            salts, mixed, scratch = (held[: part.size] for held in (salts, mixed, scratch))
        np.add(part, salts, mixed)
        total += int(np.add.reduce(_mix(mixed, scratch)))
        np.add(salts, advance, salts)
    return total


def _mix(x: Words, scratch: Words) -> Words:
    """The finaliser, in place."""
    np.right_shift(x, _S30, scratch)
    np.bitwise_xor(x, scratch, x)
    np.multiply(x, _M1, x)
    np.right_shift(x, _S27, scratch)
    np.bitwise_xor(x, scratch, x)
    np.multiply(x, _M2, x)
    np.right_shift(x, _S31, scratch)
    np.bitwise_xor(x, scratch, x)
    return x
