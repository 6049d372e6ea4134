from pathlib import Path

import numpy as np
import pytest

from deltastore.demo import task
from deltastore.demo.rollouts import Finish, RolloutFolder, Rollouts


@pytest.fixture
def folder(tmp_path: Path) -> RolloutFolder:
    return RolloutFolder(tmp_path / "rollouts")


def batch(version: int) -> Rollouts:
    prompts = task.training_prompts(2, np.random.default_rng(version))
    answers = np.repeat(task.answers(prompts)[:, None], 3, axis=1)
    return Rollouts(version, prompts, answers, np.full(answers.shape, -0.5, dtype=np.float32))


def test_a_batch_comes_back_as_it_was_put(folder: RolloutFolder) -> None:
    put = batch(7)
    folder.put(put, worker="rollout-0", number=1)
    (taken,) = folder.take(oldest=0, most=5).batch
    assert taken.version == 7
    assert (taken.prompts == put.prompts).all()
    assert (taken.answers == put.answers).all()
    assert taken.logprobs.dtype == np.float32
    assert folder.waiting() == 0


def test_rollouts_beyond_the_staleness_bound_are_dropped_and_never_returned(folder: RolloutFolder) -> None:
    for version in (3, 4, 5, 6, 7):
        folder.put(batch(version), worker="rollout-0", number=version)
    taken = folder.take(oldest=5, most=2)
    assert [rollouts.version for rollouts in taken.batch] == [5, 6]
    assert taken.dropped == 2
    assert folder.waiting() == 1


def test_versions_are_ordered_as_numbers_whoever_made_them(folder: RolloutFolder) -> None:
    for version, worker in ((10, "a"), (9, "b"), (100, "a"), (2, "c")):
        folder.put(batch(version), worker=worker, number=1)
    taken = folder.take(oldest=0, most=9).batch
    assert [rollouts.version for rollouts in taken] == [2, 9, 10, 100]


def test_a_batch_that_is_being_written_is_not_seen(folder: RolloutFolder, tmp_path: Path) -> None:
    folder.put(batch(1), worker="rollout-0", number=1)
    (whole,) = (tmp_path / "rollouts").iterdir()
    whole.rename(whole.with_name(f".{whole.name}"))
    assert folder.waiting() == 0
    assert folder.take(oldest=0, most=1).batch == []


def test_workers_learn_that_the_trainer_has_finished(folder: RolloutFolder) -> None:
    assert folder.finished() is None
    folder.finish(1, 61)
    assert folder.finished() == Finish(first=1, last=61)
