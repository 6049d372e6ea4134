"""What came of it: the events of all processes, folded into the result that the demo reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from deltastore.backends import open_backend
from deltastore.demo.events import Committed, Event, Finished, Measured, Published, Trained, Warmed


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured.

    Attributes:
        reward_first: Expected reward on held-out prompts at the first version, after the warm start.
        reward_last: The same at the last version.
        reward_error: Standard error of the difference, over prompts.
        versions: Versions published.
        last_version: The number of the last one.
        bytes_full: What sending all weights for each of them would have taken.
        bytes_sent: What the trainer wrote to the store, of every kind.
        ratio: `bytes_full / bytes_sent`.
        bytes_delta: Median bytes that a worker fetched from one version to the next.
        density: Median share of elements that changed from one version to the next.
        publish_ms_p50: Median milliseconds from the call to the commit.
        pause_ms_p50: Median milliseconds that a worker stopped sampling for a swap.
        pause_ms_p95: 95th percentile of the same.
        staleness_mean: Mean number of versions by which rollouts were behind.
        staleness_max: The most.
        dropped: Batches of rollouts that were too old.
        compared: Pairs of worker and version whose SHA-256 was compared.
        covered: Versions that at least one worker compared.
        identical: Whether all of these were bit-identical, and no version was left out.
        differing: The pairs that were not.
        workers: Rollout workers by name, the late one among them.
        seconds: Wall time.
        url: The store.
    """

    reward_first: float
    reward_last: float
    reward_error: float
    versions: int
    last_version: int
    bytes_full: int
    bytes_sent: int
    ratio: float
    bytes_delta: int
    density: float
    publish_ms_p50: float
    pause_ms_p50: float
    pause_ms_p95: float
    staleness_mean: float
    staleness_max: int
    dropped: int
    compared: int
    covered: int
    identical: bool
    differing: tuple[tuple[str, int], ...]
    workers: int
    seconds: float
    url: str

    @property
    def gain(self) -> float:
        """How far the reward rose."""
        return self.reward_last - self.reward_first

    def to_json(self) -> str:
        """The line that `--json` ends with."""
        return json.dumps(
            {
                "reward_first": round(self.reward_first, 4),
                "reward_last": round(self.reward_last, 4),
                "versions": self.versions,
                "bytes_full": self.bytes_full,
                "bytes_sent": self.bytes_sent,
                "ratio": round(self.ratio, 2),
                "density": round(self.density, 5),
                "publish_ms_p50": round(self.publish_ms_p50, 2),
                "pause_ms_p50": round(self.pause_ms_p50, 3),
                "pause_ms_p95": round(self.pause_ms_p95, 3),
                "identical": self.identical,
                "workers": self.workers,
            }
        )


@dataclass(slots=True)
class Ledger:
    """Everything that was told so far."""

    warmed: Warmed | None = None
    trained: list[Trained] = field(default_factory=list)
    published: dict[int, Published] = field(default_factory=dict)
    committed: list[Committed] = field(default_factory=list)
    measured: Measured | None = None
    finished: bool = False

    def add(self, event: Event) -> None:
        """Takes note of an event."""
        match event:
            case Warmed():
                self.warmed = event
            case Trained():
                self.trained.append(event)
            case Published():
                self.published[event.version] = event
            case Committed():
                self.committed.append(event)
            case Measured():
                self.measured = event
            case Finished():
                self.finished = True

    def serving(self) -> dict[str, int]:
        """The version that each worker serves, as far as it said."""
        return {commit.worker: commit.version for commit in self.committed if not commit.audit}

    def differing(self) -> tuple[tuple[str, int], ...]:
        """Worker and version of each commit whose weights were not those that were published."""
        return tuple(
            (commit.worker, commit.version)
            for commit in self.committed
            if commit.version not in self.published or self.published[commit.version].sha256 != commit.sha256
        )

    def result(self, *, url: str, seconds: float, measured: Measured) -> DemoResult:
        """The result of a run that went to its end.

        Args:
            url: The store.
            seconds: Wall time.
            measured: The reward, as the late worker measured it.
        """
        deltas = [version for version in self.published.values() if version.step > 0]
        serving = [commit for commit in self.committed if not commit.audit]
        staleness = [behind for step in self.trained for behind in step.staleness]
        covered = {commit.version for commit in self.committed} & self.published.keys()
        full = sum(version.size for version in self.published.values())
        with closing(open_backend(url)) as backend:
            sent = sum(info.size for info in backend.list())
        walked = [commit.fetched for commit in self.committed if commit.audit][1:]
        return DemoResult(
            reward_first=measured.first,
            reward_last=measured.last,
            reward_error=measured.error,
            versions=len(self.published),
            last_version=max(self.published),
            bytes_full=full,
            bytes_sent=sent,
            ratio=full / sent,
            bytes_delta=int(_percentile(walked, 50)),
            density=_percentile([version.changed / version.elements for version in deltas], 50),
            publish_ms_p50=_percentile([version.milliseconds for version in self.published.values()], 50),
            pause_ms_p50=_percentile([commit.pause for commit in serving], 50),
            pause_ms_p95=_percentile([commit.pause for commit in serving], 95),
            staleness_mean=float(np.mean(staleness)),
            staleness_max=max(staleness),
            dropped=sum(step.dropped for step in self.trained),
            compared=len(self.committed),
            covered=len(covered),
            identical=not self.differing() and len(covered) == len(self.published),
            differing=self.differing(),
            workers=len({commit.worker for commit in self.committed}),
            seconds=seconds,
            url=url,
        )


def _percentile(values: Iterable[float], percent: float) -> float:
    return float(np.percentile(list(values), percent))
