"""An adapter that two processes train is that of one, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import grpo_gym
from grpo_gym import checkpoint
from grpo_gym.monitor import read_metrics
from tests.commands import flags
from tests.launching import finish, launch

# As in test_trainer_ranks: a group for each rank, and a group at a time, so that sums have one order.
OPTIONS: dict[str, Any] = {
    "env": "tests.letters:Letters",
    "lora_rank": 4,
    "kl": 0.1,
    "groups_per_step": 2,
    "group_size": 4,
    "max_lanes": 4,
    "max_tokens": 8,
    "tokens_per_micro_batch": 30,
    "patience_s": float("inf"),
    "learning_rate": 1e-2,
    "steps": 3,
}


def found(folder: Path) -> tuple[list[dict[str, float]], dict[str, list[float]]]:
    """Metrics and the adapter of a run."""
    rows = read_metrics(folder / "metrics.jsonl")
    last = checkpoint.latest(folder)
    assert last is not None
    weights = load_file(last / "model" / "adapter_model.safetensors")
    return (
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows],
        {name: value.flatten().tolist() for name, value in weights.items()},
    )


@pytest.mark.slow
def test_two_ranks_train_the_adapter_of_one(tmp_path: Path) -> None:
    words = ["-m", "grpo_gym.cli", "train", *flags(OPTIONS), "--run-dir", "two"]
    ends = finish(launch(2, *words, cwd=tmp_path))
    assert [end[0] for end in ends] == ["0", "0"], ends
    one = grpo_gym.train(run_dir=tmp_path / "one", **OPTIONS)
    rows, adapter = found(one.folder)
    assert all(row["grad_norm"] > 0 for row in rows)
    assert rows[-1]["kl"] > 0
    assert found(tmp_path / "two") == (rows, adapter)
