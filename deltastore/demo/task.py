"""The task of the demo: rearrange six digits as an operation token asks; the reward is 1 for exactly right.

A prompt is the operation, the digits and `=`; the answer has as many tokens as there are digits. About
one prompt in thirty is held out: training never draws it, and the reward is measured on such prompts only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

DIGITS: Final = 6
VOCABULARY: Final = "0123456789ADR="
ASCENDING: Final = VOCABULARY.index("A")
DESCENDING: Final = VOCABULARY.index("D")
REVERSED: Final = VOCABULARY.index("R")
EQUALS: Final = VOCABULARY.index("=")
PROMPT_LENGTH: Final = DIGITS + 2
ANSWER_LENGTH: Final = DIGITS

_HELD_OUT_ONE_IN: Final = 31
_HELD_OUT_MIX: Final = np.array([3, 7, 11, 13, 17, 19, 23, 29])


def answers(prompts: Tokens) -> Tokens:
    """The right answer to each prompt.

    Args:
        prompts: Tokens, shape (prompts, PROMPT_LENGTH).

    Returns:
        Tokens, shape (prompts, ANSWER_LENGTH).
    """
    operation, digits = prompts[:, :1], prompts[:, 1 : 1 + DIGITS]
    ascending = np.sort(digits, axis=1)
    return np.select(
        [operation == ASCENDING, operation == DESCENDING],
        [ascending, ascending[:, ::-1]],
        default=digits[:, ::-1],
    )


def rewards(prompts: Tokens, given: Tokens) -> NDArray[np.float32]:
    """1.0 for an answer that is right in every token, else 0.0.

    Args:
        prompts: Tokens, shape (prompts, PROMPT_LENGTH).
        given: Sampled answers, shape (prompts, samples, ANSWER_LENGTH).

    Returns:
        Shape (prompts, samples).
    """
    right: NDArray[np.float32] = (given == answers(prompts)[:, None, :]).all(axis=2).astype(np.float32)
    return right


def training_prompts(count: int, rng: np.random.Generator) -> Tokens:
    """So many random prompts, none of them held out."""
    return _draw(count, rng, held_out=False)


def held_out_prompts(count: int, rng: np.random.Generator) -> Tokens:
    """So many random prompts of those that training never draws."""
    return _draw(count, rng, held_out=True)


def is_held_out(prompts: Tokens) -> NDArray[np.bool_]:
    """Whether each prompt belongs to the held-out part."""
    chosen: NDArray[np.bool_] = (prompts @ _HELD_OUT_MIX) % _HELD_OUT_ONE_IN == 0
    return chosen


def text(tokens: Tokens) -> str:
    """The characters of one row of tokens."""
    return "".join(VOCABULARY[token] for token in tokens)


def _draw(count: int, rng: np.random.Generator, *, held_out: bool) -> Tokens:
    kept: list[Tokens] = []
    missing = count
    while missing > 0:
        drawn = missing * (2 * _HELD_OUT_ONE_IN if held_out else 2)
        prompts = np.full((drawn, PROMPT_LENGTH), EQUALS, dtype=np.int64)
        prompts[:, 0] = rng.integers(ASCENDING, REVERSED + 1, size=drawn)
        prompts[:, 1:-1] = rng.integers(0, 10, size=(drawn, DIGITS))
        chosen = prompts[is_held_out(prompts) == held_out][:missing]
        kept.append(chosen)
        missing -= len(chosen)
    return np.concatenate(kept)
