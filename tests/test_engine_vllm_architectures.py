"""Models of many kinds train on vLLM: after each update its log-probs are the learner's."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_agents import grpo
from grpo_gym.engines.vllm import VLLMEngine
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.sync import SyncError, verify_sync
from tests.models import VOCABULARY, tiny_model, tiny_tokenizer
from tests.sampled import sampled

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

# The CPU build has attention for heads of 32 and more.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
KINDS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES,
    "gemma3_text": SIZES
    | {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 64, "n_head": 2},
    "qwen3_moe": SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
PROMPT = np.random.default_rng(0).integers(3, VOCABULARY, 70).tolist()


def train(folder: Path, kind: str, tied: bool) -> list[float]:
    """The gap at the start and after each of two updates."""
    model = tiny_model(0, kind, **KINDS[kind], tie_word_embeddings=tied)
    with torch.no_grad():  # less sure of itself, so that there is something to learn
        model.get_output_embeddings().weight.mul_(0.3)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    engine = VLLMEngine(str(folder), max_lanes=8, arguments={"kv_cache_memory_bytes": 2**26})
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-2))
    try:
        batch = sampled(engine, PROMPT)
        gaps = [verify_sync(engine, learner, batch, 1.0, "fp32")]
        for _ in range(2):
            metrics = learner.update(batch, learner.prepare(batch))
            assert metrics["behaviour_gap_max"] < 1e-4
            with pytest.raises(SyncError):
                verify_sync(engine, learner, batch, 1.0, "fp32")
            engine.load(learner.state(), learner.version)
            gaps.append(verify_sync(engine, learner, batch, 1.0, "fp32"))
            batch = sampled(engine, PROMPT)
    finally:
        engine.close()
    return gaps


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_engine_and_learner_agree(kind: str, tied: bool, tmp_path: Path) -> None:
    assert max(train(tmp_path, kind, tied)) < 1e-4


def test_experts_that_are_not_packed_again_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_gym.engines.vllm_weights.mend_experts", lambda model: None)
    with pytest.raises(SyncError, match="does not have the learner's weights"):
        train(tmp_path, "qwen3_moe", tied=False)
