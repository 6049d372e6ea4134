"""The main job: starts the processes, kills one, lets another join late, and judges what came of it."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from deltastore import Store
from deltastore.demo.config import DemoConfig, Job
from deltastore.demo.events import Event, Published
from deltastore.demo.failure import DemoFailed
from deltastore.demo.fleet import Fleet
from deltastore.demo.ledger import DemoResult, Ledger
from deltastore.demo.report import Progress, print_result, progress
from deltastore.errors import NotFound, StoreExists, UsageError

_TRAINER: Final = "deltastore.demo.trainer"
_WORKER: Final = "deltastore.demo.worker"
_LATE_STEPS: Final = 8
_SIGMAS: Final = 4.0
_LEAST_GAIN: Final = 0.02
_SEEDS_PER_RUN: Final = 1000


def run(config: DemoConfig) -> DemoResult:
    """Runs the demo: progress on stderr; the result on stdout, with `as_json` as one line of JSON.

    Raises:
        DemoFailed: A process failed, the reward did not rise, or some worker's weights were not those that
            the trainer had published. Whatever was measured has been printed by then.
        StoreExists: The root holds an earlier demo, or a store is at the URL already.
    """
    if config.steps < 2 or config.workers < 1:
        raise UsageError("the demo needs at least 2 steps and 1 worker")
    root = config.root or Path(tempfile.mkdtemp(prefix="deltastore-demo-"))
    if (root / "store").exists() or (root / "rollouts").exists():
        raise StoreExists(f"{root} holds an earlier demo", hint="Choose another --root, or remove it")
    url = config.store or (root / "store").absolute().as_uri()
    _check_absent(url)
    begun = time.monotonic()
    ledger = Ledger()
    with progress(config, root, url) as shown, Fleet(root / "logs") as fleet:
        Conductor(config, root, url, fleet, shown).run(ledger)
    if ledger.measured is None:
        raise DemoFailed("no worker measured the reward", hint=f"See {root / 'logs'}")
    result = ledger.result(
        url=url,
        seconds=time.monotonic() - begun,
        measured=ledger.measured,
    )
    print_result(result, as_json=config.as_json)
    judge(result)
    return result


def _check_absent(url: str) -> None:
    """Before anything is trained for it."""
    with suppress(NotFound), Store.open(url):
        raise StoreExists(f"a store is at {url}", hint="Choose another place, or remove it")


def judge(result: DemoResult) -> None:
    """Whether the demo showed what it is there to show.

    Raises:
        DemoFailed: It did not.
    """
    if not result.identical:
        listed = ", ".join(f"{worker} at version {version}" for worker, version in result.differing[:5])
        raise DemoFailed(
            f"weights differ from what was published: {listed or 'some versions were never compared'}",
            hint="This must not happen; please report it with the store",
            differing=len(result.differing),
            covered=result.covered,
            versions=result.versions,
        )
    if result.gain < max(_LEAST_GAIN, _SIGMAS * result.reward_error):
        raise DemoFailed(
            f"the reward did not rise: {result.reward_first:.3f} at first, {result.reward_last:.3f} at last",
            hint="Give it more --steps",
            gain=result.gain,
            error=result.reward_error,
        )


class Conductor:
    """Decides who starts, dies and joins when.

    Args:
        config: What was asked for.
        root: The directory that everything but the store is under.
        url: The store.
        fleet: The processes.
        shown: Where progress is shown.
    """

    def __init__(self, config: DemoConfig, root: Path, url: str, fleet: Fleet, shown: Progress) -> None:
        self._config = config
        self._fleet = fleet
        self._shown = shown
        self._trainer = Job(
            name="trainer",
            root=root,
            store=url,
            seed=config.seed * _SEEDS_PER_RUN,
            held_out_seed=config.seed * _SEEDS_PER_RUN + _SEEDS_PER_RUN - 1,
            steps=config.steps,
            audits=False,
            learning=config.learning,
        )
        self._killed = False
        self._joined = False

    def run(self, ledger: Ledger) -> None:
        """Until every process has ended."""
        self._fleet.start(_TRAINER, self._trainer)
        for number in range(self._config.workers):
            self._fleet.start(_WORKER, self._worker(number))
        while not self._fleet.is_over():
            event = self._fleet.next_event(timeout=0.2)
            if event is not None:
                ledger.add(event)
                self._act(event)
            self._shown.show(ledger)

    def _act(self, event: Event) -> None:
        if not isinstance(event, Published):
            return
        victim = self._config.workers - 1
        if not self._killed and event.step >= self._config.steps // 2:
            self._fleet.kill(f"rollout-{victim}")
            self._killed = True
            again = self._worker(victim)
            self._fleet.start(_WORKER, replace(again, seed=again.seed + self._config.workers + 1))
            self._shown.note(
                f"killed rollout-{victim} (SIGKILL) at version {event.version}, and started it anew"
            )
        if not self._joined and event.step >= self._config.steps - _LATE_STEPS:
            self._joined = True
            self._fleet.start(_WORKER, replace(self._worker(self._config.workers), audits=True))
            self._shown.note(f"rollout-{self._config.workers} joins late")

    def _worker(self, number: int) -> Job:
        return replace(self._trainer, name=f"rollout-{number}", seed=self._trainer.seed + 1 + number)
