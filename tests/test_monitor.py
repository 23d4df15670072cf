"""What a run records: metrics a step, rollouts to read."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_agents import grpo
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.monitor import (
    Monitor,
    read_metrics,
    rollout_metrics,
    rollout_record,
    to_json,
    write_atomically,
    write_rollouts,
)
from grpo_gym.types import Batch, Completion, Group, Message, Rollout, Turn
from tests.models import tiny_model


def rollout(reward: float = 1.0, tokens: int = 3, **fields: Any) -> Rollout:
    values: dict[str, Any] = {
        "task_id": "t",
        "prompt_ids": [1, 2],
        "token_ids": range(3, 3 + tokens),
        "mask": [True] * tokens,
        "logprobs": [-1.0] * tokens,
        "versions": [0] * tokens,
        "terminated": True,
    }
    return Rollout(reward=reward, **(values | fields))


def lost(error: str = "step raised") -> Rollout:
    return rollout(math.nan, error=error, terminated=False)


def groups(*rewards: Sequence[float]) -> list[Group]:
    return [Group("t", tuple(rollout(reward) for reward in row)) for row in rewards]


def strict(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are none."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


# Metrics.


def test_metrics_are_one_strict_json_object_a_step(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.log(1, {"reward": 0.5, "groups": 4, "loss": np.float32(0.25), "gap": np.float64(1)})
    monitor.log(2, {"reward": math.nan, "loss": math.inf, "kl": -math.inf, "entropy": 2.0})
    lines = monitor.metrics_path.read_text().splitlines()
    assert [strict(line) for line in lines] == read_metrics(monitor.metrics_path)
    assert read_metrics(monitor.metrics_path) == [
        {"step": 1, "reward": 0.5, "groups": 4, "loss": 0.25, "gap": 1.0},
        {"step": 2, "entropy": 2.0},
    ]
    assert lines[0].startswith('{"step": 1, "reward": 0.5, "groups": 4,')


@pytest.mark.parametrize("cut", range(1, 29))
def test_a_last_line_cut_by_a_kill_is_left_out_and_mended_by_rewinding(
    tmp_path: Path, cut: int
) -> None:
    monitor = Monitor(tmp_path)
    for step in (1, 2, 3):
        monitor.log(step, {"reward": float(step)})
    whole = monitor.metrics_path.read_bytes()
    monitor.metrics_path.write_bytes(whole[:-cut])
    steps = [row["step"] for row in read_metrics(monitor.metrics_path)]
    assert steps == ([1, 2, 3] if cut == 1 else [1, 2])
    monitor.rewind(2)
    monitor.log(3, {"reward": 9.0})
    assert [row["reward"] for row in read_metrics(monitor.metrics_path)] == [1.0, 2.0, 9.0]


@pytest.mark.parametrize("line", ["{", "5", "null", '{"reward": 1}', '{"step": "one"}', "\udc80"])
def test_a_damaged_line_within_is_the_users_to_mend(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n'.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"metrics\.jsonl:2: not the metrics of a step"):
        read_metrics(path)


def test_rewinding_forgets_metrics_and_rollouts_of_later_steps_only(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.rewind(0)
    assert list(tmp_path.iterdir()) == []
    for step in range(1, 6):
        monitor.log(step, {"reward": float(step)})
        monitor.save_rollouts(step, groups([1.0]))
    write_rollouts(monitor.rollouts_path / "eval-000005.jsonl", groups([1.0]))
    monitor.rewind(3)
    assert [row["step"] for row in read_metrics(monitor.metrics_path)] == [1, 2, 3]
    names = sorted(path.name for path in monitor.rollouts_path.iterdir())
    assert names == ["eval-000005.jsonl", *(f"step-{step:06d}.jsonl" for step in (1, 2, 3))]


# Rollouts.


def conversation() -> Rollout:
    return rollout(
        math.nan,
        prompt=(Message(role="user", content="2 + 2 = \ud800\u2028?"),),
        turns=(
            Turn(Completion([3], [-1.0], "stop"), "4", (Message(role="tool", content="é"),), 0.0),  # type: ignore[arg-type]
            Turn(Completion([4, 5], [-1.0, -1.0], "stop"), "four", (), math.nan),  # type: ignore[arg-type]
        ),
        reward_components={"answer": math.nan, "format": 0.5, "bonus": math.inf},
        success=False,
    )


def test_a_rollout_is_a_line_of_strict_json_in_ascii(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollouts.jsonl"
    write_rollouts(path, [Group("t", (conversation(), rollout())), *groups([0.0])])
    lines = path.read_bytes().decode("ascii").split("\n")
    assert lines[-1] == ""
    rows = [strict(line) for line in lines[:-1]]
    assert [row["group"] for row in rows] == [0, 0, 1]
    assert rows[0] == {
        "group": 0,
        "task_id": "t",
        "messages": [
            {"role": "user", "content": "2 + 2 = \ud800\u2028?"},
            {"role": "assistant", "content": "4"},
            {"role": "tool", "content": "é"},
            {"role": "assistant", "content": "four"},
        ],
        "reward": None,
        "reward_components": {"answer": None, "format": 0.5, "bonus": None},
        "success": False,
        "terminated": True,
        "truncation": None,
        "error": None,
        "prompt_ids": [1, 2],
        "token_ids": [3, 4, 5],
        "mask": [1, 1, 1],
        "versions": [0, 0, 0],
    }


def test_a_lost_rollout_says_why() -> None:
    record = rollout_record(lost("step raised ValueError: \ud800"))
    assert strict(to_json(record))["error"] == "step raised ValueError: \ud800"
    assert record["terminated"] is False


def test_rollouts_are_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_rollouts(path, groups([1.0]))
    before = path.read_bytes()

    def full(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_rollouts(path, groups([0.0], [0.0]))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "é\n")
    assert (tmp_path / "a").read_bytes() == "é\n".encode()


# Means over rollouts.


def test_means_are_over_the_rollouts_that_did_not_fail() -> None:
    rows = [
        Group("t", (rollout(1.0, 2, success=True), rollout(0.0, 4, success=False), lost())),
        Group(
            "t",
            (
                rollout(math.nan, 6, success=False),
                rollout(
                    0.5, 8, success=True, terminated=False, truncated=True, truncation="context"
                ),
            ),
        ),
    ]
    metrics = rollout_metrics(rows)
    assert metrics == {
        "reward": 0.5,
        "reward_std": pytest.approx(np.std([1.0, 0.0, 0.5])),
        "truncated": 0.25,
        "tokens_per_rollout": 5.0,
        "turns": 0.0,
        "success": 0.5,
    }


def test_success_is_left_out_where_nobody_reports_it() -> None:
    assert "success" not in rollout_metrics(groups([1.0, 0.0]))
    mixed = [Group("t", (rollout(1.0, success=True), rollout(1.0)))]
    assert rollout_metrics(mixed)["success"] == 1.0


def test_parts_of_the_reward_are_averaged_where_they_exist() -> None:
    parts = [
        {"format": 1.0, "never": math.nan},
        {"format": 0.0},
        {"format": math.nan, "answer": 3.0},
    ]
    rows = [Group("t", tuple(rollout(reward_components=part) for part in parts))]
    metrics = rollout_metrics(rows)
    assert metrics["reward/format"] == 0.5
    assert metrics["reward/answer"] == 3.0
    assert math.isnan(metrics["reward/never"])


def test_where_nothing_is_scored_there_is_no_mean(tmp_path: Path) -> None:
    metrics = rollout_metrics(groups([math.nan, math.nan]))
    assert math.isnan(metrics["reward"])
    assert math.isnan(metrics["reward_std"])
    Monitor(tmp_path).log(1, metrics)
    assert "reward" not in read_metrics(tmp_path / "metrics.jsonl")[0]


def test_nothing_but_failures_and_nothing_at_all_have_no_metrics() -> None:
    assert rollout_metrics([]) == {}
    assert rollout_metrics([Group("t", (lost(), lost()))]) == {}


def test_no_metric_of_the_rollouts_bears_the_name_of_one_of_the_update() -> None:
    learner = Learner(tiny_model(), grpo(), OptimiserOptions(learning_rate=1e-3))
    parts = {"answer": 1.0}
    pair = (rollout(1.0, reward_components=parts), rollout(0.0, reward_components=parts))
    rows = (Group("t", tuple(replace(r, success=True) for r in pair)),)
    batch = Batch(rows)
    updated = learner.update(batch, learner.prepare(batch))
    assert not updated.keys() & rollout_metrics(rows).keys()
