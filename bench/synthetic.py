"""Synthetic pairs: normal weights in the shapes of a transformer, changed as training with Adam does.

What is imitated was measured on real runs: the chance of a change halves with each exponent step up, some
tensors never change, output projections change most, 88 % of the changes are one step of the bit pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.model import Bits, Model, Pair, Shapes

SIGMA: Final = 0.02
CAP: Final = 0.97
"""The chance of a change at which the halving begins."""
ACTIVITY: Final = {"norm": 0.0, "embed": 0.3, "q_proj": 0.7, "k_proj": 0.7, "o_proj": 2.0, "down_proj": 1.5}
"""How much more often than others the weights of a tensor change, by a part of its name."""
_VOCABULARY: Final = 32
"""Rows of the embedding per column."""
_CHUNK: Final = 1 << 22

Rates = NDArray[np.float32]


def transformer_shapes(weights: int) -> Shapes:
    """Shapes of a decoder with about so many weights."""
    hidden = next((h for h, least in ((2048, 8e8), (1024, 1e8), (512, 1e7)) if weights >= least), 256)
    inner = 3 * hidden
    layer = {
        "input_norm.weight": (hidden,),
        "attn.q_proj.weight": (hidden, hidden),
        "attn.k_proj.weight": (hidden // 4, hidden),
        "attn.v_proj.weight": (hidden // 4, hidden),
        "attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    per_layer = sum(int(np.prod(shape)) for shape in layer.values())
    layers = max(1, round((weights - _VOCABULARY * hidden * hidden) / per_layer))
    rows = max(64, round((weights - layers * per_layer) / hidden))
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (rows, hidden), "norm.weight": (hidden,)}
    for i in range(layers):
        shapes |= {f"layers.{i:03d}.{name}": shape for name, shape in layer.items()}
    return shapes


def base(weights: int, *, seed: int) -> Model:
    """A model of normal weights; norms are ones."""
    model = Model.empty(transformer_shapes(weights))

    def fill(number: int, name: str) -> None:
        bits = model.bits[name]
        if "norm" in name:
            bits[:] = 0x3F80
            return
        rng = np.random.default_rng((seed, number))
        for at in range(0, bits.size, _CHUNK):
            part = bits[at : at + _CHUNK]
            normal = rng.standard_normal(part.size, dtype=np.float32) * np.float32(SIGMA)
            part[:] = rounded(normal)

    _each(fill, model.bits)
    return model


def step(old: Model, density: float, *, seed: int) -> Model:
    """The model after a step that changes about this share of the weights."""
    new = old.copy()
    rates = _rates(old, density)

    def change(number: int, name: str) -> None:
        if not rates[name].any():
            return
        rng = np.random.default_rng((seed, number, round(1e6 * density)))
        bits = new.bits[name]
        for at in range(0, bits.size, _CHUNK):
            _change(bits[at : at + _CHUNK], rates[name], rng)

    _each(change, new.bits)
    return new


def pair(weights: int, density: float, *, seed: int) -> Pair:
    """A base, and a step from it."""
    old = base(weights, seed=seed)
    return Pair(f"synthetic {100 * density:g} %", old, step(old, density, seed=seed + 1), real=False)


def rounded(values: NDArray[np.float32]) -> Bits:
    """float32 as bf16 bit patterns, to nearest even."""
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (nearest >> np.uint32(16)).astype(np.uint16)


def _rates(model: Model, density: float) -> dict[str, Rates]:
    """Per tensor, the chance that a weight with a given exponent changes; on average the density."""
    rng = np.random.default_rng(0)
    sample = rounded(rng.standard_normal(1 << 20, dtype=np.float32) * np.float32(SIGMA))
    shares = np.bincount(exponents(sample), minlength=256) / sample.size
    halving = 2.0 ** -(np.arange(256) - 120.0)
    activity = {name: _activity(name) for name in model.bits}

    def rates(scale: float) -> dict[str, NDArray[np.float64]]:
        return {name: np.minimum(CAP, scale * a * halving) for name, a in activity.items()}

    low, high = 1e-9, 1e3
    for _ in range(80):
        middle = (low * high) ** 0.5
        expected = sum(model.bits[n].size * float((r * shares).sum()) for n, r in rates(middle).items())
        low, high = (middle, high) if expected < density * model.weights else (low, middle)
    return {name: rate.astype(np.float32) for name, rate in rates(low).items()}


def exponents(bits: Bits) -> Bits:
    """Exponent fields."""
    return bits >> np.uint16(7) & np.uint16(255)


def _activity(name: str) -> float:
    return next((value for part, value in ACTIVITY.items() if part in name), 1.0)


def _change(bits: Bits, rates: Rates, rng: np.random.Generator) -> None:
    hit = np.flatnonzero(rng.random(bits.size, dtype=np.float32) < rates[exponents(bits)])
    kind = rng.random(hit.size)
    size = np.ones(hit.size, np.int64)
    small = (kind >= 0.88) & (kind < 0.998)
    size[small] = 1 + rng.geometric(0.6, int(small.sum()))
    large = (kind >= 0.998) & (kind < 0.9995)
    size[large] = rng.integers(128, 2048, int(large.sum()))
    steps = np.where(rng.random(hit.size) < 0.5, size, -size)
    old = bits[hit]
    new = (old.astype(np.int64) + steps).astype(np.uint16)
    new[kind >= 0.9995] = old[kind >= 0.9995] ^ np.uint16(0x8000)
    broken = exponents(new) == 255
    new[broken] = old[broken] ^ np.uint16(1)
    bits[hit] = new


def _each(work: Callable[[int, str], None], names: Iterable[str]) -> None:
    """Every tensor has its own seed, so that threads do not matter."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda item: work(*item), enumerate(names)):
            pass
