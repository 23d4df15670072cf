"""Arithmetic: levels, answers, splits."""

import ast
import operator
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_envs.math.arithmetic import ArithmeticEnv, expression
from grpo_envs.math.grading import is_worked_out, verify_number
from grpo_gym.errors import UsageError
from grpo_gym.verifiers.extract import extract_answer
from grpo_gym.verifiers.math import verify_math

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

FORMS = {
    1: r"\d \+ \d",
    2: r"\d [+-] \d",
    3: r"\d\d [+-] \d\d",
    4: r"\d\d [+*-] \d\d",
    5: r"\(\d\d [+*-] \d\d\) [+*-] \d\d|\d\d [+*-] \(\d\d [+*-] \d\d\)",
}


def value(text: str) -> int:
    """An independent reading of an expression."""

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return int(OPERATORS[type(node.op)](walk(node.left), walk(node.right)))
        assert isinstance(node, ast.Constant)
        assert isinstance(node.value, int)
        return node.value

    return walk(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize("level", FORMS)
def test_expressions_have_their_level_and_value(level: int) -> None:
    drawn = [expression(np.random.default_rng(seed), level) for seed in range(300)]
    for text, result in drawn:
        assert re.fullmatch(FORMS[level], text)
        assert value(text) == result
    operators = {symbol for text, _ in drawn for symbol in text if symbol in "+-*"}
    assert operators == {1: {"+"}, 2: {"+", "-"}, 3: {"+", "-"}}.get(level, {"+", "-", "*"})


def test_the_conversation_is_as_documented() -> None:
    env = ArithmeticEnv()
    observation, info = env.reset(seed=1)
    assert observation == (
        {"role": "system", "content": "Put the final answer in \\boxed{}."},
        {"role": "user", "content": "What is 8 + 8?"},
    )
    assert env.task is not None
    assert env.solution(env.task) == ("8 + 8 = \\boxed{16}",)
    observation, reward, terminated, truncated, info = env.step("\\boxed{16}")
    assert (observation, reward, terminated, truncated) == ((), 1.0, True, False)
    assert info["success"] is True


@pytest.mark.parametrize("level", FORMS)
def test_solutions_win_and_mistakes_do_not(level: int) -> None:
    env = ArithmeticEnv(level=level)
    for seed in range(20):
        env.reset(seed=seed)
        assert env.task is not None
        assert env.step(env.solution(env.task)[0])[1] == 1.0
        env.reset(seed=seed)
        assert env.step(env.mistakes(env.task, np.random.default_rng(seed))[0])[1] == 0.0


@pytest.mark.parametrize("level", [0, 6, -1, None, "1"])
def test_a_level_that_does_not_exist_is_told(level: object) -> None:
    with pytest.raises(UsageError, match="level must be between 1 and 5"):
        ArithmeticEnv(level=level)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "reference", "finished"),
    [
        ("16", "16", True),
        ("-16", "-16", True),
        ("\\$1{,}200.50", "1200.50", True),
        ("1,200", "1200", True),
        ("1\\,200", "1200", True),
        ("16\\text{ km}", "16", True),
        ("x = 16", "16", True),
        ("\\frac{3}{4}", "3/4", True),
        ("8 + 8", "16", False),
        ("8 + 8 = 16", "16", False),
        ("2^4", "16", False),
        ("\\frac{32}{2}", "16", False),
        ("4!", "24", False),
        ("\\sqrt{256}", "16", False),
        ("4²", "16", False),
        ("12, 4", "16", False),
    ],
)
def test_an_answer_must_be_worked_out(answer: str, reference: str, finished: bool) -> None:
    assert is_worked_out(answer, reference) is finished


@pytest.mark.parametrize("level", FORMS)
def test_copying_the_question_into_the_box_does_not_win(level: int) -> None:
    env = ArithmeticEnv(level=level)
    for seed in range(5):
        env.reset(seed=seed)
        assert env.task is not None
        _, reward, _, _, info = env.step(f"\\boxed{{{env.task.metadata['expression']}}}")
        assert (reward, info["success"]) == (0.0, False)
        assert info["reward_components"]["correct"] == 0.0


NUMBERS = st.sampled_from(["0", "-0", "7", "007", "-7", "12", "1" * 18, "1" * 19, "7.", "٧"])
PIECES = st.sampled_from(
    ["\\boxed{", "\\fbox{", "\\boxed ", "}", "{", "\\", "####", " = ", "so ", "\n", "x" * 1001]
)


@given(st.lists(st.one_of(NUMBERS, PIECES), max_size=8).map("".join), NUMBERS)
def test_the_short_way_to_a_verdict_never_contradicts_the_long_one(
    completion: str, reference: str
) -> None:
    by_meaning = verify_math(completion, reference)
    worked_out = is_worked_out(extract_answer(completion) or "", reference)
    score = verify_number(completion, reference)
    assert score.success == (by_meaning.success and worked_out)
    assert score.components["answered"] == by_meaning.components["answered"]
    assert score.components.keys() == by_meaning.components.keys()
