"""What a policy does with prompts: sample answers, score given ones, and how much reward to expect of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch code knows
from numpy.typing import NDArray
from torch import Tensor

from deltastore.demo import task
from deltastore.demo.model import Cache, Policy


def answer_logprobs(policy: Policy, prompts: Tensor, answers: Tensor) -> Tensor:
    """Log-probability of each token of each answer; the prompt of a group is computed once.

    Args:
        policy: Weights in any dtype.
        prompts: Shape (groups, PROMPT_LENGTH).
        answers: Shape (groups, samples, ANSWER_LENGTH).

    Returns:
        float32, shape of `answers`.
    """
    samples = answers.shape[1]
    flat = answers.flatten(0, 1)
    first, past = policy(prompts)
    rest, _ = policy(flat[:, :-1], _shared(past, samples))
    logits = torch.cat([first[:, -1:].repeat_interleave(samples, 0), rest], dim=1)
    logprobs = F.log_softmax(logits, dim=-1)
    return logprobs.gather(2, flat[..., None])[..., 0].view(answers.shape)


@torch.no_grad()
def sample(
    policy: Policy, prompts: task.Tokens, samples: int, generator: torch.Generator
) -> tuple[task.Tokens, NDArray[np.float32]]:
    """Samples answers at temperature 1.

    Returns:
        Answers, shape (prompts, samples, ANSWER_LENGTH), and the log-probability of each of their tokens.
    """
    logits, past = policy(torch.from_numpy(prompts))
    logits, past = logits[:, -1].repeat_interleave(samples, 0), _shared(past, samples)
    tokens: list[Tensor] = []
    logprobs: list[Tensor] = []
    while True:
        distribution = F.log_softmax(logits, dim=-1)
        token = torch.multinomial(distribution.exp(), 1, generator=generator)
        tokens.append(token)
        logprobs.append(distribution.gather(1, token))
        if len(tokens) == task.ANSWER_LENGTH:
            break
        logits, past = policy(token, past)
        logits = logits[:, -1]
    shape = (len(prompts), samples, task.ANSWER_LENGTH)
    return torch.cat(tokens, 1).view(shape).numpy(), torch.cat(logprobs, 1).view(shape).numpy()


@torch.no_grad()
def expected_rewards(policy: Policy, prompts: task.Tokens) -> NDArray[np.float64]:
    """Per prompt, the probability that a sampled answer earns the reward: exact, no sampling noise.

    There is one right answer to a prompt, so its probability is the mean reward of infinitely many samples.
    """
    right = torch.from_numpy(task.answers(prompts))[:, None]
    logprobs = answer_logprobs(policy, torch.from_numpy(prompts), right)
    return logprobs.sum(dim=2).exp()[:, 0].double().numpy()


def _shared(past: Sequence[Cache], samples: int) -> list[Cache]:
    """The cache of each prompt, once per sample."""
    return [(key.repeat_interleave(samples, 0), value.repeat_interleave(samples, 0)) for key, value in past]
