"""The folder through which rollouts reach the trainer: one .npz per batch, seen whole or not at all.

A file is named by the version that sampled it, so that the trainer drops what is too old unread, and
workers see how much is waiting and do not run ahead.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deltastore.demo.task import Tokens


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Answers sampled with one version of the weights.

    Attributes:
        version: The version that sampled them.
        prompts: Shape (groups, PROMPT_LENGTH).
        answers: Shape (groups, samples, ANSWER_LENGTH).
        logprobs: Of each token when it was sampled; shape of `answers`.
    """

    version: int
    prompts: Tokens
    answers: Tokens
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Taken:
    """What the trainer took: batches that are fresh enough, and how many files were too old."""

    batch: list[Rollouts] = field(default_factory=list)
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The first and the last version that the trainer published."""

    first: int
    last: int


class RolloutFolder:
    """Rollouts between workers and trainer.

    Args:
        path: The folder; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._finish = path / "finish.json"

    def put(self, rollouts: Rollouts, *, worker: str, number: int) -> None:
        """Adds a batch; the trainer sees all of it or nothing.

        Args:
            rollouts: The batch.
            worker: Whose it is.
            number: Unique among the batches of this process.
        """
        name = f"{rollouts.version:08d}-{worker}-{os.getpid()}-{number:06d}.npz"
        unfinished = self._path / f".{name}"
        with unfinished.open("wb") as file:
            np.savez(
                file,
                version=np.int64(rollouts.version),
                prompts=rollouts.prompts,
                answers=rollouts.answers,
                logprobs=rollouts.logprobs,
            )
        unfinished.replace(self._path / name)

    def waiting(self) -> int:
        """How many batches wait for the trainer."""
        return len(self._names())

    def take(self, *, oldest: int, most: int) -> Taken:
        """Takes batches out of the folder, the oldest first, and drops those that are too old.

        Args:
            oldest: The oldest version whose rollouts are still used.
            most: How many batches to take.
        """
        batch: list[Rollouts] = []
        dropped = 0
        for name in self._names():
            if len(batch) == most:
                break
            path = self._path / name
            if int(name.split("-", 1)[0]) < oldest:
                dropped += 1
            else:
                batch.append(_read(path))
            path.unlink()
        return Taken(batch, dropped)

    def finish(self, first: int, last: int) -> None:
        """Tells the workers that the last version was published."""
        unfinished = self._finish.with_suffix(".part")
        unfinished.write_text(json.dumps({"first": first, "last": last}))
        unfinished.replace(self._finish)

    def finished(self) -> Finish | None:
        """What `finish` said, if it did."""
        try:
            return Finish(**json.loads(self._finish.read_text()))
        except FileNotFoundError:
            return None

    def _names(self) -> list[str]:
        return sorted(p.name for p in self._path.glob("[0-9]*.npz"))


def _read(path: Path) -> Rollouts:
    with np.load(path, allow_pickle=False) as stored:
        return Rollouts(
            version=int(stored["version"]),
            prompts=stored["prompts"],
            answers=stored["answers"],
            logprobs=stored["logprobs"],
        )
