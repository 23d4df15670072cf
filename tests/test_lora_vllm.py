"""Adapters and float32 heads on vLLM: it samples from base and adapter together."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grpo_gym
from grpo_gym.adapting import merge_into_folder
from grpo_gym.monitor import read_metrics
from grpo_gym.runs import Run

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

SMALL: dict[str, Any] = {
    "env": "grpo_gym/Arithmetic-v0",
    "model": "tiny",
    "engine": "vllm",
    "groups_per_step": 8,
    "group_size": 8,
    "max_tokens": 10,
    "steps": 3,
    "patience_s": math.inf,
}
EVALUATION: dict[str, Any] = {
    "env": "grpo_gym/Arithmetic-v0",
    "tasks": 16,
    "n": 8,
    "k": (1,),
    "max_tokens": 10,
}


def rows(folder: Path) -> list[dict[str, float]]:
    return read_metrics(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vllm") / "run"
    return grpo_gym.train(run_dir=folder, lora_rank=8, **SMALL)


def test_after_every_update_it_has_base_and_adapter(trained: Run) -> None:
    found = rows(trained.folder)
    assert len(found) == 3
    assert all(row["grad_norm"] > 0 for row in found)
    assert all(row["sync_gap"] < 1e-3 and row["behaviour_gap_max"] < 1e-3 for row in found)


def test_a_saved_adapter_is_evaluated_as_its_merged_model_is(trained: Run, tmp_path: Path) -> None:
    merge_into_folder(trained.model, tmp_path / "merged")
    adapter, merged = (
        grpo_gym.evaluate(model=model, engine="vllm", **EVALUATION).pass_at
        for model in (trained.model, tmp_path / "merged")
    )
    assert adapter == merged


def test_a_run_that_goes_on_from_an_adapter_samples_from_it(trained: Run, tmp_path: Path) -> None:
    options = SMALL | {"steps": 1, "lora_adapter": trained.model, "run_dir": tmp_path / "run"}
    (row,) = rows(grpo_gym.train(**options).folder)
    assert row["behaviour_gap_max"] < 1e-3


def test_a_float32_head_narrows_the_gap_in_half_precision(tmp_path: Path) -> None:
    gaps = []
    for on in (False, True):
        options = SMALL | {"precision": "bf16", "fp32_lm_head": on, "learning_rate": 0.0}
        run = grpo_gym.train(run_dir=tmp_path / str(on), **options)
        gaps.append(float(np.mean([row["behaviour_gap"] for row in rows(run.folder)])))
    assert 0 < gaps[1] < gaps[0]
