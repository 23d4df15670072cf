"""What a run says of the policy that sampled: its version on every token, and how far off it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grpo_gym
from grpo_agents import grpo
from grpo_gym.agent import Agent
from grpo_gym.engines.hf import HFEngine
from grpo_gym.monitor import read_metrics
from grpo_gym.objectives.corrections import MIS, TIS
from grpo_gym.types import Completion
from tests.versions import check_versions

RUN: dict[str, Any] = {
    "env": "grpo_gym/Calculator-v0",
    "steps": 3,
    "groups_per_step": 2,
    "group_size": 4,
    "max_tokens": 16,
    "learning_rate": 1e-3,
    "rollouts_every": 1,
}


def test_every_token_has_the_version_that_sampled_it(tmp_path: Path) -> None:
    run = grpo_gym.train(**RUN, run_dir=tmp_path / "run", save_every=2)
    check_versions(run.folder, steps=3)
    grpo_gym.train(run_dir=tmp_path / "run", resume=True, steps=4)
    check_versions(run.folder, steps=4)


@pytest.mark.parametrize(
    ("correction", "kept"),
    [(None, 1.0), (TIS(2.0), 1.0), (MIS(c_max=1.5, level="token"), 0.5)],
    ids=["none", "TIS", "MIS"],
)
def test_a_sampler_that_is_off_shows_in_every_step(
    correction: Any, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other token's log-prob is reported log 2 too low: its weight is then 2, of the others 1."""

    def off(engine: HFEngine) -> list[tuple[int, Completion]]:
        return [(name, lower(completion)) for name, completion in step(engine)]

    def lower(completion: Completion) -> Completion:
        shift = np.log(2) * (np.arange(len(completion.logprobs)) % 2)
        return replace(completion, logprobs=completion.logprobs - shift)

    step = HFEngine.step
    monkeypatch.setattr(HFEngine, "step", off)
    agent: Agent = grpo()
    if correction is not None:
        agent = replace(agent, corrections=(correction,))
    run = grpo_gym.train(
        **RUN | {"env": "grpo_gym/Copy-v0", "max_tokens": 2, "steps": 2},
        agent=agent,
        run_dir=tmp_path / "run",
    )
    rows = read_metrics(run.metrics_path)
    assert len(rows) == 2
    for row in rows:
        twos = row["behaviour_gap"] / np.log(2)  # share of the tokens that are off
        assert 0.1 < twos < 0.51
        assert row["behaviour_gap_max"] == pytest.approx(np.log(2), abs=1e-3)
        assert row["effective_samples"] == pytest.approx((1 + twos) ** 2 / (1 + 3 * twos), abs=1e-3)
        assert row["kept_fraction"] == pytest.approx(1 - twos if kept < 1 else 1, abs=1e-3)
        weight = {"NoneType": 1.0, "TIS": 1 + twos, "MIS": 1 - twos}[type(correction).__name__]
        assert row["importance_weight"] == pytest.approx(weight, abs=1e-3)
