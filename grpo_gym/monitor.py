"""What a run records: named metrics, one JSON object a step, and rollouts as text."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_gym.types import Group, Rollout


class Monitor:
    """Appends to `metrics.jsonl` and writes `rollouts/step-N.jsonl` in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.metrics_path = folder / "metrics.jsonl"
        self.rollouts_path = folder / "rollouts"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step; a number that does not exist is left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | finite) + "\n")

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step, since it is about to be done again."""
        if not self.metrics_path.exists():
            return
        kept = [json.dumps(row) for row in read_metrics(self.metrics_path) if row["step"] <= step]
        write_atomically(self.metrics_path, "".join(line + "\n" for line in kept))

    def save_rollouts(self, step: int, groups: Sequence[Group]) -> Path:
        """Write every rollout of a step as a line of JSON."""
        self.rollouts_path.mkdir(exist_ok=True)
        path = self.rollouts_path / f"step-{step:06d}.jsonl"
        write_rollouts(path, groups)
        return path


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that was cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def write_rollouts(path: Path, groups: Sequence[Group]) -> None:
    """Write rollouts as JSON lines: task, conversation, rewards, how it ended."""
    lines = [
        json.dumps({"group": number} | rollout_record(rollout))
        for number, group in enumerate(groups)
        for rollout in group.rollouts
    ]
    write_atomically(path, "".join(line + "\n" for line in lines))


def rollout_record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON: what a person wants to read, and the token ids."""
    messages: list[dict[str, Any]] = [dict(message) for message in rollout.prompt]
    for turn in rollout.turns:
        messages.append({"role": "assistant", "content": turn.action})
        messages += [dict(message) for message in turn.observation]
    return {
        "task_id": rollout.task_id,
        "messages": messages,
        "reward": None if math.isnan(rollout.reward) else rollout.reward,
        "reward_components": dict(rollout.reward_components),
        "success": rollout.success,
        "terminated": rollout.terminated,
        "truncation": rollout.truncation,
        "error": rollout.error,
        "prompt_ids": rollout.prompt_ids.tolist(),
        "token_ids": rollout.token_ids.tolist(),
        "mask": rollout.mask.astype(int).tolist(),
    }


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the rollouts of a step; every one is described in docs/metrics.md."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    alive = [rollout for rollout in rollouts if rollout.error is None]
    if not alive:
        return {}
    rewards = np.array([rollout.reward for rollout in alive])
    scored = rewards[~np.isnan(rewards)]
    spreads = [np.ptp(r[~np.isnan(r)]) if not np.isnan(r).all() else 0.0 for r in _rewards(groups)]
    metrics = {
        "reward": float(scored.mean()) if len(scored) else math.nan,
        "reward_std": float(scored.std()) if len(scored) else math.nan,
        "reward_unscored": float(np.isnan(rewards).mean()),
        "truncated": _mean([rollout.truncated for rollout in alive]),
        "tokens_per_rollout": _mean([rollout.sampled_tokens for rollout in alive]),
        "turns": _mean([len(rollout.turns) for rollout in alive]),
        "groups_without_spread": _mean([spread == 0 for spread in spreads]),
    }
    known = [rollout.success for rollout in alive if rollout.success is not None]
    if known:
        metrics["success"] = _mean(known)
    names = sorted({name for rollout in alive for name in rollout.reward_components})
    for name in names:
        values = [rollout.reward_components.get(name, 0.0) for rollout in alive]
        metrics[f"reward/{name}"] = float(np.nanmean(values)) if not all_nan(values) else math.nan
    return metrics


def all_nan(values: Sequence[float]) -> bool:
    """Whether there is no number among the values."""
    return all(math.isnan(value) for value in values)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a kill leaves the old one or the new one."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(text, encoding="utf-8")
    hidden.replace(path)


def _rewards(groups: Sequence[Group]) -> list[Any]:
    return [group.rewards for group in groups]


def _mean(values: Sequence[float | bool]) -> float:
    return float(np.mean([float(value) for value in values]))
