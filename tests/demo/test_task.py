import numpy as np
import pytest

from deltastore.demo import task


def tokens(text: str) -> list[int]:
    return [task.VOCABULARY.index(character) for character in text]


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("A314159=", "113459"),
        ("D314159=", "954311"),
        ("R314159=", "951413"),
        ("A000000=", "000000"),
        ("R123456=", "654321"),
    ],
)
def test_the_right_answer_follows_the_operation(prompt: str, answer: str) -> None:
    assert task.text(task.answers(np.array([tokens(prompt)]))[0]) == answer


def test_only_an_answer_that_is_right_in_every_token_is_rewarded() -> None:
    prompts = np.array([tokens("A314159="), tokens("R314159=")])
    given = np.array(
        [
            [tokens("113459"), tokens("113495"), tokens("954311")],
            [tokens("951413"), tokens("113459"), tokens("95141=")],
        ]
    )
    assert task.rewards(prompts, given).tolist() == [[1, 0, 0], [1, 0, 0]]


def test_training_never_draws_a_held_out_prompt() -> None:
    drawn = task.training_prompts(5000, np.random.default_rng(0))
    held_out = task.held_out_prompts(300, np.random.default_rng(0))
    assert drawn.shape == (5000, task.PROMPT_LENGTH)
    assert held_out.shape == (300, task.PROMPT_LENGTH)
    assert not task.is_held_out(drawn).any()
    assert task.is_held_out(held_out).all()
    assert not {row.tobytes() for row in drawn} & {row.tobytes() for row in held_out}


def test_prompts_use_every_operation_and_digit_and_follow_the_seed() -> None:
    drawn = task.training_prompts(1000, np.random.default_rng(7))
    assert set(drawn[:, 0]) == {task.ASCENDING, task.DESCENDING, task.REVERSED}
    assert set(drawn[:, 1:-1].ravel()) == set(range(10))
    assert (drawn[:, -1] == task.EQUALS).all()
    assert (drawn == task.training_prompts(1000, np.random.default_rng(7))).all()
