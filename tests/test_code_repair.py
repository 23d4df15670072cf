"""CodeRepair: bugs that are real, feedback that shows the public test alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_envs.catalogue import SAMPLES
from grpo_envs.code.base import problem_of
from grpo_envs.code.bugs import FUNCTIONS, HIDDEN, broken_function, outcome
from grpo_envs.code.function import Function
from grpo_envs.code.problem import Problem, feedback, fenced
from grpo_envs.code.repair import CodeRepairEnv
from grpo_gym.sandbox import probe
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.types import as_messages
from grpo_gym.verifiers.code import Case, CodeReport, make_score

needs_sandbox = pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_every_bug_changes_the_source_once_and_differently(function: Function) -> None:
    broken = [function.source.replace(old, new, 1) for old, new in function.bugs]
    assert function.source not in broken
    assert len(set(broken)) == len(broken)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_every_bug_can_be_seen_whatever_the_numbers(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bug in function.bugs:
        one = Function(function.name, function.asked, function.source, (bug,), function.draw)
        monkeypatch.setattr("grpo_envs.code.bugs.FUNCTIONS", (one,))
        for seed in range(12):
            _, right, metadata = broken_function(np.random.default_rng(seed))
            problem: Problem = metadata["problem"]
            assert problem.public == 1
            assert len(problem.tests) == HIDDEN + 1
            assert passes(right, problem.tests) == [True] * (HIDDEN + 1)
            assert not passes(metadata["broken"], problem.tests)[0]


def passes(source: str, tests: tuple[str, ...]) -> list[bool]:
    scope: dict[str, Any] = {}
    exec(source, scope)
    return [outcome(lambda test=test: exec(test, scope), ())[1] is None for test in tests]


def test_a_task_is_a_function_of_its_seed() -> None:
    first, again, other = (broken_function(np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def task(*, public: int) -> Task:
    tests = ("assert f(1) == 2", "assert f(707) == 808", "assert f(3) == 4")
    problem = Problem(tests=tests, entry_points=("f",), public=public)
    return Task("t", "Write f.", "", "train", {"problem": problem})


def tell(action: str, *, public: int = 1) -> str:
    env = CodeRepairEnv(tasks=ListTasks([task(public=public)]))
    env.reset()
    observation, reward, terminated, truncated, _ = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    (message,) = as_messages(observation)
    return message["content"]


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("def f(n): return n", "This test fails:\nassert f(1) == 2\ngot 1"),
        (
            "def f(n): return n / 0",
            "This test fails:\nassert f(1) == 2\nZeroDivisionError: division by zero",
        ),
        (
            "def g(n): return n",
            "This test fails:\nassert f(1) == 2\nNameError: name 'f' is not defined",
        ),
        ("def f(n): return", "This test fails:\nassert f(1) == 2\ngot None"),
        (
            "def f(n): return [object()]",
            "This test fails:\nassert f(1) == 2\ngot [<object object at 0x...>]",
        ),
        ("def f(n) return", "This test fails:\nassert f(1) == 2\nSyntaxError: expected ':'"),
    ],
)
def test_the_first_public_failure_is_shown(program: str, told: str) -> None:
    assert tell(fenced(program)) == told


@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "def f(n): return 2",
        "def f(n):\n    if n > 1: raise ValueError(f'the input was {n}')\n    return 2",
        "def f(n): return {1: 2}[n]",
        "import os\ndef f(n): return 2 if n == 1 else os._exit(1)",
    ],
)
def test_of_a_hidden_failure_nothing_is_shown(program: str) -> None:
    told = tell(fenced(program))
    assert told == (
        "The tests that you know pass, but a hidden test fails. "
        "Think of other inputs, and write the program again."
    )


@needs_sandbox
def test_without_public_tests_nothing_is_shown() -> None:
    told = tell(fenced("def f(n): return n"), public=0)
    assert told.startswith("A hidden test fails.")
    assert not any(character.isdigit() for character in told)


@needs_sandbox
def test_what_is_shown_is_short() -> None:
    told = tell(fenced("def f(n): raise ValueError('long ' * 100000)"))
    assert len(told) < 600
    assert len(tell(fenced("def f(n): return 'long ' * 100000"))) < 600


def test_a_case_is_shown_by_input_and_output() -> None:
    problem = Problem(cases=(Case("3\n", "6\n"), Case("707\n", "808\n")), public=1)
    score = make_score(0.0, 0.0, False)
    first = feedback(problem, CodeReport(score, "wrong output", 0))
    assert "3\n" in first
    assert "6\n" in first
    assert "wrong output" in first
    assert "707" not in feedback(problem, CodeReport(score, "ValueError: 707", 1))
    assert "cannot be tested" in feedback(problem, CodeReport(score, "why", None))


@needs_sandbox
def test_the_turns_end() -> None:
    env = CodeRepairEnv(tasks=ListTasks([task(public=1)]), max_turns=2)
    env.reset()
    env.step(fenced("def f(n): return n"))
    _, reward, terminated, truncated, info = env.step(fenced("def f(n): return n"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["truncation"] == "max_turns"


@needs_sandbox
def test_the_last_turn_earns_its_share_when_asked_for() -> None:
    env = CodeRepairEnv(tasks=ListTasks([task(public=1)]), max_turns=2, partial=True)
    env.reset()
    rewards = [env.step(fenced("def f(n): return n + 1"))[1] for _ in range(2)]
    assert rewards == [0.0, pytest.approx(2 / 3)]


@needs_sandbox
def test_a_later_try_can_win() -> None:
    env = CodeRepairEnv(tasks=ListTasks([task(public=1)]))
    env.reset()
    env.step("I do not know.")
    _, reward, terminated, _, info = env.step(fenced("def f(n): return 808 if n == 707 else n + 1"))
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@needs_sandbox
def test_tests_that_cannot_be_run_are_no_verdict() -> None:
    problem = Problem(tests=("assert f() == 1",), setup="1 / 0", entry_points=("f",), public=1)
    broken = Task("t", "Write f.", "", "train", {"problem": problem})
    env = CodeRepairEnv(tasks=ListTasks([broken]))
    env.reset()
    _, reward, terminated, _, info = env.step(fenced("def f(): return 1"))
    assert np.isnan(reward)
    assert terminated
    assert info["success"] is False


@needs_sandbox
def test_problems_of_mbpp_can_be_written_in_turns() -> None:
    env = CodeRepairEnv(path=SAMPLES / "MBPP-v0.jsonl")
    observation, _ = env.reset(options={"task_id": "MBPP/602"})
    assert "peaks([1, 5, 2, 7, 3]) == [5, 7]" in as_messages(observation)[-1]["content"]
    assert env.task is not None
    observation, *_ = env.step(fenced("def peaks(numbers): return [5, 7]"))
    assert "hidden test" in as_messages(observation)[0]["content"]
    _, reward, *_ = env.step(env.solution(env.task)[0])
    assert reward == 1.0


@needs_sandbox
def test_the_solution_shows_a_failure_before_it_mends_it(tmp_path: Path) -> None:
    env = CodeRepairEnv()
    env.reset(seed=5)
    assert env.task is not None
    first, second = env.solution(env.task)
    observation, reward, *_ = env.step(first)
    assert reward == 0.0
    assert problem_of(env.task).tests[0] in json.dumps(as_messages(observation)).replace('\\"', '"')
    assert env.step(second)[1] == 1.0
