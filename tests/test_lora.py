"""LoRA: the adapter alone is trained; what is sampled, saved and merged is base and adapter together."""

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_agents import AGENTS, grpo, ppo
from grpo_gym import checkpoint
from grpo_gym.agent import Agent
from grpo_gym.engines.base import Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.sharding import check_shardable
from grpo_gym.lora import (
    LoraOptions,
    adapter_off,
    adapter_weights,
    add_adapter,
    fingerprint,
    has_adapter,
    keep_fingerprint,
    load_adapter_weights,
    merge,
    merged_state,
    merged_twin,
    misfits,
    put_adapter,
    read_adapter,
    save_adapter,
)
from grpo_gym.objectives.penalties import KL
from grpo_gym.objectives.signals import Outputs
from grpo_gym.sync import SyncError, verify_sync
from tests.learner_batches import make_batch, plain_logprobs
from tests.models import tiny_model

MODELS = ["qwen2", "gpt2", "gemma3_text", "qwen3_moe"]
IDS = torch.tensor([[5, 6, 7, 8, 9]])
SHAPE = LoraOptions(rank=4, alpha=8.0)


def shake(model: Any, seed: int = 1) -> Any:
    """Both matrices of the adapter random, as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    for value in adapter_weights(model).values():
        value.normal_(std=0.2, generator=generator)
    return model


def adapted(model_type: str = "qwen2", options: LoraOptions = SHAPE, **config: Any) -> Any:
    model = tiny_model(0, model_type, **config)
    add_adapter(model, options)
    return shake(model)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return cast(torch.Tensor, model(input_ids=IDS).logits)


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def own(model: Any) -> dict[str, torch.Tensor]:
    """The weights beside the adapter, under the names that they had without it."""
    return {
        name.replace(".base_layer.", "."): value
        for name, value in state(model).items()
        if ".lora_" not in name
    }


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def train(learner: Learner, updates: int = 2) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for seed in range(updates):
        batch = make_batch(seed)
        metrics = learner.update(batch, learner.prepare(batch))
    return metrics


# --- The adapter in the model


@pytest.mark.parametrize("model_type", MODELS)
def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(model_type: str) -> None:
    model, before = tiny_model(0, model_type), torch.get_rng_state()
    weights, expected, kind = state(model), logits(model), type(model)
    add_adapter(model, SHAPE)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(model) is kind
    assert torch.equal(logits(model), expected)
    assert_equal(own(model), weights)
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)


def test_the_seed_decides_the_random_matrix() -> None:
    a, b, c = (tiny_model() for _ in range(3))
    for model, seed in ((a, 3), (b, 3), (c, 4)):
        add_adapter(model, SHAPE, seed)
    assert_equal(adapter_weights(a), adapter_weights(b))
    name = next(name for name in adapter_weights(a) if "lora_A" in name)
    assert not torch.equal(adapter_weights(a)[name], adapter_weights(c)[name])


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (("all-linear",), 14),
        (("q_proj",), 2),
        (("q_proj", "self_attn.v_proj"), 4),
        (("model.layers.1.mlp.up_proj",), 1),
    ],
)
def test_layers_are_chosen_by_name_or_ending(targets: tuple[str, ...], layers: int) -> None:
    model = adapted(options=LoraOptions(2, targets=targets))
    assert len(adapter_weights(model)) == 2 * layers


@pytest.mark.parametrize(
    "target", ["lm_head", "embed_tokens", "proj", "norm", "q_proj.weight", "."]
)
def test_a_layer_that_can_have_no_adapter_is_a_usage_error(target: str) -> None:
    model = tiny_model(tie_word_embeddings=False)
    with pytest.raises(UsageError, match=r"no linear layer .*; there is .*q_proj"):
        add_adapter(model, LoraOptions(2, targets=(target,)))
    assert not has_adapter(model)
    assert all(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"alpha": 0.0}, {"alpha": math.nan}, {"targets": ()}, {"targets": ("",)}]
)
def test_a_shape_that_makes_no_sense_is_a_usage_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="lora_"):
        LoraOptions(**{"rank": 2} | wrong)


def test_a_rank_above_every_width_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="lora_rank is 100000, but no layer is wider than 64"):
        add_adapter(tiny_model(), LoraOptions(100_000))


def test_a_model_has_one_adapter_at_most() -> None:
    with pytest.raises(UsageError, match="has an adapter already"):
        add_adapter(adapted(), SHAPE)


def test_without_peft_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[lora\]'"):
        add_adapter(tiny_model(), SHAPE)


# --- Training


def plain_gradient(model_type: str, agent: Agent, batch: Any, signals: Any, weights: Any) -> Any:
    """Loss and gradients of peft's own model on padded rows, with a full softmax."""
    base = tiny_model(0, model_type).double()
    config = peft.LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=sorted({name.split(".")[-3] for name in weights}),
        fan_in_fan_out=model_type == "gpt2",
    )
    model = peft.get_peft_model(base, config)
    peft.set_peft_model_state_dict(model, weights)
    credit = agent.credit(signals)
    outputs = Outputs(plain_logprobs(model, batch, 0.8))
    loss, _ = agent.loss(outputs, signals, credit, agent.weights(credit.mask, signals.group))
    torch.autograd.backward(loss)
    grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return float(loss.detach()), {n.replace(".default", ""): grad for n, grad in grads.items()}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize(
    ("model_type", "tolerance"),
    # the norms of the others are computed in float32 whatever the weights are
    [("gpt2", 1e-10), ("qwen2", 1e-6), ("gemma3_text", 1e-6)],
)
def test_the_gradient_is_that_of_peft_on_padded_rows(
    model_type: str, tolerance: float, share: bool, recompute: bool
) -> None:
    model = adapted(model_type).double()
    batch = make_batch()
    options = OptimiserOptions(
        temperature=0.8,
        share_prompts=share,
        gradient_checkpointing=recompute,
        tokens_per_micro_batch=60,
        max_grad_norm=math.inf,
    )
    learner = Learner(model, grpo(), options)
    assert learner.scorer.share_prompts == (share and not recompute)
    noise = np.random.default_rng(1).normal(0, 0.2, batch.mask.shape)
    signals = learner.prepare(batch)
    old = plain_logprobs(model, batch, 0.8).detach() + torch.from_numpy(noise)
    signals = replace(signals, old=old)
    weights = {name: value.clone() for name, value in adapter_weights(model).items()}
    loss, gradients = plain_gradient(model_type, grpo(), batch, signals, weights)
    metrics = learner.update(batch, signals)
    assert metrics["loss"] == pytest.approx(loss, abs=tolerance)
    found = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert len(found) == len(gradients)
    for name, gradient in gradients.items():
        mine = found[name.removeprefix("base_model.model.").replace(".weight", ".default.weight")]
        assert mine is not None
        assert float(gradient.norm()) > 0, name
        assert float((mine - gradient).norm()) < tolerance * float(gradient.norm()), name


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_training_moves_the_adapter_and_not_one_bit_of_the_base(
    model_type: str, tied: bool
) -> None:
    model = tiny_model(0, model_type, tie_word_embeddings=tied)
    base = state(model)
    add_adapter(model, SHAPE)
    adapter = {name: value.clone() for name, value in adapter_weights(model).items()}
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-2))
    train(learner)
    assert_equal(own(model), base)
    after = adapter_weights(model)
    assert all(not torch.equal(after[name], value) for name, value in adapter.items())
    held = learner.optimiser_state()["optimiser"]["state"].values()
    assert sum(moment["exp_avg"].numel() for moment in held) == sum(
        v.numel() for v in after.values()
    )


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"gradient_checkpointing": True}])
def test_it_trains_under_every_option(options: dict[str, Any]) -> None:
    model = tiny_model()
    add_adapter(model, SHAPE)
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-2, **options))
    metrics = train(learner)
    assert metrics["grad_norm"] > 0
    assert all(value.dtype == torch.float32 for value in adapter_weights(model).values())
    assert all(value.abs().sum() > 0 for value in adapter_weights(model).values())


def test_a_critic_is_trained_beside_it() -> None:
    model = tiny_model()
    add_adapter(model, SHAPE)
    learner = Learner(model, ppo(), OptimiserOptions(learning_rate=1e-2))
    train(learner)
    assert learner.scorer.critic is not None
    assert float(learner.scorer.critic.weight.detach().abs().sum()) > 0


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_trains_it(name: str) -> None:
    model = tiny_model()
    add_adapter(model, SHAPE)
    learner = Learner(model, AGENTS[name](), OptimiserOptions(learning_rate=1e-2))
    batch = make_batch(top=4)
    metrics = learner.update(batch, learner.prepare(batch))
    assert metrics["grad_norm"] > 0


def test_a_half_precision_base_gets_a_float32_adapter() -> None:
    model = cast(Any, tiny_model()).to(torch.bfloat16)
    add_adapter(model, SHAPE)
    learner = Learner(model, grpo())
    assert {value.dtype for value in adapter_weights(learner.model).values()} == {torch.float32}


# --- The reference policy


def test_the_reference_policy_is_the_base_and_no_copy() -> None:
    model = adapted()
    batch, agent = make_batch(), replace(grpo(), penalties=(KL(0.1),))
    learner = Learner(model, agent, OptimiserOptions(epochs=2, learning_rate=1e-2))
    before = sum(p.numel() for p in learner.scorer.parameters())
    signals = learner.prepare(batch)
    expected = plain_logprobs(tiny_model(), batch, 1.0).detach()
    mask = torch.from_numpy(batch.mask)
    assert signals.reference is not None
    torch.testing.assert_close(signals.reference[mask], expected[mask], rtol=0, atol=1e-5)
    assert signals.old is not None
    assert float((signals.old - signals.reference)[mask].abs().max()) > 0.1
    assert learner._reference is None
    assert sum(p.numel() for p in learner.scorer.parameters()) == before
    learner.update(batch, signals)
    again = learner.prepare(batch).reference
    assert again is not None
    assert torch.equal(again, signals.reference)


def test_a_reference_may_still_be_given() -> None:
    batch, agent = make_batch(), replace(grpo(), penalties=(KL(0.1),))
    learner = Learner(adapted(), agent, reference=tiny_model(5))
    expected = plain_logprobs(tiny_model(5), batch, 1.0).detach()
    mask = torch.from_numpy(batch.mask)
    found = learner.prepare(batch).reference
    assert found is not None
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)


def test_an_adapter_that_is_off_comes_back_whatever_happens() -> None:
    model = adapted()
    model.model.layers[0].mlp.up_proj.lora_A.requires_grad_(False)
    expected, trained = logits(model), [p.requires_grad for p in model.parameters()]
    with contextlib.suppress(KeyError), adapter_off(model):
        assert torch.equal(logits(model), logits(tiny_model()))
        raise KeyError
    assert torch.equal(logits(model), expected)
    assert [p.requires_grad for p in model.parameters()] == trained


# --- Merging


@pytest.mark.parametrize(
    ("model_type", "tied", "stabilised"),
    [*((kind, tied, False) for kind in MODELS for tied in (True, False)), ("qwen2", True, True)],
)
def test_the_merged_weights_compute_what_base_and_adapter_do(
    model_type: str, tied: bool, stabilised: bool
) -> None:
    exact = model_type != "qwen3_moe"  # transformers has no kernel for experts in float64
    dtype, tolerance = (torch.float64, 1e-10) if exact else (torch.float32, 1e-4)
    options = replace(SHAPE, rank_stabilised=stabilised)
    model = adapted(model_type, options, tie_word_embeddings=tied).to(dtype)
    base, plain = (
        cast(Any, tiny_model(seed, model_type, tie_word_embeddings=tied)).to(dtype)
        for seed in (0, 7)
    )
    before = state(model)
    merged = merged_state(model)
    assert merged.keys() == plain.state_dict().keys()
    assert_equal(state(model), before)
    assert_equal(merged_state(model), merged)
    plain.load_state_dict(merged)
    expected = logits(model)
    torch.testing.assert_close(logits(plain), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(logits(merged_twin(model)), expected, rtol=0, atol=tolerance)
    assert float((expected - logits(base)).abs().max()) > 0.1


def test_a_twin_shares_what_the_adapter_does_not_touch() -> None:
    model = adapted(options=LoraOptions(4, targets=("q_proj",)))
    twin = merged_twin(model)
    assert not has_adapter(twin)
    assert has_adapter(model)
    theirs = own(model).keys()
    assert twin.state_dict().keys() == theirs
    here = {n.replace(".base_layer.", "."): p.data_ptr() for n, p in model.named_parameters()}
    apart = [n for n, p in twin.named_parameters() if here.get(n) != p.data_ptr()]
    assert apart == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    assert twin.lm_head.weight is twin.get_input_embeddings().weight


TWICE: dict[str, Callable[[Any], Any]] = {
    "merge": merge,
    "merged_state": merged_state,
    "merged_twin": merged_twin,
    "Learner.state": lambda model: Learner(model, grpo()).state(),
}


@pytest.mark.parametrize("second", [merge, merged_state, merged_twin, adapter_weights])
def test_nothing_is_merged_twice(second: Callable[[Any], Any]) -> None:
    model = adapted()
    expected = logits(model)
    merge(model)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-4)
    after = state(model)
    with pytest.raises(UsageError, match="no adapter in this model: it was merged"):
        second(model)
    assert_equal(state(model), after)


@pytest.mark.parametrize("second", TWICE)
def test_an_adapter_that_peft_has_merged_does_not_count_twice(second: str) -> None:
    model = adapted()
    learner = Learner(model, grpo())
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            cast(Any, module).merge()
    with pytest.raises(UsageError, match="it would count twice"):
        learner.state() if second == "Learner.state" else TWICE[second](model)


# --- The engine


def test_the_engine_samples_from_base_and_adapter_after_every_update() -> None:
    model = adapted()
    batch = make_batch()
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-1))
    engine = HFEngine(merged_twin(model))
    assert verify_sync(engine, learner, batch, 1.0, "fp32") < 1e-4
    for _ in range(2):
        train(learner, 1)
        with pytest.raises(SyncError):
            verify_sync(engine, learner, batch, 1.0, "fp32")
        engine.load(learner.state(), learner.version)
        assert verify_sync(engine, learner, batch, 1.0, "fp32") < 1e-4
    sampled = engine.generate([[5, 6, 7]], Sampling(max_tokens=8), [1])[0]
    ids = [5, 6, 7, *sampled.token_ids.tolist()]
    (expected,) = learner.logprobs([ids])
    np.testing.assert_allclose(sampled.logprobs, expected[2:], atol=1e-4)


# --- Resuming


@pytest.mark.parametrize("agent", [grpo(), ppo()], ids=["grpo", "ppo"])
def test_a_resumed_learner_goes_on_exactly(agent: Agent, tmp_path: Path) -> None:
    def learner(seed: int) -> Learner:
        model = tiny_model()
        add_adapter(model, SHAPE, seed)
        return Learner(model, agent, OptimiserOptions(learning_rate=1e-2))

    whole = learner(0)
    train(whole, 3)
    first = learner(0)
    train(first, 2)
    path = checkpoint.save(tmp_path, 2, first.model, None, first.optimiser_state(), {})
    second = learner(9)
    saved = checkpoint.load(path, second.model)
    second.restore(saved.weights, saved.optimiser)
    batch = make_batch(2)
    second.update(batch, second.prepare(batch))
    assert_equal(state(second.model), state(whole.model))


def test_a_checkpoint_of_another_base_or_shape_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, adapted(), None, {}, {})
    other = tiny_model(3)
    add_adapter(other, SHAPE)
    with pytest.raises(UsageError, match="adapter of another model"):
        checkpoint.load(path, other)
    with pytest.raises(
        UsageError, match=r"of another adapter: .* is \(4, 32\) there and \(2, 32\)"
    ):
        checkpoint.load(path, adapted(options=LoraOptions(2)))
    with pytest.raises(UsageError, match=r"of another adapter: it has .*down_proj"):
        checkpoint.load(path, adapted(options=LoraOptions(4, targets=("q_proj",))))
    with pytest.raises(UsageError):
        checkpoint.load(path, tiny_model())


# --- Folders


def test_what_is_saved_is_small_and_what_peft_reads(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "base")
    model = tiny_model()
    add_adapter(model, SHAPE, base=str(tmp_path / "base"))
    save_adapter(shake(model), tmp_path / "adapter")
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(theirs), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_type", MODELS)
def test_what_is_saved_is_loaded(model_type: str, tmp_path: Path) -> None:
    model = adapted(model_type)
    save_adapter(model, tmp_path)
    second = tiny_model(0, model_type)
    put_adapter(second, read_adapter(tmp_path))
    assert_equal(state(second), state(model))
    assert torch.equal(logits(second), logits(model))


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2"])
def test_an_adapter_that_peft_has_saved_is_loaded(model_type: str, tmp_path: Path) -> None:
    names = ["c_attn", "c_proj"] if model_type == "gpt2" else ["q_proj", "v_proj"]
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=names,
        use_rslora=True,
        lora_dropout=0.1,
        fan_in_fan_out=model_type == "gpt2",
    )
    theirs = peft.get_peft_model(tiny_model(0, model_type), config).eval()
    shake(theirs.base_model.model)
    theirs.save_pretrained(str(tmp_path))
    model = tiny_model(0, model_type)
    put_adapter(model, read_adapter(tmp_path))
    assert torch.equal(logits(model), logits(theirs))


def test_an_adapter_of_other_weights_is_refused(tmp_path: Path) -> None:
    save_adapter(adapted(), tmp_path)
    with pytest.raises(UsageError, match="trained on other weights"):
        put_adapter(tiny_model(1), read_adapter(tmp_path))


def rewrite(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def reweigh(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


def move(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


A = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "adapter_config.json").unlink(), "there is no adapter in"),
    "config is a list": (lambda f: (f / "adapter_config.json").write_text("[]"), "not an object"),
    "not JSON": (lambda f: (f / "adapter_config.json").write_text("{"), "is not JSON"),
    "not text": (lambda f: (f / "adapter_config.json").write_bytes(b"\xff"), "is not JSON"),
    "deep": (lambda f: (f / "adapter_config.json").write_text("[" * 10**5), "is not JSON"),
    "pickled": (move, "other formats are not read"),
    "cut short": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"\0" * 20),
        "is damaged",
    ),
    "no weights": (lambda f: reweigh(f, lambda _: {}), "is empty"),
    "not a number": (lambda f: reweigh(f, lambda w: w | {A: w[A] * math.nan}), "no finite number"),
    "of another type": (
        lambda f: reweigh(f, lambda w: w | {A: torch.ones(4, 32).to(torch.float8_e4m3fn)}),
        "float8_e4m3fn",
    ),
    "a matrix less": (
        lambda f: reweigh(f, lambda w: {k: v for k, v in w.items() if k != A}),
        "it lacks .*up_proj.lora_A",
    ),
    "a magnitude": (
        lambda f: reweigh(
            f, lambda w: w | {A.replace("lora_A", "lora_magnitude_vector"): w[A] + 0}
        ),
        "lora_magnitude_vector.* which is no weight of a LoRA adapter",
    ),
    "a layer that there is not": (
        lambda f: reweigh(f, lambda w: w | {A.replace("layers.0", "layers.9"): w[A] + 0}),
        "no linear layer 'model.layers.9.mlp.up_proj'",
    ),
    "an odd name": (
        lambda f: reweigh(f, lambda w: w | {"weight": w[A] + 0}),
        "has 'weight', which is no weight",
    ),
    "another width": (
        lambda f: reweigh(f, lambda w: w | {A: torch.zeros(4, 5)}),
        r"up_proj.lora_A.weight is \(4, 5\) there",
    ),
    "another rank": (lambda f: rewrite(f, r=10**9), "r is 1000000000, but"),
    "no rank": (lambda f: rewrite(f, r=None), "must be numbers"),
    "alpha is a large number": (lambda f: rewrite(f, lora_alpha=10**400), "must be numbers"),
    "rank is text": (lambda f: rewrite(f, r="4"), "must be numbers"),
    "rank is a list": (lambda f: rewrite(f, r=[4]), "must be numbers"),
    "alpha is nan": (lambda f: rewrite(f, lora_alpha=math.nan), "must be numbers"),
    "alpha is text": (lambda f: rewrite(f, lora_alpha="all"), "must be numbers"),
    "another method": (lambda f: rewrite(f, peft_type="ADALORA"), "peft_type is 'ADALORA'"),
    "code to import": (
        lambda f: rewrite(f, megatron_config={"a": 1}, megatron_core="os"),
        "megatron_config is",
    ),
    "DoRA": (lambda f: rewrite(f, use_dora=True), "use_dora is True"),
    "whole modules": (lambda f: rewrite(f, modules_to_save=["lm_head"]), "modules_to_save is"),
    "ranks of layers": (lambda f: rewrite(f, rank_pattern={"(a+)+$": 2}), "rank_pattern is"),
    "biases": (lambda f: rewrite(f, bias="all"), "bias is 'all'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_folder_that_is_no_sound_adapter_is_a_usage_error(case: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[case]
    save_adapter(adapted(), tmp_path)
    damage(tmp_path)
    model = tiny_model()
    with pytest.raises(UsageError, match=message) as caught:
        put_adapter(model, read_adapter(tmp_path))
    assert "\n" not in str(caught.value)


def test_foreign_weights_leave_the_adapter_as_it_is() -> None:
    model = adapted()
    before = state(model)
    with pytest.raises(UsageError, match="does not fit"):
        load_adapter_weights(model, {})
    assert_equal(state(model), before)


# --- Weights that are to be sharded (two processes: test_lora_ranks)


def test_beside_a_sharded_adapter_nothing_else_is_trained() -> None:
    """The mark of the base is made before it is sharded, and stays true."""
    model = adapted()
    check_shardable(Scorer(model))
    model.model.norm.weight.requires_grad_(True)
    with pytest.raises(
        UsageError, match=r"^model\.norm\.weight is to be trained beside an adapter"
    ):
        check_shardable(Scorer(model))


def test_a_kept_mark_of_the_base_is_not_made_again(tmp_path: Path) -> None:
    model = adapted()
    mark = fingerprint(model)
    assert mark == fingerprint(tiny_model()) != fingerprint(tiny_model(5))
    keep_fingerprint(model)
    for value in model.parameters():
        value.data = torch.empty(0)  # all that another rank may have left here
    assert fingerprint(model) == mark
    weights = {name: value.clone() for name, value in adapter_weights(adapted()).items()}
    save_adapter(model, tmp_path, weights)
    saved = read_adapter(tmp_path)
    assert saved.base_mark == mark
    assert_equal(saved.weights, weights)
    assert misfits(model, weights) == []


def test_given_weights_are_merged_as_the_models_own() -> None:
    model = adapted("gpt2")
    expected, given = merged_state(model), state(model)
    for value in model.parameters():
        value.data = torch.empty(0)
    assert_equal(merged_state(model, given), expected)
