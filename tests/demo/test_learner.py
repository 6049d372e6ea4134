import numpy as np
import pytest
import torch

from deltastore.demo import task
from deltastore.demo.config import ModelSize, Reinforcement, WarmStart
from deltastore.demo.learner import Learner, clipped_loss, group_advantages, warm_start
from deltastore.demo.model import Policy
from deltastore.demo.rollouts import Rollouts
from deltastore.demo.sampling import answer_logprobs

TINY = ModelSize(width=32, layers=1, heads=2)
QUICK = Reinforcement(rate=1e-3, ramp=0, samples=4)


def rollouts(policy: Policy, *, right: int) -> Rollouts:
    """Three groups of four answers, of which so many are right and the others wrong in one token."""
    prompts = task.training_prompts(3, np.random.default_rng(0))
    answers = np.repeat(task.answers(prompts)[:, None], 4, axis=1)
    answers[:, right:, -1] = (answers[:, right:, -1] + 1) % 10
    with torch.no_grad():
        logprobs = answer_logprobs(policy, torch.from_numpy(prompts), torch.from_numpy(answers))
    return Rollouts(1, prompts, answers, logprobs.numpy())


def likelihoods(policy: Policy, batch: Rollouts) -> torch.Tensor:
    with torch.no_grad():
        logprobs = answer_logprobs(policy, torch.from_numpy(batch.prompts), torch.from_numpy(batch.answers))
    return logprobs.sum(dim=2)


def test_advantages_are_relative_to_the_group_and_in_units_of_its_spread() -> None:
    rewards = np.array([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=np.float32)
    advantages = group_advantages(rewards)
    assert np.allclose(advantages[1], [1, 1, -1, -1])
    assert np.allclose(advantages[0], [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])


def test_a_group_of_equal_rewards_has_no_advantages() -> None:
    rewards = np.array([[1, 1, 1], [0, 0, 0]], dtype=np.float32)
    assert group_advantages(rewards).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_step_makes_rewarded_answers_likelier_than_the_others() -> None:
    policy = Policy(TINY, seed=0)
    batch = rollouts(policy, right=2)
    before = likelihoods(policy, batch)
    report = Learner(policy, QUICK).step([batch])
    rise = likelihoods(policy, batch) - before
    assert report.reward == 0.5
    assert (rise[:, :2].mean(dim=1) > rise[:, 2:].mean(dim=1)).all()
    assert rise[:, :2].mean() > 0


def test_a_step_on_groups_that_tell_nothing_leaves_the_masters_alone() -> None:
    policy = Policy(TINY, seed=0)
    before = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    report = Learner(policy, QUICK).step([rollouts(policy, right=4)])
    assert report.reward == 1.0
    assert all(torch.equal(weight, before[name]) for name, weight in policy.named_parameters())


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.0, 1.0, True), (1.3, 1.0, False), (1.3, -1.0, True), (0.7, -1.0, False), (0.7, 1.0, True)],
)
def test_the_gradient_is_cut_where_the_ratio_has_moved_far_enough(
    ratio: float, advantage: float, moves: bool
) -> None:
    at = torch.tensor([ratio], requires_grad=True)
    torch.autograd.backward(clipped_loss(at, torch.tensor([advantage]), 0.2))
    assert at.grad is not None
    assert bool(at.grad.abs() > 0) is moves


def test_the_warm_start_stops_at_its_target_and_tells_how_it_goes() -> None:
    told: list[tuple[int, float]] = []
    skill = warm_start(
        Policy(TINY, seed=0),
        WarmStart(target=1e-5, max_steps=200, batch=16, rate=3e-3),
        np.random.default_rng(0),
        told=lambda step, reward: told.append((step, reward)),
    )
    assert told[-1][0] < 200
    assert told[-1][1] == skill >= 1e-5
    assert all(reward < 1e-5 for _, reward in told[:-1])
