import numpy as np
import pytest
import torch

from deltastore.demo import task
from deltastore.demo.config import ModelSize
from deltastore.demo.model import Policy, elements, round_into, weights_bytes, weights_sha256
from deltastore.demo.sampling import answer_logprobs, expected_rewards, sample

TINY = ModelSize(width=32, layers=2, heads=2)


@pytest.fixture
def policy() -> Policy:
    return Policy(TINY, seed=3)


def test_sampling_with_a_cache_agrees_with_scoring_whole_answers(policy: Policy) -> None:
    prompts = task.training_prompts(4, np.random.default_rng(1))
    answers, sampled = sample(policy, prompts, 5, torch.Generator().manual_seed(1))
    with torch.no_grad():
        scored = answer_logprobs(policy, torch.from_numpy(prompts), torch.from_numpy(answers))
        flat = torch.from_numpy(np.concatenate([prompts.repeat(5, 0), answers.reshape(20, -1)], axis=1))
        logits, _ = policy(flat[:, :-1])
    whole = logits.log_softmax(-1)[:, task.PROMPT_LENGTH - 1 :].gather(2, answers_of(flat)[..., None])[..., 0]
    assert np.allclose(sampled, scored.numpy(), atol=1e-5)
    assert torch.allclose(scored.view(20, -1), whole, atol=1e-5)


def answers_of(flat: torch.Tensor) -> torch.Tensor:
    return flat[:, task.PROMPT_LENGTH :]


def test_the_expected_reward_is_the_mean_reward_of_many_samples(policy: Policy) -> None:
    prompts = np.array([[task.ASCENDING, *[4] * task.DIGITS, task.EQUALS]])
    with torch.no_grad():
        policy.embedding.weight[4] += 0.5 * policy.embedding.weight[4].sign()
    expected = expected_rewards(policy, prompts)[0]
    answers, _ = sample(policy, prompts, 20_000, torch.Generator().manual_seed(2))
    seen = task.rewards(prompts, answers).mean()
    assert 0.003 < expected < 0.99
    assert abs(seen - expected) < 5 * (expected * (1 - expected) / 20_000) ** 0.5


def test_the_serving_copy_has_two_dtypes_and_keeps_the_tie(policy: Policy) -> None:
    served = policy.serving_copy()
    assert {tensor.dtype for tensor in served.parameters()} == {torch.bfloat16}
    assert served.positions.dtype == torch.float32
    assert served.head.weight is served.embedding.weight
    assert policy.embedding.weight.dtype == torch.float32
    assert weights_bytes(served) == 2 * elements(served) + 2 * served.positions.numel()


def test_rounding_counts_the_elements_whose_bits_changed(policy: Policy) -> None:
    served = policy.serving_copy()
    before = weights_sha256(served)
    assert round_into(policy, served) == 0
    assert weights_sha256(served) == before
    with torch.no_grad():
        policy.embedding.weight[0, :3] += 1.0
        up = policy.get_parameter("blocks.0.up.weight")
        up[0, 0] *= -1
        up[1, 1] *= 1 + 2**-20
    assert round_into(policy, served) == 4
    assert weights_sha256(served) != before


def test_the_fingerprint_sees_a_flip_of_one_bit_and_of_the_sign_of_zero(policy: Policy) -> None:
    served = policy.serving_copy()
    served.norm.weight[0] = 0.0
    zero = weights_sha256(served)
    served.norm.weight[0] = -0.0
    assert weights_sha256(served) != zero
    served.norm.weight[0] = 0.0
    assert weights_sha256(served) == zero
    served.positions.view(torch.int32)[0, 0] ^= 1
    assert weights_sha256(served) != zero
