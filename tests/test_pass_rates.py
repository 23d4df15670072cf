"""A stream of tasks filtered by how often the policy solves them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym.curriculum import TaskStream
from grpo_gym.errors import UsageError
from grpo_gym.pass_rates import Band, FilteredStream
from grpo_gym.types import Group, Rollout

NAMES = ("a", "b", "c", "d")


def stream(seed: int = 0, **band: Any) -> FilteredStream:
    tasks = TaskStream(seed, split="train", task_ids=NAMES)
    return FilteredStream(tasks, Band(**{"tries": 2, **band}))


def ids(stream: FilteredStream, count: int) -> list[str]:
    return [(task.options or {})["task_id"] for task in stream.take(count)]


def rollout(task_id: str, success: bool | None, error: str | None = None) -> Rollout:
    nothing: Any = np.empty(0)
    return Rollout(
        task_id,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        success=success,
        error=error,
        reward=0.0 if error is None else float("nan"),
    )


@given(st.integers(0, 99), st.integers(0, 30))
def test_with_nothing_seen_it_is_the_stream_itself(seed: int, count: int) -> None:
    plain = TaskStream(seed, split="train", task_ids=NAMES)
    assert stream(seed).take(count) == plain.take(count)


def test_tasks_that_are_always_or_never_solved_are_left_out() -> None:
    tasks = stream()
    ids(tasks, 4)
    for name, passes in zip(NAMES, (0, 1, 2, 1), strict=True):
        tasks.observe(name, passes, 2)
    assert sorted(ids(tasks, 4)) == ["b", "b", "d", "d"]
    assert tasks.position == 12


def test_a_task_is_not_judged_by_too_few_rollouts() -> None:
    tasks = stream(tries=4)
    tasks.observe("a", 0, 3)
    assert sorted(ids(tasks, 4)) == list(NAMES)
    tasks.observe("a", 0, 1)
    assert "a" not in ids(tasks, 6)


def test_what_was_seen_is_forgotten_after_some_passes() -> None:
    tasks = stream(refresh=2)
    tasks.observe("a", 0, 2)
    assert [ids(tasks, 3).count("a") for _ in range(2)] == [0, 0]
    assert sorted(ids(tasks, 4)) == list(NAMES)
    tasks.observe("a", 1, 2)  # counted anew, not added to what was forgotten
    assert tasks.seen["a"].tries == 2
    assert "a" in ids(tasks, 4)


def test_a_stream_of_hopeless_tasks_begins_again() -> None:
    tasks = stream(refresh=99)
    for name in NAMES:
        tasks.observe(name, 0, 2)
    assert sorted(ids(tasks, 4)) == list(NAMES)
    assert tasks.seen == {}


def test_the_band_includes_its_ends() -> None:
    band = Band(low=0.25, high=0.75, tries=4)
    tasks = FilteredStream(TaskStream(0, split="train", task_ids=NAMES), band)
    for name, passes in zip(NAMES, (0, 1, 3, 4), strict=True):
        tasks.observe(name, passes, 4)
    assert sorted(ids(tasks, 2)) == ["b", "c"]


def test_groups_are_counted_by_their_verdicts() -> None:
    tasks = stream()
    rollouts = [rollout("a", True), rollout("a", False), rollout("a", None)]
    tasks.observe_groups([Group("a", (*rollouts, rollout("a", None, "broken")))])
    tasks.observe_groups([Group("b", (rollout("b", None),))])
    assert {name: (s.passes, s.tries) for name, s in tasks.seen.items()} == {"a": (1, 2)}


EVENTS = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(NAMES), st.integers(0, 2)), max_size=12
)


@given(st.integers(0, 9), EVENTS, st.integers(0, 12))
def test_it_resumes_from_its_state(seed: int, events: list[Any], cut: int) -> None:
    def run(tasks: FilteredStream, part: list[Any]) -> list[Any]:
        taken: list[Any] = []
        for count, name, passes in part:
            taken += tasks.take(count)
            tasks.observe(name, passes, 2)
        return taken

    whole, first, second = (stream(seed, refresh=1) for _ in range(3))
    expected = run(whole, events)
    before = run(first, events[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    assert before + run(second, events[cut:]) == expected
    assert second.state() == whole.state()


@pytest.mark.parametrize(
    "state", [{}, {"position": 1}, {"position": 1, "seen": {"a": [1]}}, {"position": 1, "seen": 3}]
)
def test_a_state_that_is_none_is_refused(state: dict[str, Any]) -> None:
    tasks = stream()
    with pytest.raises(UsageError, match="not the state"):
        tasks.restore(state)
    assert tasks.position == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Band(low=0.6, high=0.5), "low <= high"),
        (lambda: Band(low=float("nan")), "low <= high"),
        (lambda: Band(tries=0), "at least 1"),
        (lambda: Band(refresh=0), "at least 1"),
        (lambda: FilteredStream(TaskStream(0, split="train")), "finite"),
        (lambda: stream().observe("a", 3, 2), "3 of 2"),
    ],
)
def test_senseless_use_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
