"""pass@k, its intervals, and what an evaluation refuses."""

import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from grpo_gym.curriculum import TaskSpec, TaskStream
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import (
    Evaluation,
    bootstrap,
    pass_at_k,
    print_table,
    run_evaluation,
    summarise,
    write_json,
)
from grpo_gym.testing.copy import CopyEnv
from grpo_gym.types import Group, Rollout
from tests.playing import Fake, collector, scripted, specs


def rollout(
    success: bool | None,
    task: str = "t",
    reward: float = 0.0,
    error: str | None = None,
    **fields: Any,
) -> Rollout:
    return Rollout(
        task_id=task,
        prompt_ids=[1],  # type: ignore[arg-type]
        token_ids=[2, 3],  # type: ignore[arg-type]
        mask=[True, True],  # type: ignore[arg-type]
        logprobs=[-1, -1],  # type: ignore[arg-type]
        versions=[0, 0],  # type: ignore[arg-type]
        success=success,
        reward=math.nan if error else reward,
        error=error,
        **fields,
    )


def group(task: str, successes: int, n: int, failed: int = 0) -> Group:
    played = [rollout(i < successes, task, float(i < successes)) for i in range(n - failed)]
    return Group(task, tuple(played + [rollout(None, task, error="broken")] * failed))


# pass@k.


@settings(max_examples=60)
@given(st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_success(
    data: st.DataObject,
) -> None:
    n = data.draw(st.integers(1, 9))
    k = data.draw(st.integers(1, n))
    successes = data.draw(st.integers(0, n))
    outcomes = [i < successes for i in range(n)]
    choices = [any(choice) for choice in itertools.combinations(outcomes, k)]
    assert pass_at_k(successes, n, k) == pytest.approx(sum(choices) / len(choices))


@given(n=st.integers(1, 3000), data=st.data())
def test_pass_at_k_is_a_probability_for_any_size(n: int, data: st.DataObject) -> None:
    k, successes = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    value = pass_at_k(successes, n, k)
    assert 0 <= value <= 1
    assert (value == 0) == (successes == 0)
    assert pass_at_k(successes, n, 1) == pytest.approx(successes / n)
    if k > 1:
        assert value >= pass_at_k(successes, n, k - 1)


@pytest.mark.parametrize(
    ("n", "k", "says"), [(4, 5, "at least 5 rollouts of each task, but n is 4"), (4, 0, "k is 0")]
)
def test_k_must_be_within_n(n: int, k: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pass_at_k(0, n, k)


@pytest.mark.parametrize("successes", [-1, 5])
def test_there_are_no_more_successes_than_rollouts(successes: int) -> None:
    with pytest.raises(ValueError, match="in 4 rollouts"):
        pass_at_k(successes, 4, 1)


# Intervals.

shares = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.875, 1.0]), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(values=shares, seed=st.integers(0, 5))
def test_an_interval_holds_its_mean_and_stays_within_0_and_1(
    values: list[float], seed: int
) -> None:
    array = np.array(values)
    estimate = bootstrap(array, resamples=200, seed=seed)
    assert estimate.mean == pytest.approx(np.mean(values))
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate == bootstrap(array, resamples=200, seed=seed)


def test_an_interval_has_the_width_that_the_normal_approximation_gives() -> None:
    values = np.random.default_rng(0).random(400)
    estimate = bootstrap(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_intervals_shrink_with_more_tasks_and_grow_with_confidence() -> None:
    def width(tasks: int, confidence: float = 0.95) -> float:
        values = np.arange(tasks) % 2.0
        estimate = bootstrap(values, confidence=confidence)
        return estimate.high - estimate.low

    assert width(1600) == pytest.approx(width(400) / 2, rel=0.15)
    assert width(400) == pytest.approx(width(100) / 2, rel=0.15)
    assert width(100, 0.8) < width(100, 0.95) < width(100, 0.99)


@pytest.mark.parametrize("tasks", [1, 10, 100, 1000])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_where_all_tasks_are_equal_the_interval_is_that_of_the_rule_of_three(
    tasks: int, value: float
) -> None:
    estimate = bootstrap(np.full(tasks, value))
    far = estimate.high if value == 0 else 1 - estimate.low
    assert estimate.mean == value == (estimate.low if value == 0 else estimate.high)
    assert (1 - far) ** tasks == pytest.approx(0.05)
    if tasks >= 100:
        assert far == pytest.approx(3 / tasks, rel=0.05)


@pytest.mark.slow
def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        values = (rng.random((60, 8)) < rng.random((60, 1))).mean(axis=1)
        estimate = bootstrap(values, resamples=400)
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.90 <= covered / 200 <= 0.99


# Groups of rollouts.


def test_a_summary_of_groups() -> None:
    groups = [group("a", 4, 4), group("b", 1, 4), group("c", 0, 4)]
    result = summarise("env", groups, n=4, k=(1, 2))
    assert (result.env, result.tasks, result.n) == ("env", 3, 4)
    assert result.pass_at[1].mean == pytest.approx(5 / 12)
    assert result.pass_at[2].mean == pytest.approx((1 + 0.5 + 0) / 3)
    assert result.reward == pytest.approx(5 / 12)
    assert result.tokens == 2.0
    assert result.successes == {"a": (4, 4), "b": (1, 4), "c": (0, 4)}
    assert str(result).splitlines()[0] == "env: 3 tasks x 4 rollouts"
    assert str(result).splitlines()[1].startswith("pass@1 0.417 [")


def test_groups_of_the_same_task_are_pooled() -> None:
    groups = [group("a", 4, 4), group("b", 2, 4), group("a", 0, 4)]
    result = summarise("env", groups, n=4, k=(1, 4))
    assert result.tasks == 2
    assert result.successes == {"a": (4, 8), "b": (2, 4)}
    assert result.pass_at[1].mean == 0.5
    assert result.pass_at[4].mean == pytest.approx((pass_at_k(4, 8, 4) + 1) / 2)


def test_success_counts_and_never_a_reward_above_0() -> None:
    rows = tuple(rollout(False, reward=1.0) for _ in range(4))
    result = summarise("env", [Group("t", rows)], n=4, k=(1,))
    assert result.pass_at[1].mean == 0.0
    assert result.reward == 1.0


def test_an_environment_that_reports_no_success_is_refused() -> None:
    rows = tuple(rollout(None, reward=1.0) for _ in range(4))
    with pytest.raises(UsageError, match=r"env does not report info\['success'\]"):
        summarise("env", [Group("t", rows)], n=4, k=(1,))


def test_failures_are_excluded_from_everything() -> None:
    groups = [group("a", 2, 4, failed=1), group("b", 0, 4)]
    result = summarise("env", groups, n=4, k=(1, 2), failures=1)
    assert result.failures == 1
    assert result.successes == {"a": (2, 3), "b": (0, 4)}
    assert result.pass_at[1].mean == pytest.approx((2 / 3 + 0) / 2)
    assert result.pass_at[2].mean == pytest.approx((1 + 0) / 2)
    assert result.reward == pytest.approx(2 / 7)
    assert result.unscored == 0


def test_a_task_with_too_few_rollouts_left_is_left_out() -> None:
    groups = [group("a", 2, 4, failed=2), group("b", 0, 4)]
    assert summarise("env", groups, n=4, k=(1, 3)).successes == {"b": (0, 4)}
    with pytest.raises(UsageError, match="no task has 4 rollouts that did not fail"):
        summarise("env", groups[:1], n=4, k=(4,))
    with pytest.raises(UsageError, match="no task has 1 rollouts"):
        summarise("env", [], n=4, k=(1,))


def test_rollouts_that_cannot_be_scored_are_counted_and_not_solved() -> None:
    rows = (
        rollout(False, reward=math.nan),
        rollout(True, reward=0.5),
        rollout(False, reward=math.nan, truncated=True, truncation="context"),
    )
    result = summarise("env", [Group("t", rows)], n=3, k=(1,))
    assert result.unscored == 2
    assert result.reward == 0.5
    assert result.truncated == pytest.approx(1 / 3)
    assert result.pass_at[1].mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("k", [(), (5,), (1, 5), (0,), (-1,)])
def test_values_of_k_are_checked(k: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        summarise("env", [group("a", 1, 4)], n=4, k=k)


# On paper.


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    rows = tuple(rollout(False, reward=math.nan) for _ in range(2))
    result = summarise("env", [Group("t\ud800", tuple(_named(r) for r in rows))], n=2, k=(1, 2))
    assert math.isnan(result.reward)
    write_json(result, tmp_path / "eval.json")
    text = (tmp_path / "eval.json").read_bytes().decode("ascii")
    assert "NaN" not in text
    read = json.loads(text)
    assert read["reward"] is None
    assert read["pass_at"]["1"] == {"mean": 0.0, "low": 0.0, "high": pytest.approx(0.95)}
    assert read["successes"] == {"t\ud800": [0, 2]}
    assert read.keys() == set(Evaluation.__dataclass_fields__)


def _named(one: Rollout) -> Rollout:
    return rollout(one.success, "t\ud800", one.reward)


def printed(evaluations: dict[str, Evaluation]) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    print_table(evaluations, console)
    return console.export_text()


def test_a_table_sets_evaluations_side_by_side() -> None:
    before = summarise("env", [group("a", 1, 4)], n=4, k=(1, 4))
    after = summarise("env", [group("a", 4, 4, failed=1)], n=4, k=(1, 2), failures=1)
    text = printed({"before": before, "after": after})
    for word in (
        "before",
        "after",
        "pass@1",
        "0.250",
        "pass@2",
        "pass@4",
        "lost to failures",
        "95%",
    ):
        assert word in text
    assert "lost" not in printed({"before": before})


# Played.


def test_an_evaluation_plays_n_rollouts_of_every_task() -> None:
    tasks = TaskStream.evaluation(CopyEnv(words=("red", "blue")), 0, None).finite(30)
    script = scripted(["red", "red", "blue"])
    play = collector(lambda: CopyEnv(words=("red", "blue")), script, copies=3)
    result, groups = run_evaluation("copy", play, tasks, n=3, k=(1, 3), seed=0)
    assert len(groups) == result.tasks == 30
    assert {n for _, n in result.successes.values()} == {3}
    solved = {g.task_id: sum(bool(r.success) for r in g.rollouts) for g in groups}
    assert {task: c for task, (c, _) in result.successes.items()} == solved
    assert result.pass_at[3].mean == 1.0
    assert 1 / 3 <= result.pass_at[1].mean <= 2 / 3


def test_bad_values_of_k_and_n_are_found_before_anything_is_played() -> None:
    def make() -> Fake:
        raise AssertionError("nobody should play")

    with pytest.raises(UsageError, match="pass@8"):
        run_evaluation("env", collector(make, copies=4), specs(2), n=4, k=(1, 8), seed=0)
    with pytest.raises(ValueError, match="n is 8, but the collector plays 4"):
        run_evaluation("env", collector(make, copies=4), specs(2), n=8, k=(1,), seed=0)


def test_a_task_that_comes_twice_is_played_twice_and_differently() -> None:
    def start(env: Fake) -> Any:
        return "question", {"task_id": "the only one"}

    engine = scripted()
    tasks = [TaskSpec(0, 1), TaskSpec(1, 2)]
    play = collector(lambda: Fake(start=start), engine, copies=2)
    result, _ = run_evaluation("env", play, tasks, n=2, k=(1,), seed=0)
    assert result.tasks == 1
    assert result.successes == {"the only one": (4, 4)}
    assert len({request.seed for request in engine.requests}) == 4


def test_failing_environments_are_counted_in_the_result() -> None:
    calls = iter(range(100))

    def step(env: Fake, action: str) -> Any:
        if next(calls) == 0:
            raise RuntimeError("once")
        return "", 1.0, True, False, {"success": True}

    play = collector(lambda: Fake(step), copies=4)
    result, _ = run_evaluation("env", play, specs(2), n=4, k=(1,), seed=0)
    assert result.failures == 1
    assert sorted(n for _, n in result.successes.values()) == [3, 4]
    assert result.pass_at[1].mean == 1.0
