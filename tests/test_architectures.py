"""Any causal model trains: many architectures through the whole of `train`, on the engine hf."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import grpo_gym
from grpo_gym import ProceduralTasks, Score, Task, TextEnv, UsageError
from grpo_gym.learner.forward import Scorer
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import load_policy
from grpo_gym.runs import Run
from tests.commands import refused
from tests.models import tiny_model, tiny_tokenizer

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
TABLE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt2": {},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
ODD: dict[str, dict[str, Any]] = {
    # logits are scaled or capped after the head
    "gemma2": {"final_logit_softcapping": 5.0, "sliding_window": 6},
    "cohere": {"logit_scale": 0.5},
    "granite": {"logits_scaling": 3.0},
    # the head has a bias
    "phi": {"tie_word_embeddings": False},
    # one matrix for queries, keys and values
    "phi3": {},
    # norms after the layers; positions that are learnt, and begin at 2
    "olmo2": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    # a bias for distance instead of positions; sinks, which attention may leave unused
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    # an expert that all tokens share
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    # latent attention, whose keys and values differ in size
    "deepseek_v3": {
        "head_dim": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    # recurrent, or in part
    "mamba": {"state_size": 4},
    "jamba": {
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
    },
    "qwen3_5_text": LINEAR,
    # a class whose `base_model` is the whole model
    "llama4_text": {"num_local_experts": 2},
}


class Noise(TextEnv):
    """Two turns whose reward hardly ever is the same twice: every group has something to compare."""

    max_turns = 2

    def default_tasks(self) -> ProceduralTasks:
        return ProceduralTasks(lambda rng: (f"Say {rng.integers(100)}.", ""))

    def respond(self, task: Task, action: str) -> Score | str:
        value = sum(map(ord, action)) % 97 / 97
        return Score(value=value, success=value > 0.5) if self.turn else "And once more."


def train(folder: Path, model: Path, **options: Any) -> Run:
    small = {
        "env": Noise,
        "model": model,
        "run_dir": folder,
        "steps": 2,
        "groups_per_step": 2,
        "group_size": 4,
        "max_tokens": 6,
        "learning_rate": 1e-3,
        "patience_s": math.inf,
    }
    return grpo_gym.train(**(small | options))


def save(folder: Path, kind: str, scale: float = 1.0, **config: Any) -> Path:
    """A tiny random model in a folder; `scale` makes its weights smaller, and so what they round."""
    model = tiny_model(0, kind, **config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim > 1 else 1)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def still(run: Run, before: dict[str, torch.Tensor]) -> set[str]:
    """Which weights did not move; sampler and learner must have agreed in every step."""
    rows = read_metrics(run.metrics_path)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["behaviour_gap_max"] < 1e-4
        assert row["sync_gap"] < 1e-4
        assert np.isfinite(row["loss"])
        assert row["grad_norm"] > 0
    after = weights(run.model)
    assert after.keys() == before.keys()
    return {name for name, value in before.items() if torch.equal(value, after[name])}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", TABLE)
def test_an_architecture_trains(kind: str, tied: bool, tmp_path: Path) -> None:
    model = save(tmp_path / "model", kind, **TABLE[kind], tie_word_embeddings=tied)
    assert still(train(tmp_path / "run", model), weights(model)) == set()


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_one_trains(kind: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model", kind, **ODD[kind])
    still(train(tmp_path / "run", model), weights(model))


@pytest.mark.parametrize("kind", TABLE)
def test_a_resumed_run_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model", kind, **TABLE[kind])
    whole = train(tmp_path / "whole", model)
    train(tmp_path / "parts", model, steps=1)
    resumed = train(tmp_path / "parts", model, resume=True)
    expected, found = weights(whole.model), weights(resumed.model)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@pytest.mark.parametrize("saving", [True, False], ids=["recomputed", "kept"])
@pytest.mark.parametrize("kind", TABLE)
def test_bf16_is_finite_and_weights_stay_float32(kind: str, saving: bool, tmp_path: Path) -> None:
    model = save(tmp_path / "model", kind, 0.3, **TABLE[kind])
    options = {"precision": "bf16", "gradient_checkpointing": saving, "kl": 0.1}
    run = train(tmp_path / "run", model, **options)
    for row in read_metrics(run.metrics_path):
        assert np.isfinite(list(row.values())).all()
    assert {value.dtype for value in weights(run.model).values()} == {torch.float32}
    assert load_policy(run.model).model.config.model_type == kind


@pytest.mark.parametrize("kind", [*TABLE, "llama4_text"])
def test_an_adapter_trains(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = save(tmp_path / "model", kind, **(TABLE | ODD)[kind])
    run = train(tmp_path / "run", model, lora_rank=4)
    for row in read_metrics(run.metrics_path):
        assert max(row["behaviour_gap_max"], row["sync_gap"]) < 1e-4
        assert row["grad_norm"] > 0


def test_layers_that_peft_refuses_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = save(tmp_path / "model", "mamba", **ODD["mamba"])
    with pytest.raises(UsageError, match=r"lora_targets: peft refuses .* 'out_proj'") as raised:
        train(tmp_path / "run", model, lora_rank=4)
    assert "\n" not in str(raised.value)
    train(tmp_path / "run", model, lora_rank=4, lora_targets=("in_proj", "x_proj"))


def test_a_vision_text_model_trains_on_text_where_transformers_loads_it_so(tmp_path: Path) -> None:
    text = tiny_model(0, "gemma3_text", **TABLE["gemma3_text"]).config.to_dict()
    image = {"hidden_size": 32, "intermediate_size": 32, "image_size": 28, "patch_size": 14}
    vision = image | {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    folder = tmp_path / "model"
    with torch.random.fork_rng(devices=[]):
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    before = weights(folder)
    unmoved = still(train(tmp_path / "run", folder), before)
    assert unmoved == {name for name in before if "vision" in name or "projector" in name}


def test_a_configuration_that_contradicts_itself_is_one_line(tmp_path: Path) -> None:
    model = save(tmp_path / "model", "mamba2", num_heads=4, head_dim=16, n_groups=8)
    with pytest.raises(
        UsageError, match=r"^model .* \(Mamba2ForCausalLM\) fails on six tokens: RuntimeError: "
    ):
        train(tmp_path / "run", model)
    with pytest.raises(UsageError, match=r"^Mamba2ForCausalLM fails on six tokens: RuntimeError: "):
        Scorer(tiny_model(0, "mamba2", num_heads=4, head_dim=16, n_groups=8))


BOTH_WAYS: dict[str, dict[str, Any]] = {
    "bert": {},
    # a token's experts are chosen by what other tokens are
    "doge": {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 4},
}


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_model_whose_tokens_depend_on_later_ones_is_refused(kind: str, tmp_path: Path) -> None:
    model = save(tmp_path, kind, **BOTH_WAYS[kind])
    with pytest.raises(UsageError, match=r"is no causal language model: .* the tokens after it$"):
        load_policy(model)


def test_one_whose_tokens_are_changed_in_place_is_not(tmp_path: Path) -> None:
    load_policy(save(tmp_path / "model", "ctrl", n_layer=1, n_head=4, dff=32))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("t5", "is an encoder and a decoder"),
        ("bart", "is an encoder and a decoder"),
        ("llava", "does not load as a causal language model"),
        ("qwen2_5_vl", "does not load as a causal language model"),
        ("clip", "does not load as a causal language model"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_one_line(
    kind: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    line = refused(capsys, "eval", "--model", str(tmp_path))
    assert message in line
    assert kind in line


def test_code_that_comes_with_a_model_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ran = save(tmp_path / "model", "qwen2"), tmp_path / "ran"
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w')", encoding="utf-8")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Tokenizer", None]})
    load_policy(folder)  # transformers reads the tokenizer without it
    own = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    change(folder / "config.json", auto_map=own, model_type="mine")
    line = refused(capsys, "eval", "--model", str(folder))
    assert "needs code that comes with it, which is never run here" in line
    assert not ran.exists()


def change(path: Path, **values: Any) -> None:
    """Set fields of a JSON file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(found | values), encoding="utf-8")


def test_a_gguf_file_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    for name in (path, tmp_path):
        assert "docs/models.md" in refused(capsys, "eval", "--model", str(name))
