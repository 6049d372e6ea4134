"""Damage to bytes and to trees of values, from a seed; a coverage-guided engine brings its own for bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Noise = Callable[[bytes, int], bytes]
"""Changes some bytes; the result has at most so many."""

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 255, 256, -1, 1.5, 2**18, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**63, "", "x",
    "0" * 16, "f" * 16, "0" * 64, "\ud800", "../x", "none", "U8", "F4", "ulp", "plain",
    [], [0], [2**52, 2], [[]], {}, {"x": 1},
)  # fmt: skip
"""What takes the place of a value."""


def blind(rng: random.Random) -> Noise:
    """Noise without any feedback: some bits, bytes, pieces and repetitions."""

    def change(data: bytes, most: int) -> bytes:
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at, size = rng.randint(0, len(out)), rng.choice((1, 1, 2, 4, 8, 16))
            match rng.randrange(5):
                case 0:
                    out[at : at + size] = b""
                case 1:
                    out[at:at] = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
                case 2:
                    out[at : at + size] = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
                case 3:
                    out[at:at] = out[: rng.randint(0, len(out))][-size:]
                case _ if at < len(out):
                    out[at] ^= 1 << rng.randrange(8)
        return bytes(out[:most])

    return change


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree of lists and maps: what it is in, and under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _holders(inner)


def _other(value: Any, rng: random.Random, noise: Noise) -> Any:
    if isinstance(value, bytes) and rng.random() < 0.8:
        changed = noise(value, len(value) + 8)
        return changed[: len(value)].ljust(len(value), b"\0") if rng.random() < 0.7 else changed
    if type(value) is int and rng.random() < 0.6:
        return rng.choice((value + 1, value - 1, value * 2, value ^ 1 << rng.randrange(64)))
    if isinstance(value, str) and rng.random() < 0.5:
        return noise(value.encode("utf-8", "replace"), len(value) + 8).decode("utf-8", "replace")
    return copy.deepcopy(rng.choice(HOSTILE))


def edit(tree: Any, rng: random.Random, noise: Noise) -> None:
    """Replaces, removes, repeats or exchanges something in a tree, in place."""
    places = list(_holders(tree))
    if not places:
        return
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case 1:
            holder[rng.choice(("x", "M", "T", "spec", "alias_of"))] = copy.deepcopy(holder[key])
        case 2:
            holder[key] = copy.deepcopy(rng.choice(places)[0])
        case _:
            holder[key] = _other(holder[key], rng, noise)
