"""The state digest against the text of the spec, word by word, and what it must not miss."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deltastore.protocol.digest import MASK, Lanes, digest, sum_mixes, tensor_key
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState

SPEC = Path(__file__).parents[2] / "spec" / "deltastore-v1.md"
U64 = 2**64


def reference(name: str, data: bytes, first_word: int = 0) -> int:
    """Section 8 of the spec, as slow as it is written."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    data += bytes(-len(data) % 8)
    total = 0
    for j in range(len(data) // 8):
        word = int.from_bytes(data[8 * j : 8 * j + 8], "little")
        x = (word + key + (first_word + j + 1) * 0x9E3779B97F4A7C15) % U64
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 % U64
        x ^= x >> 27
        x = x * 0x94D049BB133111EB % U64
        total += x ^ (x >> 31)
    return total % U64


def lanes(data: bytes, width: int = 1) -> Lanes:
    return np.frombuffer(data, np.dtype(f"<u{width}"))


@pytest.mark.req("DS-DIGEST-1")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_the_key_is_made_from_the_name(name: str) -> None:
    assert tensor_key(name).to_bytes(8, "little") == hashlib.sha256(name.encode()).digest()[:8]


@pytest.mark.req("DS-DIGEST-1", "DS-DIGEST-2")
def test_the_values_in_the_spec() -> None:
    row = r"^\| `([^`]+)` \| (\d+) \| (?:`([0-9a-f]*)`)? ?\| `([0-9a-f]{16})` \|$"
    rows = re.findall(row, SPEC.read_text(), re.MULTILINE)
    assert len(rows) >= 11
    for name, j, data, expected in rows:
        raw = bytes.fromhex(data)
        assert f"{reference(name, raw, int(j)):016x}" == expected
        assert f"{digest(lanes(raw), tensor_key(name), int(j)):016x}" == expected


@pytest.mark.req("DS-DIGEST-2")
@settings(max_examples=150, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=200),
    st.sampled_from([1, 2, 4, 8]),
    st.one_of(st.integers(0, 9), st.integers(2**32 - 2, 2**50)),
)
def test_the_digest_is_that_of_the_reference(name: str, data: bytes, width: int, first: int) -> None:
    data = data[: len(data) // width * width]
    assert digest(lanes(data, width), tensor_key(name), first) == reference(name, data, first)


@pytest.mark.req("DS-DIGEST-2")
@pytest.mark.parametrize("words", [32767, 32768, 32769, 65537])
def test_scans_of_more_than_one_chunk_agree_with_the_sum_over_words(words: int) -> None:
    data = np.random.default_rng(words).integers(0, U64, words, np.uint64)
    key = tensor_key("w")
    assert digest(data, key, 5) == sum_mixes(data, np.arange(5, 5 + words), key)
    tail = np.append(data.view(np.uint8), np.uint8(9))
    last = sum_mixes(np.array([9], np.uint64), np.array([5 + words]), key)
    assert digest(tail, key, 5) == (digest(data, key, 5) + last) & MASK


@pytest.mark.req("DS-DIGEST-2", "DS-DIGEST-4")
@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_slices_add_up_to_the_whole(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(data) // 8), max_size=4)) | {0})
    ends = [*[8 * c for c in cuts[1:]], len(data)]
    key = tensor_key("t")
    parts = [digest(lanes(data[8 * c : end]), key, c) for c, end in zip(cuts, ends, strict=True)]
    assert sum(parts) & MASK == digest(lanes(data), key)


@pytest.mark.req("DS-DIGEST-2")
@given(st.binary(max_size=40))
def test_the_last_word_is_padded_with_zeros(data: bytes) -> None:
    padded = data + bytes(-len(data) % 8)
    assert digest(lanes(data), 1) == digest(lanes(padded), 1)
    assert digest(lanes(padded + bytes(8)), 1) != digest(lanes(padded), 1)


@pytest.mark.req("DS-DIGEST-3")
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8]), st.data())
def test_what_a_change_adds_is_after_minus_before_over_its_words(
    count: int, width: int, draw: st.DataObject
) -> None:
    rng = np.random.default_rng(draw.draw(st.integers(0, 999)))
    old = rng.integers(0, 256, count * width, np.uint8)
    new = old.copy()
    for at in draw.draw(st.sets(st.integers(0, count - 1), max_size=6)):
        new[at * width] ^= draw.draw(st.integers(1, 255))
    key = tensor_key("x")
    touched = np.flatnonzero(padded_words(old) != padded_words(new))
    before = sum_mixes(padded_words(old)[touched], touched, key)
    after = sum_mixes(padded_words(new)[touched], touched, key)
    assert (digest(old, key) + after - before) & MASK == digest(new, key)


def padded_words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.frombuffer(data.tobytes() + bytes(-data.size % 8), "<u8")


SAMPLE = np.random.default_rng(7).integers(0, 2**16, 64, np.uint16)


def swap(items: NDArray[Any], one: int, other: int) -> None:
    items[[one, other]] = items[[other, one]]


EDITS: dict[str, Callable[[NDArray[np.uint16]], object]] = {
    "two words swapped": lambda a: swap(a.view(np.uint64), 3, 4),
    "distant words swapped": lambda a: swap(a.view(np.uint64), 0, 15),
    "plus and minus one": lambda a: (np.add(a[8:9], 1, out=a[8:9]), np.subtract(a[9:10], 1, out=a[9:10])),
    "plus and minus one in two words": lambda a: (
        np.add(a[8:9], 1, out=a[8:9]),
        np.subtract(a[40:41], 1, out=a[40:41]),
    ),
    "two rows swapped": lambda a: swap(a.reshape(8, 8), 1, 5),
    "rows shifted by one": lambda a: np.copyto(a, np.roll(a, 8)),
    "signs of two weights": lambda a: np.bitwise_xor(a[[10, 30]], 0x8000, out=a[10:31:20]),
    "one bit of two neighbours": lambda a: np.bitwise_xor(a[4:6], 1, out=a[4:6]),
    "lanes of a word reversed": lambda a: np.copyto(a[4:8], a[4:8][::-1].copy()),
    "one bit": lambda a: np.bitwise_xor(a[63:], 1, out=a[63:]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_changes_that_simple_sums_miss_are_seen(edit: str) -> None:
    after = SAMPLE.copy()
    EDITS[edit](after)
    assert not np.array_equal(after, SAMPLE)
    assert digest(after, tensor_key("w")) != digest(SAMPLE, tensor_key("w"))


def test_every_single_bit_is_seen() -> None:
    seen = {digest(SAMPLE, 1)}
    for bit in range(16 * 64):
        flipped = SAMPLE.view(np.uint8).copy()
        flipped[bit // 8] ^= 1 << bit % 8
        seen.add(digest(flipped, 1))
    assert len(seen) == 1 + 16 * 64


def test_equal_neighbours_do_not_cancel() -> None:
    """Equal words at different places are different terms of the sum."""
    ones = np.full(32, 0x3F803F803F803F80, np.uint64)
    values = [digest(ones[: n + 1], 1) - digest(ones[:n], 1) for n in range(31)]
    assert len({value & MASK for value in values}) == 31


def test_the_same_bits_under_another_name_or_place_are_another_digest() -> None:
    data = SAMPLE[:4]
    values = {digest(data, tensor_key(name), j) for name in ("a", "b", "ab") for j in (0, 1, 2**32)}
    assert len(values) == 9


@pytest.mark.req("DS-DIGEST-4")
def test_a_state_is_the_sum_over_owners_and_ties_add_nothing() -> None:
    schema = Schema.of(
        [
            TensorSpec("a", "U8", (11,)),
            TensorSpec("b", "U8", (11,), "a"),
            TensorSpec("c", "F32", (0,)),
            TensorSpec("d", "U16", (3,)),
        ]
    )
    state = HostState.empty(schema)
    state.lanes("a")[:] = range(11)
    state.lanes("d")[:] = (1, 2, 3)
    raw = {"a": bytes(range(11)), "d": b"\1\0\2\0\3\0"}
    assert state.digest() == sum(reference(name, data) for name, data in raw.items()) % U64


@pytest.mark.req("DS-DIGEST-2")
def test_nothing_has_the_digest_zero() -> None:
    assert digest(lanes(b""), tensor_key("w")) == 0
