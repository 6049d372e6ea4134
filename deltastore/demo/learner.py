"""How the policy learns: a supervised warm start, then a clipped policy gradient over groups of answers.

Nothing here knows of stores or processes: rollouts come in as arrays, and the masters change in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deltastore.demo import task
from deltastore.demo.config import Reinforcement, WarmStart
from deltastore.demo.model import Policy
from deltastore.demo.rollouts import Rollouts
from deltastore.demo.sampling import answer_logprobs, expected_rewards

_PROBE_EVERY: Final = 5
_PROBE_PROMPTS: Final = 128


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of the policy gradient saw: mean reward of its rollouts, share of clipped tokens."""

    reward: float
    clipped: float


def warm_start(
    policy: Policy,
    config: WarmStart,
    rng: np.random.Generator,
    told: Callable[[int, float], None] | None = None,
) -> float:
    """Teaches the policy from right answers until its expected reward reaches the target.

    Args:
        policy: The float32 masters; changed in place.
        config: Where to stop.
        rng: Draws the prompts.
        told: Called with the number of steps and the expected reward now and then.

    Returns:
        The expected reward when it stopped, on prompts that are new to it and not held out.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.rate, betas=(0.9, 0.98), weight_decay=0.0)
    probe = task.training_prompts(_PROBE_PROMPTS, rng)
    skill = 0.0
    for step in range(1, config.max_steps + 1):
        prompts = task.training_prompts(config.batch, rng)
        right = torch.from_numpy(task.answers(prompts))[:, None]
        loss = -answer_logprobs(policy, torch.from_numpy(prompts), right).mean()
        _descend(policy, optimizer, loss, rate=config.rate * min(1.0, step / 30))
        if step % _PROBE_EVERY == 0:
            skill = float(expected_rewards(policy, probe).mean())
            if told is not None:
                told(step, skill)
            if skill >= config.target:
                break
    return skill


def group_advantages(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each reward against the mean of its group, in units of the group's spread; 0 where all are equal."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread = rewards.std(axis=1, keepdims=True)
    advantages: NDArray[np.float32] = np.zeros_like(centred)
    np.divide(centred, spread, out=advantages, where=spread > 0)
    return advantages


class Learner:
    """AdamW over the policy's float32 masters, one step per batch of rollouts."""

    def __init__(self, policy: Policy, config: Reinforcement) -> None:
        self._policy = policy
        self._config = config
        self._steps = 0
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=config.rate, weight_decay=0.0)

    def step(self, batch: list[Rollouts]) -> StepReport:
        """Moves the masters towards the answers that did better than others to the same prompt."""
        prompts = np.concatenate([rollouts.prompts for rollouts in batch])
        answers = np.concatenate([rollouts.answers for rollouts in batch])
        sampled = np.concatenate([rollouts.logprobs for rollouts in batch])
        rewards = task.rewards(prompts, answers)
        advantages = group_advantages(rewards)
        telling = advantages.any(axis=1)
        clipped = 0.0
        self._steps += 1
        if telling.any():
            now = answer_logprobs(
                self._policy, torch.from_numpy(prompts[telling]), torch.from_numpy(answers[telling])
            )
            ratio = (now - torch.from_numpy(sampled[telling])).exp()
            loss = clipped_loss(ratio, torch.from_numpy(advantages[telling])[..., None], self._config.clip)
            rate = self._config.rate * min(1.0, self._steps / (self._config.ramp + 1))
            _descend(self._policy, self._optimizer, loss, rate=rate)
            clipped = float(((ratio - 1).abs() > self._config.clip).float().mean())
        return StepReport(reward=float(rewards.mean()), clipped=clipped)


def clipped_loss(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The surrogate that is minimised: no gain from moving a token's ratio past the clip."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def _descend(policy: Policy, optimizer: torch.optim.Optimizer, loss: Tensor, *, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
