"""Which tasks come next."""

from collections import Counter
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_envs.math.arithmetic import ArithmeticEnv
from grpo_gym.curriculum import TaskStream
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task, TaskSource
from grpo_gym.testing.copy import CopyEnv
from tests.playing import Fake


def listed(*splits: str, count: int = 5) -> CopyEnv:
    tasks = [
        Task(f"{split}-{i}", "Say red", "red", split) for split in splits for i in range(count)
    ]
    return CopyEnv(tasks=ListTasks(tasks), split=splits[0])


def ids(stream: TaskStream, count: int) -> list[str]:
    return [(task.options or {})["task_id"] for task in stream.take(count)]


@given(seed=st.integers(0, 2**40), count=st.integers(1, 30))
def test_every_task_of_a_finite_set_comes_once_a_pass(seed: int, count: int) -> None:
    names = [f"t{i}" for i in range(count)]
    stream = TaskStream(seed, split="train", task_ids=names)
    for _ in range(3):
        assert sorted(ids(stream, count)) == sorted(names)


def test_passes_are_shuffled_each_anew_and_by_the_seed() -> None:
    names = [f"t{i}" for i in range(20)]
    orders = [
        ids(stream, 40)
        for seed in (0, 1)
        for stream in [TaskStream(seed, split="s", task_ids=names)]
    ]
    halves = [tuple(half) for order in orders for half in (order[:20], order[20:])]
    assert len({*halves, tuple(names)}) == 5


@given(
    seed=st.integers(0, 99),
    position=st.integers(0, 40),
    counts=st.lists(st.integers(0, 9), max_size=5),
    finite=st.booleans(),
)
def test_a_stream_resumes_by_its_position_alone(
    seed: int, position: int, counts: list[int], finite: bool
) -> None:
    names = ["a", "b", "c", "d", "e"] if finite else None
    whole = TaskStream(seed, split="train", task_ids=names).take(position + sum(counts))
    resumed = TaskStream(seed, split="train", task_ids=names)
    resumed.position = position
    parts = [task for count in counts for task in resumed.take(count)]
    assert parts == whole[position:]
    assert [task.index for task in parts] == list(range(position, position + sum(counts)))
    assert resumed.position == position + sum(counts)


def test_taking_is_as_quick_for_many_tasks_as_for_few() -> None:
    names = [str(i) for i in range(200_000)]
    stream = TaskStream(0, split="train", task_ids=names)
    assert len({(task.options or {})["task_id"] for task in stream.finite(20_000)}) == 20_000


def test_an_endless_environment_gets_a_fresh_seed_for_each_task() -> None:
    stream = TaskStream.of(CopyEnv(), 3, "train")
    assert not stream.is_finite
    tasks = stream.take(1000)
    assert len({task.seed for task in tasks}) == 1000
    assert all(task.options == {"split": "train"} for task in tasks)
    assert tasks == TaskStream.of(CopyEnv(), 3, "train").take(1000)
    assert not {t.seed for t in tasks} & {
        t.seed for t in TaskStream.of(CopyEnv(), 4, "train").take(1000)
    }


def test_seeds_are_such_as_gymnasium_takes() -> None:
    env = CopyEnv()
    for task in TaskStream.of(env, 2**33, "train").take(20):
        env.reset(seed=task.seed, options=task.options)


class Theirs(Fake):
    """Has an attribute `tasks` that means something else."""

    tasks: ClassVar[Any] = ["clean", "cook"]


@pytest.mark.parametrize("env", [Fake(), Theirs(), gymnasium.wrappers.TimeLimit(Theirs(), 3)])
def test_an_environment_of_somebody_else_gets_seeds_and_no_options(env: Any) -> None:
    for stream in (TaskStream.of(env, 0, "train"), TaskStream.evaluation(env, 0, None)):
        assert not stream.is_finite
        assert all(task.options is None for task in stream.take(5))


def test_a_wrapped_environment_of_ours_keeps_its_tasks() -> None:
    env: Any = gymnasium.wrappers.TimeLimit(listed("train"), 3)
    assert Counter(ids(TaskStream.of(env, 0, "train"), 10)) == {f"train-{i}": 2 for i in range(5)}


def test_tasks_of_the_stream_are_playable() -> None:
    env = ArithmeticEnv()
    for stream in (TaskStream.of(env, 0, "train"), TaskStream.evaluation(env, 0, None)):
        for task in stream.take(5):
            _, info = env.reset(seed=task.seed, options=task.options)
            assert info["task_id"].startswith((task.options or {})["split"])


# Evaluation.


def test_finite_evaluation_tasks_are_different_and_always_the_same() -> None:
    stream = TaskStream.evaluation(listed("train", "test"), 0, None)
    assert stream.is_finite
    few, all_of_them = stream.finite(3), stream.finite(10**9)
    assert few == all_of_them[:3]
    assert sorted((t.options or {})["task_id"] for t in all_of_them) == [
        f"test-{i}" for i in range(5)
    ]
    assert stream.position == 0
    assert len(TaskStream.evaluation(CopyEnv(), 0, None).finite(7)) == 7


@pytest.mark.parametrize(
    ("env", "split", "expected"),
    [
        (listed("train", "test"), None, "test"),
        (listed("train", "test"), "train", "train"),
        (listed("train"), None, "train"),
        (listed("dev", "train"), None, "dev"),
        (CopyEnv(), None, "test"),
        (CopyEnv(), "train", "train"),
    ],
)
def test_evaluation_takes_the_split_asked_for_else_test_else_the_environments_own(
    env: CopyEnv, split: str | None, expected: str
) -> None:
    tasks = TaskStream.evaluation(env, 0, split).finite(3)
    assert [(task.options or {})["split"] for task in tasks] == [expected] * 3


# Mistakes.


def test_an_unknown_split_is_the_users_to_mend() -> None:
    with pytest.raises(UsageError, match="dev"):
        TaskStream.of(listed("train"), 0, "dev")
    with pytest.raises(UsageError, match="dev"):
        TaskStream.evaluation(listed("train"), 0, "dev")


def test_a_split_of_an_environment_without_splits_is_the_users_to_mend() -> None:
    with pytest.raises(UsageError, match="no splits, so 'test'"):
        TaskStream.evaluation(Fake(), 0, "test")


def test_a_split_without_tasks_is_the_users_to_mend() -> None:
    class Nothing:
        def task_ids(self, split: str) -> list[str]:
            return []

        def draw(self, rng: np.random.Generator, split: str) -> Task:
            raise AssertionError

        def get(self, task_id: str) -> Task:
            raise AssertionError

    source: TaskSource = Nothing()
    with pytest.raises(UsageError, match="'train' has no tasks"):
        TaskStream.of(CopyEnv(tasks=source), 0, "train")


def test_a_negative_seed_is_the_users_to_mend() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        TaskStream(-1)
