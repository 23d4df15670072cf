"""Whole runs that sample with vLLM in the process."""

import importlib.util
from pathlib import Path

import pytest

import grpo_gym
from grpo_gym.monitor import read_metrics
from tests.versions import check_versions

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Arithmetic", "Calculator"])
def test_a_run(env: str, tmp_path: Path) -> None:
    run = grpo_gym.train(
        env=f"grpo_gym/{env}-v0",
        engine="vllm",
        steps=2,
        groups_per_step=4,
        group_size=4,
        max_tokens=24,
        rollouts_every=1,
        run_dir=tmp_path / "run",
    )
    check_versions(run.folder, steps=2)
    for row in read_metrics(run.metrics_path):
        assert row["kept_fraction"] == 1
        assert 0 < row["sync_gap"] < 1e-4
        assert row["behaviour_gap_max"] < 1e-4
        assert row["effective_samples"] == pytest.approx(1)
