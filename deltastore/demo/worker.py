"""A rollout worker's process: samples with the newest weights while the next version is fetched.

Staging runs in a thread of its own; the weights change between two batches and nowhere else.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from deltastore import Consumer, Staged, Store
from deltastore.demo import events, task
from deltastore.demo.config import Job
from deltastore.demo.failure import run_process
from deltastore.demo.model import Policy, weights_sha256
from deltastore.demo.rollouts import Finish, RolloutFolder, Rollouts
from deltastore.demo.sampling import expected_rewards, sample
from deltastore.errors import NoSuchVersion, NotFound

_POLL = 0.05
_OWN_WEIGHTS = 0x5EED
"""Workers begin with other weights than the trainer, so that nothing but the store can make them equal."""


class Worker:
    """Serves one policy and keeps it at the newest version.

    Args:
        job: What to do.
        store: Where weights come from.
        folder: Where rollouts go.
    """

    def __init__(self, job: Job, store: Store, folder: RolloutFolder) -> None:
        self._job = job
        self._config = job.learning.reinforcement
        self._store = store
        self._folder = folder
        self._policy = new_policy(job)
        self._consumer = Consumer(store, self._policy)
        self._rng = np.random.default_rng(job.seed)
        self._generator = torch.Generator().manual_seed(job.seed)
        self._orphaned = events.Orphaned()
        self._batches = 0

    def run(self) -> Finish | None:
        """Samples until the trainer has finished and its last version is served.

        Returns:
            What the trainer said when it finished; None if whoever started this is gone.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="demo-staging") as pool:
            staging = pool.submit(self._stage)
            while not self._orphaned:
                staging = self._swap(staging, pool)
                finish = self._folder.finished()
                if finish is not None and self._consumer.version == finish.last:
                    return finish
                if self._consumer.version is None or finish is not None or self._is_ahead():
                    time.sleep(0.01)
                else:
                    self._sample(self._consumer.version)
        return None

    def _stage(self) -> Staged | None:
        """Fetches and prepares the newest version, if it is newer than what is served."""
        try:
            newest = self._consumer.latest()
        except NoSuchVersion:
            newest = None
        if newest is None or newest.state is None or newest.version == self._consumer.version:
            time.sleep(_POLL)
            return None
        return self._consumer.stage(newest.version)

    def _swap(self, staging: Future[Staged | None], pool: ThreadPoolExecutor) -> Future[Staged | None]:
        """Between two batches: commits what has been staged, and begins to stage the next."""
        if not staging.done():
            return staging
        staged = staging.result()
        if staged is not None:
            commit(staged, self._policy, self._job.name, audit=False)
        return pool.submit(self._stage)

    def _is_ahead(self) -> bool:
        """Whether as much is waiting as the trainer takes at once: more would only grow old."""
        return self._folder.waiting() * self._config.groups_per_file >= self._config.groups

    def _sample(self, version: int) -> None:
        prompts = task.training_prompts(self._config.groups_per_file, self._rng)
        answers, logprobs = sample(self._policy, prompts, self._config.samples, self._generator)
        self._batches += 1
        rollouts = Rollouts(version, prompts, answers, logprobs)
        self._folder.put(rollouts, worker=self._job.name, number=self._batches)


def new_policy(job: Job) -> Policy:
    """A serving copy of the right shape with weights of its own."""
    return Policy(job.learning.model, seed=job.seed ^ _OWN_WEIGHTS).serving_copy()


def commit(staged: Staged, policy: Policy, worker: str, *, audit: bool) -> None:
    """Swaps a version in, and tells what its weights are now."""
    begun = time.perf_counter()
    staged.commit()
    pause = (time.perf_counter() - begun) * 1000
    sha256 = weights_sha256(policy)
    events.say(events.Committed(worker, staged.version, sha256, pause, staged.bytes_fetched, audit))


def audit(job: Job, store: Store, finish: Finish) -> None:
    """Walks every version with a fresh consumer, and measures the reward at the first and the last."""
    policy = new_policy(job)
    prompts = task.held_out_prompts(job.learning.held_out, np.random.default_rng(job.held_out_seed))
    with Consumer(store, policy) as consumer:
        commit(consumer.stage(finish.first), policy, job.name, audit=True)
        before = expected_rewards(policy, prompts)
        for version in range(finish.first + 1, finish.last + 1):
            commit(consumer.stage(version), policy, job.name, audit=True)
    after = expected_rewards(policy, prompts)
    gain = after - before
    error = float(gain.std() / len(gain) ** 0.5)
    events.say(events.Measured(float(before.mean()), float(after.mean()), error))


def open_when_there(job: Job) -> Store:
    """Opens the store, which the trainer makes after its warm start."""
    orphaned = events.Orphaned()
    while True:
        try:
            return Store.open(job.store)
        except NotFound:
            if orphaned:
                raise
            time.sleep(_POLL)


def main() -> None:
    """The process."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(1)
    with open_when_there(job) as store:
        finish = Worker(job, store, RolloutFolder(job.rollouts)).run()
        if finish is not None and job.audits:
            audit(job, store, finish)


if __name__ == "__main__":
    run_process(main)
