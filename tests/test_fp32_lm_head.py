"""A head in float32: sampler and learner differ less in bfloat16, and nothing else changes."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import grpo_gym
from grpo_agents import grpo
from grpo_gym.config import TrainConfig
from grpo_gym.engines.base import Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.jobs import _head_warning
from grpo_gym.learner import Learner, OptimiserOptions, use_float32_head
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import load_policy
from grpo_gym.sampler import make_engine
from tests.commands import refused
from tests.learner_batches import make_batch
from tests.letters import Letters
from tests.models import tiny_model

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def half(model: Any, float32_head: bool) -> Any:
    """What engine hf samples from in half precision."""
    config = TrainConfig(
        precision="bf16", engine_arg=("dtype=bfloat16",), fp32_lm_head=float32_head
    )
    policy = replace(load_policy("tiny"), model=model)
    engine = make_engine(config, policy, 256, config.precision)
    assert isinstance(engine, HFEngine)
    return engine.model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", ["qwen2", "gpt2", "gemma2"])
def test_in_full_precision_it_changes_no_bit(model_type: str, tied: bool) -> None:
    model: Any = tiny_model(0, model_type, tie_word_embeddings=tied)
    before, names = model(input_ids=IDS).logits, list(model.state_dict())
    use_float32_head(model)
    use_float32_head(model)  # a second time does no harm
    assert torch.equal(model(input_ids=IDS).logits, before)
    assert list(model.state_dict()) == names
    head = model.get_output_embeddings()
    assert (head.weight is model.get_input_embeddings().weight) == tied
    assert torch.equal(copy.deepcopy(model)(input_ids=IDS).logits, before)


def test_logits_are_float32_in_half_precision_and_under_autocast() -> None:
    model = tiny_model()
    assert half(model, False)(input_ids=IDS).logits.dtype == torch.bfloat16
    assert half(model, True)(input_ids=IDS).logits.dtype == torch.float32
    use_float32_head(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(input_ids=IDS).logits.dtype == torch.float32


def test_a_half_precision_copy_shares_nothing_and_keeps_its_positions() -> None:
    model: Any = tiny_model()
    copied = half(model, True)
    theirs = {value.data_ptr() for value in copied.parameters()}
    assert not theirs & {value.data_ptr() for value in model.parameters()}
    assert {value.dtype for value in copied.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    for mine, own in zip(copied.buffers(), model.buffers(), strict=True):
        assert torch.equal(mine, own)
    assert copied.lm_head.weight is copied.get_input_embeddings().weight


def test_double_precision_stays() -> None:
    model: Any = tiny_model()
    model = model.double()
    before = model(input_ids=IDS).logits
    use_float32_head(model)
    assert torch.equal(model(input_ids=IDS).logits, before)


def test_a_head_that_is_no_linear_layer_is_a_usage_error() -> None:
    model: Any = tiny_model()
    model.set_output_embeddings(nn.Bilinear(2, 2, 2))
    with pytest.raises(UsageError, match="is a Bilinear"):
        use_float32_head(model)


def test_it_narrows_the_gap_between_sampler_and_learner() -> None:
    policy = load_policy("tiny")
    learner = Learner(copy.deepcopy(policy.model), grpo(), OptimiserOptions(precision="bf16"))
    env = grpo_gym.make("grpo_gym/Arithmetic-v0")
    prompts = [policy.renderer.prompt(env.reset(seed=seed)[0]) for seed in range(100)]
    gaps = []
    for on in (False, True):
        engine = HFEngine(half(policy.model, on))
        sampling = Sampling(max_tokens=16, stop_token_ids=policy.renderer.stop_token_ids)
        done = engine.generate(prompts, sampling, range(len(prompts)))
        both = [[*ids, *c.token_ids.tolist()] for ids, c in zip(prompts, done, strict=True)]
        ours = learner.logprobs(both)
        pairs = zip(ours, done, strict=True)
        distances = [np.abs(a[-len(c.logprobs) :] - c.logprobs) for a, c in pairs]
        gaps.append(float(np.concatenate(distances).mean()))
    assert 0 < gaps[1] < gaps[0] / 1.5


def test_it_brings_a_learner_with_logits_of_its_own_nearer_to_full_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it is not known how a model makes its logits, the head is its own business."""
    monkeypatch.setattr("grpo_gym.learner.probes._forms", lambda *_: [])
    distances = []
    sequences = [r.token_ids.tolist() for r in make_batch().rollouts]
    exact = Learner(tiny_model(0, "gemma2"), grpo()).logprobs(sequences)
    for on in (False, True):
        options = OptimiserOptions(precision="bf16", fp32_lm_head=on)
        learner = Learner(tiny_model(0, "gemma2"), grpo(), options)
        assert not learner.scorer.tiled
        pairs = zip(learner.logprobs(sequences), exact, strict=True)
        distances.append(float(np.concatenate([np.abs(a - b) for a, b in pairs]).mean()))
    assert 0 < distances[1] < distances[0] / 1.2


def test_gradients_reach_the_head_and_the_body() -> None:
    model = tiny_model(0, "gemma2")
    learner = Learner(model, grpo(), OptimiserOptions(precision="bf16", fp32_lm_head=True))
    before = {name: value.clone() for name, value in learner.state().items()}
    batch = make_batch()
    learner.update(batch, learner.prepare(batch))
    assert all(not torch.equal(value, before[n]) for n, value in learner.state().items())


# --- Runs

SMALL: dict[str, Any] = {
    "env": Letters,
    "model": "tiny",
    "groups_per_step": 4,
    "group_size": 4,
    "max_tokens": 10,
    "patience_s": math.inf,
    "learning_rate": 1e-3,
    "precision": "bf16",
    "engine_arg": ("dtype=bfloat16",),
    "steps": 2,
}


@pytest.mark.parametrize("rank", [0, 4])
def test_a_run_that_samples_in_half_precision_has_a_smaller_gap(rank: int, tmp_path: Path) -> None:
    gaps = []
    for on in (False, True):
        folder = tmp_path / str(on)
        grpo_gym.train(run_dir=folder, fp32_lm_head=on, lora_rank=rank, **SMALL)
        rows = read_metrics(folder / "metrics.jsonl")
        assert all(row["sync_gap"] < 0.25 for row in rows)
        gaps.append(float(np.mean([row["behaviour_gap"] for row in rows])))
    assert 0 < gaps[1] < gaps[0] / 2


def test_a_server_has_to_be_told_by_its_user() -> None:
    told = TrainConfig(engine="http://127.0.0.1:1", precision="bf16", fp32_lm_head=True)
    warning = _head_warning(told)
    assert warning is not None
    assert "head_dtype" in warning
    for change in ({"engine": "hf"}, {"precision": "fp32"}, {"fp32_lm_head": False}):
        assert _head_warning(replace(told, **change)) is None


def test_arguments_of_the_engine_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--env", "grpo_gym/Arithmetic-v0", "--run-dir", str(tmp_path / "run")]
    assert "needs precision bf16" in refused(capsys, *words, "--engine-arg", "dtype=bfloat16")
    line = refused(capsys, *words, "--engine-arg", "dtype=int8")
    assert "engine_arg of engine hf is dtype=bfloat16" in line
    assert line == refused(capsys, *words, "--engine-arg", "speed=1")
    assert not (tmp_path / "run").exists()
