"""The trainer's process: warm start, then a step of the policy gradient and a publish, again and again.

It knows the store and the folder of rollouts; of workers it knows nothing, neither how many nor whether any.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from deltastore import Producer, Publication, Store
from deltastore.demo import events
from deltastore.demo.config import Job
from deltastore.demo.failure import DemoFailed, run_process
from deltastore.demo.learner import Learner, warm_start
from deltastore.demo.model import Policy, elements, round_into, weights_bytes, weights_sha256
from deltastore.demo.rollouts import RolloutFolder, Rollouts

_MOST_THREADS = 4
_PATIENCE = 120.0
"""Seconds without a rollout after which the trainer gives up."""


class Trainer:
    """Learns from rollouts and publishes what it learned.

    Args:
        job: What to do.
        policy: The float32 masters after the warm start.
        producer: Where to publish.
        folder: Where rollouts come from.
    """

    def __init__(self, job: Job, policy: Policy, producer: Producer, folder: RolloutFolder) -> None:
        self._job = job
        self._config = job.learning.reinforcement
        self._policy = policy
        self._served = policy.serving_copy()
        self._producer = producer
        self._folder = folder
        self._learner = Learner(policy, self._config)
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="demo-commits")
        self._orphaned = events.Orphaned()
        self._version = 0

    def run(self) -> None:
        """All steps; returns when the last version is committed."""
        first = self._publish(step=0, changed=0)
        for step in range(1, self._job.steps + 1):
            batch, dropped = self._gather()
            report = self._learner.step(batch)
            staleness = [self._version - rollouts.version for rollouts in batch]
            events.say(events.Trained(step, report.reward, report.clipped, staleness, dropped))
            self._publish(step=step, changed=round_into(self._policy, self._served))
        self._commits.shutdown(wait=True)
        self._producer.close()
        self._folder.finish(first, self._version)
        events.say(events.Finished(self._version))

    def _publish(self, *, step: int, changed: int) -> int:
        """Publishes the serving copy; the commit is waited for, and told, elsewhere."""
        sha256 = weights_sha256(self._served)
        begun = time.perf_counter()
        publication = self._producer.publish(self._served, step=step, user={"task": "digits"})
        self._commits.submit(self._committed, publication, begun, step, sha256, changed)
        self._version = publication.version
        return self._version

    def _committed(
        self, publication: Publication, begun: float, step: int, sha256: str, changed: int
    ) -> None:
        version = publication.result().version
        milliseconds = (time.perf_counter() - begun) * 1000
        size, total = weights_bytes(self._served), elements(self._served)
        events.say(events.Published(version, step, sha256, size, changed, total, milliseconds))

    def _gather(self) -> tuple[list[Rollouts], int]:
        """Waits for a step's worth of rollouts that are fresh enough."""
        files = -(-self._config.groups // self._config.groups_per_file)
        batch: list[Rollouts] = []
        dropped = 0
        deadline = time.monotonic() + _PATIENCE
        while len(batch) < files:
            oldest = self._version - self._config.max_staleness
            taken = self._folder.take(oldest=oldest, most=files - len(batch))
            batch += taken.batch
            dropped += taken.dropped
            if len(batch) < files:
                if self._orphaned or time.monotonic() > deadline:
                    raise DemoFailed(f"no rollouts for {_PATIENCE:.0f} s", hint="Are the workers alive?")
                time.sleep(0.01)
        return batch, dropped


def main() -> None:
    """The process."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(min(_MOST_THREADS, torch.get_num_threads()))
    policy = Policy(job.learning.model, seed=job.seed)
    skill = warm_start(
        policy,
        job.learning.warm_start,
        np.random.default_rng(job.seed),
        told=lambda step, reward: events.say(events.Warmed(step, reward)),
    )
    if skill < job.learning.warm_start.target:
        raise DemoFailed(
            f"the warm start stopped at an expected reward of {skill:.2f}", hint="Try another --seed"
        )
    with Store.create(job.store) as store, Producer(store) as producer:
        Trainer(job, policy, producer, RolloutFolder(job.rollouts)).run()


if __name__ == "__main__":
    run_process(main)
