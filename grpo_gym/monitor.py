"""What a run records: named metrics, one JSON object a step, and rollouts as text."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_gym.errors import UsageError
from grpo_gym.types import Group, Rollout


class Monitor:
    """Appends to `metrics.jsonl` and writes `rollouts/step-N.jsonl` in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.metrics_path = folder / "metrics.jsonl"
        self.rollouts_path = folder / "rollouts"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step; a number that does not exist is left out."""
        numbers = {
            name: value if isinstance(value, int) else float(value)
            for name, value in metrics.items()
            if math.isfinite(value)
        }
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(to_json({"step": step} | numbers) + "\n")

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step, since it is about to be done again."""
        if self.metrics_path.exists():
            rows = read_metrics(self.metrics_path)
            write_lines(self.metrics_path, [row for row in rows if row["step"] <= step])
        for path in self.rollouts_path.glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > step:
                path.unlink()

    def save_rollouts(self, step: int, groups: Sequence[Group]) -> Path:
        """Write every rollout of a step as a line of JSON."""
        path = self.rollouts_path / f"step-{step:06d}.jsonl"
        write_rollouts(path, groups)
        return path


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that was cut short by a kill is left out.

    Raises:
        UsageError: Another line is damaged.
    """
    lines = path.read_bytes().splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        elif number < len(lines):
            raise UsageError(f"{path}:{number}: not the metrics of a step; mend or remove the line")
    return rows


def write_rollouts(path: Path, groups: Sequence[Group]) -> None:
    """Write rollouts as JSON lines: task, conversation, rewards, how it ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        {"group": number} | rollout_record(rollout)
        for number, group in enumerate(groups)
        for rollout in group.rollouts
    ]
    write_lines(path, records)


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as JSON lines, all or nothing."""
    write_atomically(path, "".join(to_json(record) + "\n" for record in records))


def rollout_record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON: what a person wants to read, and the token ids."""
    messages: list[dict[str, Any]] = [dict(message) for message in rollout.prompt]
    for turn in rollout.turns:
        messages.append({"role": "assistant", "content": turn.action})
        messages += [dict(message) for message in turn.observation]
    record = {
        "task_id": rollout.task_id,
        "messages": messages,
        "reward": rollout.reward,
        "reward_components": dict(rollout.reward_components),
        "success": rollout.success,
        "terminated": rollout.terminated,
        "truncation": rollout.truncation,
        "error": rollout.error,
        "prompt_ids": rollout.prompt_ids.tolist(),
        "token_ids": rollout.token_ids.tolist(),
        "mask": rollout.mask.astype(int).tolist(),
        "versions": rollout.versions.tolist(),
    }
    if rollout.counted_tokens is not None:
        record["counted_tokens"] = rollout.counted_tokens
    return record


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the rollouts of a step that did not fail; docs/metrics.md describes each.

    A part of the reward is averaged over the rollouts that have it; nan stands for no rollout at all.
    """
    alive = [r for group in groups for r in group.rollouts if r.error is None]
    if not alive:
        return {}
    rewards = [rollout.reward for rollout in alive]
    mean = _mean(rewards)
    metrics = {
        "reward": mean,
        "reward_std": math.sqrt(_mean([(reward - mean) ** 2 for reward in rewards])),
        "truncated": _mean([rollout.truncated for rollout in alive]),
        "tokens_per_rollout": _mean([rollout.sampled_tokens for rollout in alive]),
        "turns": _mean([len(rollout.turns) for rollout in alive]),
    }
    known = [rollout.success for rollout in alive if rollout.success is not None]
    if known:
        metrics["success"] = _mean(known)
    for name in sorted({name for rollout in alive for name in rollout.reward_components}):
        parts = [rollout.reward_components.get(name, math.nan) for rollout in alive]
        metrics[f"reward/{name}"] = _mean(parts)
    return metrics


def to_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """A record as strict JSON: a number that does not exist is null, and so is an infinite one."""
    return json.dumps(_finite(record), indent=indent, allow_nan=False)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a kill leaves the old one or the new one."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _mean(values: Sequence[float | bool]) -> float:
    """The mean of the values that are not nan; nan if there is none."""
    numbers = np.array([float(value) for value in values])
    numbers = numbers[~np.isnan(numbers)]
    return float(numbers.mean()) if len(numbers) else math.nan
