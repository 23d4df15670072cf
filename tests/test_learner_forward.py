"""Short cuts of the forward pass against the model's own logits, for many architectures."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from grpo_gym.errors import UsageError
from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.rows import Rows, pack
from grpo_gym.learner.scores import TokenScores
from tests.learner_batches import make_batch, plain_logprobs
from tests.models import tiny_model

SHARED: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": False}),
    ("llama", {}),
    ("qwen3", {}),
    ("gpt2", {}),
    ("gemma3_text", {"sliding_window": 4}),
    ("mistral", {"sliding_window": 3}),
    ("phi3", {}),
    ("phi", {"tie_word_embeddings": False}),  # the head has a bias
    ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("llama4_text", {"num_local_experts": 2}),
    ("gemma2", {"final_logit_softcapping": 5.0}),
    ("cohere", {"logit_scale": 0.5}),
    ("granite", {"logits_scaling": 3.0}),
]
OWN = ("recurrent_gemma", {"lru_width": 32})
"""Its logits are capped, but its configuration does not say so as Gemma 2's does."""


def batch_rows(batch: Any) -> Rows:
    rollouts = batch.rollouts
    return pack(
        [r.prompt_ids for r in rollouts],
        [r.token_ids for r in rollouts],
        [r.mask for r in rollouts],
    )


def gradients(model: Any, scores: TokenScores) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = scores.logprobs.sin().sum()
    if scores.entropy is not None:
        loss = loss + scores.entropy.cos().sum()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_as_own_logits(scorer: Scorer, tolerance: float) -> None:
    batch = make_batch(seed=5, sizes=(3, 4, 2), most=20)
    mask = torch.from_numpy(batch.mask)
    rows = batch_rows(batch)
    scores = scorer(rows, 0.8).widen(mask.shape[1])
    learned = gradients(scorer.model, scores)
    own = torch.where(mask, plain_logprobs(scorer.model, batch, 0.8), 0.0)
    torch.testing.assert_close(scores.logprobs, own, rtol=0, atol=tolerance)
    expected = gradients(scorer.model, TokenScores(own))
    largest = max(1.0, *(float(g.abs().max()) for g in expected.values()))
    for name, gradient in expected.items():
        assert float((learned[name] - gradient).abs().max()) < tolerance * largest, name


@pytest.mark.parametrize(("model_type", "config"), SHARED)
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
def test_short_cuts_change_nothing(model_type: str, config: dict[str, Any], share: bool) -> None:
    scorer = Scorer(tiny_model(3, model_type, **config), share)
    assert (scorer.tiled, scorer.share_prompts) == (True, share)
    assert_same_as_own_logits(scorer, 1e-5)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
def test_many_buckets_of_length_change_nothing(
    share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo_gym.learner import hidden

    plain = hidden.length_buckets
    monkeypatch.setattr(hidden, "length_buckets", lambda lengths: plain(lengths, overhead=1))
    batch = make_batch(seed=5, sizes=(3, 4, 2), most=20)
    assert len(hidden.length_buckets(batch.lengths)) > 3
    assert_same_as_own_logits(Scorer(tiny_model(3), share), 1e-5)


def test_changed_logits_are_noticed_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    model_type, config = OWN
    with caplog.at_level(logging.WARNING):
        scorer = Scorer(tiny_model(3, model_type, **config))
    assert not scorer.tiled
    assert "final logits" in caplog.text
    assert_same_as_own_logits(scorer, 1e-5)


def test_a_soft_cap_is_noticed_while_it_does_not_show_yet() -> None:
    model = tiny_model(0, "gemma2", final_logit_softcapping=30.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
    scorer = Scorer(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e3)
    assert_same_as_own_logits(scorer, 1e-5)


def test_own_logits_are_formed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_gym.learner import own_logits

    monkeypatch.setattr(own_logits, "MOST_LOGITS", 1)
    assert_same_as_own_logits(Scorer(tiny_model(3, OWN[0], **OWN[1])), 1e-5)


def test_a_model_without_a_cache_of_keys_is_run_plain(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scorer = Scorer(tiny_model(0, "mamba", hidden_size=32, state_size=4, intermediate_size=64))
    assert (scorer.tiled, scorer.share_prompts) == (True, False)
    assert "not shared" in caplog.text
    assert_same_as_own_logits(scorer, 1e-5)


def test_entropy_and_given_tokens_are_those_of_the_full_distribution() -> None:
    batch = make_batch(sizes=(2, 3))
    rows = batch_rows(batch)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 400, (*rows.mask.shape, 3)))
    found = {}
    for model_type in ("qwen2", "gemma2", OWN[0]):
        for share in (True, False):
            scorer = Scorer(tiny_model(3, model_type), share)
            found[model_type, share] = scorer(rows, 0.7, entropy=True, top_ids=ids)
            model = scorer.model
        row, column = [int(i[-1]) for i in rows.mask.nonzero(as_tuple=True)]
        rollout = batch.rollouts[row]
        sequence = np.concatenate([rollout.prompt_ids, rollout.token_ids])
        before = torch.tensor(sequence[: len(rollout.prompt_ids) + column])[None]
        full = torch.log_softmax(model(input_ids=before).logits[0, -1] / 0.7, -1)
        for share in (True, False):
            scores = found[model_type, share]
            expected = -(full.exp() * full).sum()
            torch.testing.assert_close(scores.entropy[row, column], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(
                scores.top_logprobs[row, column], full[ids[row, column]], rtol=0, atol=1e-5
            )


def test_dropout_is_off_whatever_is_asked() -> None:
    scorer = Scorer(tiny_model(0, attention_dropout=0.5))
    scorer.train()
    rows = batch_rows(make_batch())
    assert torch.equal(scorer(rows).logprobs, scorer(rows).logprobs)
    assert not any(module.training for module in scorer.modules())


def test_recomputation_changes_no_gradient_and_leaves_the_model_to_the_engine() -> None:
    rows = batch_rows(make_batch())
    plain, saving = Scorer(tiny_model(3), False), Scorer(tiny_model(3), True, recompute=True)
    assert not saving.share_prompts
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    saving.model.base_model.layers[0].mlp.register_forward_pre_hook(count)
    scores = saving(rows)
    assert not any(module.training for module in saving.modules())
    before = calls
    learned = gradients(saving.model, scores)
    assert calls > before  # it ran again
    for name, gradient in gradients(plain.model, plain(rows)).items():
        torch.testing.assert_close(learned[name], gradient, rtol=0, atol=1e-6)


def test_a_model_that_cannot_recompute_is_a_usage_error() -> None:
    model = tiny_model()
    type(model).supports_gradient_checkpointing, kept = False, True
    try:
        with pytest.raises(UsageError, match="gradient_checkpointing"):
            Scorer(model, recompute=True)
    finally:
        type(model).supports_gradient_checkpointing = kept


def test_a_model_without_a_head_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="AutoModelForCausalLM"):
        Scorer(tiny_model().base_model)


@pytest.mark.parametrize("model_type", ["qwen2", "gemma2", OWN[0]])
def test_the_critic_starts_at_zero_and_does_not_move_the_policy(model_type: str) -> None:
    scorer = Scorer(tiny_model(3, model_type), critic=True)
    rows = batch_rows(make_batch())
    values = scorer(rows).values
    assert values is not None
    assert torch.equal(values, torch.zeros(rows.mask.shape))
    (values - 1)[rows.mask].square().sum().backward()
    assert scorer.critic is not None
    assert float(scorer.critic.bias.grad) == pytest.approx(-2 * int(rows.mask.sum()))
    assert float(scorer.critic.weight.grad.abs().sum()) > 0
    for parameter in scorer.model.parameters():
        assert parameter.grad is None or not parameter.grad.any()
