"""Countdown: puzzles, the reading of expressions, and what counts as an answer."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.math.countdown import LEVELS, CountdownEnv, puzzle, read_expression, uses
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.testing import check_environment

TASK = Task("t", "", "24", metadata={"numbers": (3, 6, 7), "expression": "(7 - 3) * 6"})


def grade(action: str, *, use_all: bool = True) -> Score:
    return CountdownEnv(use_all=use_all).respond(TASK, action)


@pytest.mark.parametrize("number", range(1, 6))
def test_every_puzzle_is_solved_by_its_expression(number: int) -> None:
    level = LEVELS[number - 1]
    operators = set()
    for seed in range(200):
        numbers, target, expression = puzzle(np.random.default_rng(seed), level)
        value, found = read_expression(expression)
        assert value == target
        assert sorted(found) == sorted(numbers)
        assert level.low <= target <= level.high
        assert target not in numbers
        assert len(numbers) == level.count
        assert all(1 <= n <= level.largest for n in numbers)
        operators |= set(expression) & set("+-*/")
    assert operators == set(level.operators)


@pytest.mark.parametrize("number", range(1, 6))
def test_a_puzzle_is_made_in_under_a_millisecond(number: int) -> None:
    begin = time.process_time()
    for seed in range(200):
        puzzle(np.random.default_rng(seed), LEVELS[number - 1])
    assert (time.process_time() - begin) / 200 < 1e-3


@pytest.mark.parametrize(
    "answer",
    [
        "(7 - 3) * 6",
        "6*(7-3)",
        "-6 * (3 - 7)",
        "(7 − 3) × 6",
        "(7 - 3) \\times 6",
        "\\left(7 - 3\\right) \\cdot 6 = 24",
        "(7-3)*6 = 24",
        "6 * (7 - 3) = 48 / 2",
    ],
)
def test_right_answers(answer: str) -> None:
    score = grade(f"So: \\boxed{{{answer}}}")
    assert score.success
    assert score.value == 1
    assert score.components == {"correct": 1, "valid": 1}


@pytest.mark.parametrize(
    "answer",
    [
        "24",
        "(7 - 3) * 6 + 3 - 3",
        "6 * 4",
        "(7 - 3) * 6 = 25",
        "(7 - 3) * 6 = 24 = 24",
        "(7-3)*6 =",
        "= 24",
        "7 + 6 + 3",
        "67 - 43",
        "(7 ++ -3) * 6",
        "7 ** 3",
        "7 // 3 * 6",
        "6(7-3)",
        "(7 - 3) * 6.0",
        "(7 - 3) * 6, 24",
        "__import__('os')",
        "(7 - 3) * 6 if True else 0",
        "True * 24",
        "7 / (3 - 3) * 6",
        "(" * 100 + "7",
        "(7-3)*6" + " " * 400,
        "9" * 250,
        "",
        "٧ - ٣",
    ],
)
def test_wrong_answers(answer: str) -> None:
    score = grade(f"\\boxed{{{answer}}}")
    assert not score.success
    assert score.value == 0


def test_a_valid_expression_of_another_value_is_told_apart() -> None:
    assert grade("\\boxed{7 + 6 + 3}").components == {"correct": 0, "valid": 1}
    assert grade("\\boxed{7 + 6 + 4}").components == {"correct": 0, "valid": 0}


def test_numbers_may_be_left_out_only_where_allowed() -> None:
    task = Task("t", "", "13", metadata={"numbers": (3, 6, 7), "expression": "6 + 7"})
    assert CountdownEnv(use_all=False).respond(task, "\\boxed{6 + 7}").success
    assert not CountdownEnv(use_all=True).respond(task, "\\boxed{6 + 7}").success
    assert not CountdownEnv(use_all=False).respond(task, "\\boxed{6 + 7 + 3 - 3}").success


def test_the_last_box_counts() -> None:
    assert not grade("\\boxed{(7-3)*6} or \\boxed{7+6}").success
    assert grade("\\boxed{7+6} no, \\boxed{(7-3)*6}").success


def test_fractions_are_exact() -> None:
    assert read_expression("1/3*3")[0] == 1
    assert read_expression("\\frac{1}{\\frac{1}{49}}") == (49, [1, 1, 49])


@given(st.lists(st.integers(1, 9), max_size=6), st.lists(st.integers(1, 9), max_size=6))
@settings(max_examples=100, deadline=None)
def test_use_is_counted_like_a_multiset(found: list[int], given_: list[int]) -> None:
    inside = all(found.count(n) <= given_.count(n) for n in found)
    assert uses(found, given_, every=False) == inside
    assert uses(found, given_, every=True) == (sorted(found) == sorted(given_))


@given(st.text(alphabet="0123456789+-*/() =.^e\\{}", max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_expression_raises(text: str) -> None:
    assert grade(f"\\boxed{{{text}}}").value in (0, 1)


@pytest.mark.parametrize("level", range(1, 6))
@pytest.mark.parametrize("use_all", [True, False])
def test_every_level_keeps_the_contract(level: int, use_all: bool) -> None:
    report = check_environment(lambda: CountdownEnv(level=level, use_all=use_all), range(4))
    assert report.ok, str(report)


@pytest.mark.parametrize("level", [0, 6])
def test_other_levels_are_refused(level: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 5"):
        CountdownEnv(level=level)
