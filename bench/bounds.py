"""Entropy bounds of a delta and of an anchor: what no coder that knows only so much can go below.

Parameters are free of charge, and every tensor has its own: the bounds flatter nobody who must send them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.model import Bits, Model, Pair
from bench.synthetic import exponents

Counts = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes per changed weight.

    Attributes:
        order0: Positions by each tensor's density, steps by their frequencies.
        exponent: Positions by each tensor's density at each exponent of the old value, steps by their
            frequencies at that exponent.
    """

    order0: float
    exponent: float


def delta_bounds(pair: Pair) -> Bounds:
    """Bounds of one pair, which differ somewhere."""
    changed = 0
    where = where_exponent = 0.0
    all_steps: list[Bits] = []
    all_exponents: list[Bits] = []
    for name, old in pair.old.bits.items():
        new = pair.new.bits[name]
        hit = old != new
        fields = exponents(old)
        steps = new[hit] - old[hit]
        of, among = np.bincount(fields[hit], minlength=256), np.bincount(fields, minlength=256)
        changed += steps.size
        where += float(_choice(np.array([old.size]), np.array([steps.size])).sum())
        where_exponent += float(_choice(among, of).sum())
        all_steps.append(steps)
        all_exponents.append(fields[hit])
    joined, classes = np.concatenate(all_steps), np.concatenate(all_exponents)
    what = _entropy(np.bincount(joined, minlength=1 << 16))
    what_exponent = sum(
        _entropy(np.bincount(joined[classes == one], minlength=1 << 16)) for one in np.unique(classes)
    )
    return Bounds((where + what) / 8 / changed, (where_exponent + what_exponent) / 8 / changed)


def anchor_bound(model: Model) -> float:
    """Share of bf16: raw signs and mantissas, and each tensor's entropy of exponents."""
    bits = sum(_entropy(np.bincount(exponents(part), minlength=256)) for part in model.bits.values())
    return (bits + 8 * model.weights) / (16 * model.weights)


def _entropy(counts: Counts) -> float:
    """Bits for all symbols with these frequencies."""
    seen = counts[counts > 0].astype(np.float64)
    total = seen.sum()
    return float((seen * np.log2(total / seen)).sum()) if seen.size else 0.0


def _choice(among: Counts, of: Counts) -> NDArray[np.float64]:
    """Bits to say which `of` out of `among` they are, elementwise."""
    n, k = among.astype(np.float64), of.astype(np.float64)
    rest = n - k
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(k > 0, k * np.log2(n / k), 0.0) + np.where(rest > 0, rest * np.log2(n / rest), 0.0)
