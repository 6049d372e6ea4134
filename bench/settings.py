"""How much to measure: the full run, and the quick one that only shows that everything works."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run measures.

    Attributes:
        quick: Whether this is the short form; its figures are marked as such.
        seed: Of every generator.
        gigabytes: Model size of speed and memory, in 10^9 bytes of bf16.
        repeats: Timed repetitions of what is ours and of the limits.
        peer_repeats: Timed repetitions of peers, which are slower.
        trials: Trials of each fault.
        size_weights: Weights of the synthetic model of the size part.
        densities: Shares of changed weights of the size part.
        speed_densities: Shares of changed weights at which we are timed.
        peer_density: The one at which peers are timed too.
        growth: Weights of the models of the growth part.
        merge_steps: Numbers of successive deltas to merge.
        real_pairs: Real pairs at most.
    """

    quick: bool = False
    seed: int = 20261130
    gigabytes: float = 1.0
    repeats: int = 7
    peer_repeats: int = 3
    trials: int = 100_000_000
    size_weights: int = 64_000_000
    densities: tuple[float, ...] = (0.001, 0.003, 0.01, 0.02, 0.03, 0.1)
    speed_densities: tuple[float, ...] = (0.003, 0.01, 0.016, 0.02, 0.03)
    peer_density: float = 0.01
    growth: tuple[int, ...] = (100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_000_000_000)
    merge_steps: tuple[int, ...] = (2, 8, 32)
    real_pairs: int = 6

    @classmethod
    def short(cls) -> Self:
        """Settings of `--quick`."""
        return replace(
            cls(),
            quick=True,
            gigabytes=0.06,
            repeats=3,
            peer_repeats=1,
            trials=200_000,
            size_weights=4_000_000,
            speed_densities=(0.01,),
            growth=(4_000_000, 8_000_000, 16_000_000),
            merge_steps=(2, 8),
            real_pairs=2,
        )

    @property
    def weights(self) -> int:
        """Weights of the model of speed and memory."""
        return int(self.gigabytes * 1e9 / 2)

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From another process."""
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists})
