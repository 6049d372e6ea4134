"""What can be set in the demo, and how settings reach its processes; tuned on two cores."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Shape of the transformer; the defaults are 5.3 million weights."""

    width: int = 384
    layers: int = 3
    heads: int = 6


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The supervised start, which stops at a partial skill.

    Attributes:
        target: Expected reward at which it stops.
        max_steps: Steps after which it gives up.
        batch: Examples per step.
        rate: AdamW's learning rate.
    """

    target: float = 0.30
    max_steps: int = 400
    batch: int = 64
    rate: float = 1e-3


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """The policy gradient.

    Attributes:
        rate: AdamW's learning rate once it has risen over `ramp` steps.
        ramp: Steps over which it rises.
        groups: Prompts per step of the trainer.
        samples: Answers per prompt, each of which is measured against their mean.
        clip: How far the importance ratio may move before its gradient is cut.
        max_staleness: Rollouts sampled with a version older than this many are dropped.
        groups_per_file: Prompts that a worker samples between two looks at what was staged.
    """

    rate: float = 3e-6
    ramp: int = 5
    groups: int = 64
    samples: int = 8
    clip: float = 0.2
    max_staleness: int = 3
    groups_per_file: int = 16


@dataclass(frozen=True, slots=True)
class Learning:
    """Everything that decides how the policy learns and how its reward is measured."""

    model: ModelSize = field(default_factory=ModelSize)
    warm_start: WarmStart = field(default_factory=WarmStart)
    reinforcement: Reinforcement = field(default_factory=Reinforcement)
    held_out: int = 512


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What `deltastore demo` is asked for.

    Attributes:
        root: Where store, rollouts and logs go; a new temporary directory by default. They are left there.
        store: URL of the store, where it is not to lie under the root.
        steps: Steps of the trainer after the warm start, each of which publishes a version.
        workers: Rollout workers from the start on; one more joins late.
        seed: Of weights, prompts and sampling.
        as_json: Ends with one line of JSON on stdout; everything else then goes to stderr.
        learning: How it learns.
    """

    root: Path | None = None
    store: str | None = None
    steps: int = 60
    workers: int = 2
    seed: int = 0
    as_json: bool = False
    learning: Learning = field(default_factory=Learning)


@dataclass(frozen=True, slots=True)
class Job:
    """What a process of the demo is told.

    Attributes:
        name: What it is called in events and file names.
        root: The directory that holds rollouts.
        store: URL of the store.
        seed: Its own.
        held_out_seed: Of the prompts that the reward is measured on.
        steps: Of the trainer.
        audits: Whether, at the end, it walks all versions with a fresh consumer and measures the reward.
        learning: How it learns.
    """

    name: str
    root: Path
    store: str
    seed: int
    held_out_seed: int
    steps: int
    audits: bool
    learning: Learning

    @property
    def rollouts(self) -> Path:
        """The folder of rollouts."""
        return self.root / "rollouts"

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self) | {"root": str(self.root)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        given = json.loads(text)
        learning = given.pop("learning")
        return cls(
            root=Path(given.pop("root")),
            learning=Learning(
                model=ModelSize(**learning.pop("model")),
                warm_start=WarmStart(**learning.pop("warm_start")),
                reinforcement=Reinforcement(**learning.pop("reinforcement")),
                **learning,
            ),
            **given,
        )
