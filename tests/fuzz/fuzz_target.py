"""What a target is: where to begin, what must hold of any input, how to damage one without ruining it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fuzz_noise import Noise

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Target:
    """One boundary of the library.

    Attributes:
        seeds: Valid inputs, the same at each call.
        check: Raises whatever is not an error that the docstrings promise.
        mutate: An input damaged by someone who knows the format: at its place, and with sums that fit again.
    """

    seeds: Callable[[], Iterable[bytes]]
    check: Callable[[bytes], None]
    mutate: Callable[[bytes, random.Random, Noise], bytes]


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a target: hexadecimal, one a line; `#` begins a remark."""
    file = HERE / "corpus" / f"{name}.hex"
    lines = file.read_text().splitlines() if file.exists() else []
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def bytes_only(data: bytes, _rng: random.Random, noise: Noise) -> bytes:
    """For inputs that have no structure to be kept."""
    return noise(data, len(data) + 16)
