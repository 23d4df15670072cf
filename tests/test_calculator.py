"""The calculator: what it computes, what it refuses, and an episode with it."""

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_envs.tools.calculator import CalculatorEnv
from grpo_envs.tools.expressions import evaluate
from grpo_gym.tools import Call, HermesCodec


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3 * 8 + 5", 29),
        (" (1+2)*3 ", 9),
        ("-2 ** 2", -4),
        ("--5", 5),
        ("+5", 5),
        ("7 / 2", 3.5),
        ("7 // 2", 3),
        ("-7 % 3", 2),
        ("2 ** 0.5 ** 2", 2**0.25),
        ("2 ** -1", 0.5),
        ("0.1 + 0.2", 0.1 + 0.2),
        (".5", 0.5),
        ("2 ** 4000 % 1000", pow(2, 4000, 1000)),
        ("1 ** (9 ** 100)", 1),
        ("0 ** 0", 1),
    ],
)
def test_values(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "made of numbers"),
        ("1 +", "made of numbers"),
        ("x + 1", "made of numbers"),
        ("__import__('os')", "made of numbers"),
        ("True + 1", "made of numbers"),
        ("1 if 1 else 2", "made of numbers"),
        ("5(3)", "made of numbers"),
        ("(1)(2)", "made of numbers"),
        ("()", "made of numbers"),
        ("1 2", "made of numbers"),
        ("3 ^ 2", "made of numbers"),
        ("1,000 + 1", "made of numbers"),
        ("1j", "made of numbers"),
        ("007", "made of numbers"),
        ("٣ + 1", "made of numbers"),
        ("1\n+2", "made of numbers"),
        ("1 # 2", "made of numbers"),
        ("\ud800\x00", "made of numbers"),
        ("(" * 150, "made of numbers"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("(-9) ** (9 ** 9)", "too large"),
        ("(9 ** 1000) * (9 ** 1000)", "too large"),
        ("10.0 ** 400", "too large"),
        ("10 ** 400 * 1.5", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("1" + "+1" * 200, "at most 200"),
    ],
)
def test_refusals_are_quick_and_clear(expression: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=message):
        evaluate(expression)
    assert time.monotonic() - start < 1


@given(st.text(st.sampled_from("0123456789.+-*/%() "), max_size=60))
def test_any_text_gives_a_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(evaluate(text), int | float)


def call(expression: str) -> str:
    return HermesCodec().render(Call("calculator", {"expression": expression}))


def test_an_episode_with_a_call() -> None:
    env = CalculatorEnv(level=1)
    observation, _ = env.reset(seed=1)
    assert observation == (
        {
            "role": "system",
            "content": "Put the final answer in \\boxed{}.\nTool: " + call("1 + 2"),
        },
        {"role": "user", "content": "What is 8 + 8?"},
    )
    assert env.task is not None
    assert env.solution(env.task) == (call("8 + 8"), "\\boxed{16}")
    observation, reward, terminated, truncated, _ = env.step(call("8 + 8"))
    assert observation == ({"role": "tool", "name": "calculator", "content": "16"},)
    assert (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, _, info = env.step("\\boxed{16}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_what_the_calculator_refuses_is_told() -> None:
    env = CalculatorEnv()
    env.reset(seed=1)
    observation, *_ = env.step(call("1 / 0"))
    assert observation[0]["content"] == "Error: division by zero"
    observation, *_ = env.step(call("9 ** 9 ** 9"))
    assert observation[0]["content"] == "Error: the power is too large"


def test_the_answer_may_be_reached_without_a_call() -> None:
    env = CalculatorEnv()
    env.reset(seed=1)
    assert env.step("\\boxed{16}")[1] == 1.0


def test_calling_for_ever_is_truncated() -> None:
    env = CalculatorEnv()
    env.reset(seed=1)
    steps = [env.step(call("1 + 1")) for _ in range(4)]
    assert [step[3] for step in steps] == [False, False, False, True]
    assert steps[-1][4]["truncation"] == "max_turns"


@pytest.mark.parametrize("level", range(1, 6))
def test_solutions_win_and_mistakes_do_not(level: int) -> None:
    env = CalculatorEnv(level=level)
    for seed in range(10):
        env.reset(seed=seed)
        assert env.task is not None
        ask, answer = env.solution(env.task)
        assert env.step(ask)[0][0]["content"] == env.task.answer
        assert env.step(answer)[1] == 1.0
        env.reset(seed=seed)
        for action in env.mistakes(env.task, np.random.default_rng(seed)):
            last = env.step(action)
        assert last[1] == 0.0
