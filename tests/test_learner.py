"""The learner against plain computations: whole rows, full softmax, one optimiser step by hand."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_agents import AGENTS, dppo, grpo, ppo
from grpo_gym import checkpoint
from grpo_gym.agent import Agent
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.learner.meters import Meters
from grpo_gym.objectives.advantages import GroupCentred, GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean, TokenMean
from grpo_gym.objectives.ratios import SequenceRatio, TokenRatio
from grpo_gym.objectives.signals import Outputs
from grpo_gym.objectives.trust_regions import Clip
from grpo_gym.types import Batch, Group, Rollout
from tests.learner_batches import make_batch, plain_logprobs
from tests.models import tiny_model

GRPO = Agent(GroupStandardised(), TokenRatio(), Clip(0.2, 0.2), SequenceMean())
DAPO = Agent(GroupStandardised(), TokenRatio(), Clip(0.2, 0.28), TokenMean())
GSPO = Agent(GroupCentred(), SequenceRatio(), Clip(3e-4, 4e-4), SequenceMean())


def plain_gradient(model: Any, agent: Agent, batch: Batch, temperature: float, signals: Any) -> Any:
    """Loss and gradients of the whole batch at once."""
    model.zero_grad()
    credit = agent.credit(signals)
    weights = agent.weights(credit.mask, signals.group)
    outputs = Outputs(plain_logprobs(model, batch, temperature))
    loss, _ = agent.loss(outputs, signals, credit, weights)
    loss.backward()
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters()}


def learner_gradient(learner: Learner, batch: Batch, signals: Any) -> Any:
    """Loss and gradients that the learner's one step is made of."""
    taken: dict[str, torch.Tensor] = {}
    names = dict(learner.model.named_parameters())
    step = learner._optimiser.step

    def record(*arguments: Any) -> Any:
        taken.update({name: p.grad.clone() for name, p in names.items()})
        return step(*arguments)

    learner._optimiser.step = record
    metrics = learner.update(batch, signals)
    return metrics["loss"], taken


def differing(options: OptimiserOptions | None = None, **changes: Any) -> OptimiserOptions:
    base = OptimiserOptions(max_grad_norm=float("inf"), temperature=0.8, learning_rate=1e-3)
    return replace(options or base, **changes)


@pytest.mark.parametrize("agent", [GRPO, DAPO, GSPO], ids=["grpo", "dapo", "gspo"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("budget", [10**6, 40, 1], ids=["whole", "some", "single"])
@pytest.mark.parametrize(
    ("model_type", "dtype", "tolerance"),
    [("gpt2", torch.float64, 1e-10), ("qwen2", torch.float32, 1e-5)],
)
def test_gradient_is_that_of_whole_rows_and_full_softmax(
    agent: Agent, share: bool, budget: int, model_type: str, dtype: torch.dtype, tolerance: float
) -> None:
    batch = make_batch()
    model = tiny_model(model_type=model_type).to(dtype)
    options = differing(share_prompts=share, tokens_per_micro_batch=budget)
    learner = Learner(model, agent, options)
    assert learner.scorer.tiled
    assert learner.scorer.share_prompts == share
    signals = learner.prepare(batch)
    # an old policy that differs, so that ratios and clipping matter
    shift = torch.from_numpy(np.random.default_rng(1).normal(0, 0.2, batch.mask.shape)).to(dtype)
    old = plain_logprobs(model, batch, 0.8).detach() + shift
    signals = replace(signals, old=old)
    loss, gradients = plain_gradient(model, agent, batch, 0.8, signals)
    learned_loss, learned = learner_gradient(learner, batch, signals)
    assert learned_loss == pytest.approx(loss, abs=tolerance)
    for name, gradient in gradients.items():
        size = float(gradient.norm())
        assert size > 0, name
        assert float((learned[name] - gradient).norm()) < tolerance * size, name


def parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.state().items()}


def changed(learner: Learner, before: dict[str, torch.Tensor]) -> list[str]:
    return [n for n, value in learner.state().items() if not torch.equal(value, before[n])]


def train(learner: Learner, batch: Batch) -> dict[str, float]:
    return learner.update(batch, learner.prepare(batch))


def test_one_update_is_one_step_of_adamw_with_the_clipped_gradient() -> None:
    batch = make_batch()
    options = OptimiserOptions(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.01)
    model, twin = tiny_model(), tiny_model()
    learner = Learner(model, GRPO, options)
    signals = learner.prepare(batch)
    metrics = learner.update(batch, signals)
    plain_gradient(twin, GRPO, batch, 1.0, signals)
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    matrices = [p for p in twin.parameters() if p.ndim > 1]
    vectors = [p for p in twin.parameters() if p.ndim == 1]
    torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
    ).step()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for name, value in twin.state_dict().items():
        # Adam's first step is the sign of the gradient where it is not tiny
        torch.testing.assert_close(learner.state()[name], value, rtol=0, atol=1e-4)


def test_each_mini_batch_is_one_optimiser_step_and_each_epoch_takes_all_rows() -> None:
    batch = make_batch(sizes=(2, 2, 2, 2))
    learner = Learner(tiny_model(), GRPO, OptimiserOptions(epochs=3, mini_batches=2))
    stepped: list[list[int]] = []
    inner = learner._gradients.add_up

    def record(
        agent: Agent, batch: Batch, signals: Any, credit: Any, weights: Any, rows: Any
    ) -> Any:
        stepped.append(rows.tolist())
        assert not weights[[row for row in range(8) if row not in rows]].any()
        assert float(weights.sum()) == pytest.approx(1)
        return inner(agent, batch, signals, credit, weights, rows)

    learner._gradients.add_up = record  # type: ignore[method-assign]
    metrics = train(learner, batch)
    assert learner.steps == len(stepped) == 6
    assert learner.version == 1
    assert metrics["skipped_steps"] == 0
    for epoch in range(3):
        both = stepped[2 * epoch] + stepped[2 * epoch + 1]
        assert sorted(both) == list(range(8))
        assert all(len(set(batch.group[rows].tolist())) == 2 for rows in stepped[2 * epoch :][:2])


def test_mini_batches_are_drawn_anew_for_each_version() -> None:
    batch = make_batch(sizes=(1,) * 8)
    agent = replace(GRPO, allow_singleton_groups=True)
    learner = Learner(tiny_model(), agent, OptimiserOptions(mini_batches=2))
    drawn: list[tuple[int, ...]] = []

    def record(*arguments: Any) -> tuple[float, Meters]:
        drawn.append(tuple(arguments[5].tolist()))
        return 0.0, Meters()

    learner._gradients.add_up = record  # type: ignore[method-assign]
    for _ in range(4):
        train(learner, batch)
    assert len(set(drawn)) > 4


def test_the_ratio_is_one_on_the_first_step_and_moves_afterwards() -> None:
    batch = make_batch()
    options = OptimiserOptions(learning_rate=1e-2, epochs=1, mini_batches=1)
    learner = Learner(tiny_model(attention_dropout=0.5), GRPO, options)
    signals = learner.prepare(batch)
    assert signals.old is None
    assert learner.update(batch, signals)["log_ratio_max"] == 0
    learner = Learner(tiny_model(), GRPO, replace(options, epochs=2))
    assert train(learner, batch)["log_ratio_max"] > 0.01


def test_prepare_gives_what_the_agent_needs_and_no_more() -> None:
    batch = make_batch()
    model = tiny_model()
    plain = torch.where(torch.from_numpy(batch.mask), plain_logprobs(model, batch, 1.0), 0.0)
    learner = Learner(model, grpo(kl=0.1), OptimiserOptions(mini_batches=2, learning_rate=1e-2))
    first = learner.prepare(batch)
    for given in (first.old, first.reference):
        assert given is not None
        assert not given.requires_grad
        torch.testing.assert_close(given, plain.detach(), rtol=0, atol=1e-5)
    assert first.values is None
    assert first.entropy is None
    learner.update(batch, first)
    second = learner.prepare(batch)
    assert torch.equal(second.reference, first.reference)
    assert float((second.old - first.old).abs().max()) > 1e-3


def test_a_reference_may_be_given() -> None:
    batch = make_batch()
    learner = Learner(tiny_model(0), grpo(kl=0.1), reference=tiny_model(1))
    reference = learner.prepare(batch).reference
    plain = torch.where(torch.from_numpy(batch.mask), plain_logprobs(tiny_model(1), batch, 1), 0.0)
    torch.testing.assert_close(reference, plain.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*AGENTS, "dppo_topk"])
def test_every_agent_trains(name: str) -> None:
    agent = dppo("topk_tv", k=3) if name == "dppo_topk" else AGENTS[name]()
    batch = make_batch(sizes=(2, 2, 2), top=3)
    learner = Learner(tiny_model(), agent, OptimiserOptions(mini_batches=2, learning_rate=1e-3))
    # what the sampler reported is what the policy says, or corrections would mask everything
    rows = learner.prepare(batch)
    known = plain_logprobs(learner.model, batch, 1.0).detach()
    signals = replace(rows, behaviour=known)
    before = parameters(learner)
    metrics = learner.update(batch, signals)
    assert metrics["skipped_steps"] == 0
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["behaviour_gap_max"] < 1e-4
    assert changed(learner, before)


def test_metrics_say_how_far_the_sampler_is() -> None:
    batch = make_batch()
    learner = Learner(tiny_model(), GRPO)
    mask = torch.from_numpy(batch.mask)
    plain = plain_logprobs(learner.model, batch, 1.0).detach()
    gap = (plain - learner.prepare(batch).behaviour)[mask].abs()
    metrics = train(learner, batch)
    assert metrics["behaviour_gap"] == pytest.approx(float(gap.mean()), rel=1e-4)
    assert metrics["behaviour_gap_max"] == pytest.approx(float(gap.max()), rel=1e-4)
    assert metrics["tokens"] == batch.mask.sum()
    assert metrics["entropy"] > 0
    assert metrics["learning_rate"] == 1e-6


def test_a_critic_learns_the_return() -> None:
    batch = make_batch(seed=3)
    agent = ppo(kl=0.0)
    options = OptimiserOptions(learning_rate=0.0, critic_learning_rate=0.05)
    learner = Learner(tiny_model(), agent, options)
    losses = [train(learner, batch)["value_loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_frozen_parameters_stay() -> None:
    model = tiny_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1.mlp" in name)
    learner = Learner(model, GRPO, OptimiserOptions(learning_rate=1e-2))
    before = parameters(learner)
    train(learner, make_batch())
    assert {name.split(".")[2:4] == ["1", "mlp"] for name in changed(learner, before)} == {True}


def test_a_model_with_nothing_to_train_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="requires_grad"):
        Learner(tiny_model().requires_grad_(False), GRPO)


def poisoned(learner: Learner, batch: Batch) -> Any:
    signals = learner.prepare(batch)
    return replace(signals, old=torch.full(signals.mask.shape, torch.nan))


def test_a_loss_that_is_not_finite_is_skipped_and_too_many_are_an_error() -> None:
    batch = make_batch()
    learner = Learner(tiny_model(), GRPO, OptimiserOptions(max_bad_steps=3, learning_rate=1e-3))
    before = parameters(learner)
    for _ in range(2):
        metrics = learner.update(batch, poisoned(learner, batch))
        assert metrics["skipped_steps"] == 1
        assert "loss" not in metrics
    assert not changed(learner, before)
    assert train(learner, batch)["skipped_steps"] == 0  # a good one forgives
    after = parameters(learner)
    assert changed(learner, before)
    for _ in range(2):
        learner.update(batch, poisoned(learner, batch))
    with pytest.raises(UsageError, match="not finite 3 times in a row"):
        learner.update(batch, poisoned(learner, batch))
    assert not changed(learner, after)
    assert learner.steps == 1


def test_a_batch_without_a_token_to_learn_from_is_skipped_but_not_bad() -> None:
    prompt = np.array([5, 6])
    empty = np.array([], dtype=np.int64)
    rollout = Rollout("t", prompt, empty, empty, empty, empty, reward=1.0, terminated=True)
    batch = Batch((Group("t", (rollout, rollout)),))
    learner = Learner(tiny_model(), grpo(kl=0.1), OptimiserOptions(max_bad_steps=1, epochs=2))
    before = parameters(learner)
    assert train(learner, batch)["skipped_steps"] == 2
    assert not changed(learner, before)


def test_the_same_inputs_give_the_same_weights_and_touch_no_global_generator() -> None:
    options = OptimiserOptions(
        learning_rate=1e-3, epochs=2, mini_batches=2, tokens_per_micro_batch=50
    )
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    learners = [Learner(tiny_model(), grpo(kl=0.1), options) for _ in range(2)]
    for seed in range(3):
        first, second = (train(learner, make_batch(seed)) for learner in learners)
        assert first == second
    assert not changed(learners[0], parameters(learners[1]))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


@pytest.mark.parametrize("agent", [grpo(kl=0.1), ppo()], ids=["grpo", "ppo"])
def test_a_resumed_learner_goes_on_exactly(agent: Agent, tmp_path: Path) -> None:
    options = OptimiserOptions(
        learning_rate=1e-3, schedule="cosine", warmup_steps=2, total_steps=20, mini_batches=2
    )
    whole = Learner(tiny_model(), agent, options)
    for seed in range(3):
        train(whole, make_batch(seed))
    path = checkpoint.save(tmp_path, 3, whole.model, None, whole.optimiser_state(), {})
    resumed = Learner(tiny_model(), agent, options)
    saved = checkpoint.load(path, resumed.model)
    resumed.restore(saved.weights, saved.optimiser)
    for seed in range(3, 6):
        assert train(whole, make_batch(seed)) == train(resumed, make_batch(seed))
    assert not changed(whole, parameters(resumed))
    assert (whole.version, whole.steps) == (resumed.version, resumed.steps) == (6, 12)


def test_a_state_of_another_agent_or_model_is_a_usage_error() -> None:
    learner = Learner(tiny_model(), GRPO)
    train(learner, make_batch())
    weights, state = learner.state(), learner.optimiser_state()
    with pytest.raises(UsageError, match="does not fit"):
        Learner(tiny_model(), ppo()).restore(weights, state)
    with pytest.raises(UsageError, match="does not fit"):
        Learner(tiny_model(num_hidden_layers=1), GRPO).restore(weights, state)
    with pytest.raises(UsageError, match="does not fit"):
        learner.restore(weights, {"version": 3})


def test_moments_of_another_shape_are_a_usage_error() -> None:
    learner = Learner(tiny_model(), GRPO)
    train(learner, make_batch())
    state = learner.optimiser_state()
    state["optimiser"]["state"][0]["exp_avg"] = torch.zeros(2, 3)
    with pytest.raises(UsageError, match=r"exp_avg is \(2, 3\)"):
        Learner(tiny_model(), GRPO).restore(learner.state(), state)


def test_a_resumed_run_takes_its_settings_from_the_options() -> None:
    first = Learner(tiny_model(), GRPO, OptimiserOptions(learning_rate=1e-3))
    train(first, make_batch())
    second = Learner(tiny_model(), GRPO, OptimiserOptions(learning_rate=1e-4))
    second.restore(first.state(), first.optimiser_state())
    assert train(second, make_batch())["learning_rate"] == 1e-4


def test_logprobs_of_sequences_are_those_of_the_model() -> None:
    learner = Learner(tiny_model(), GRPO, OptimiserOptions(tokens_per_micro_batch=12))
    rng = np.random.default_rng(0)
    sequences = [rng.integers(3, 400, n).tolist() for n in (7, 1, 3, 12, 2)]
    found = learner.logprobs(sequences, 0.7)
    for sequence, values in zip(sequences, found, strict=True):
        ids = torch.tensor([sequence])
        full = torch.log_softmax(learner.model(input_ids=ids).logits[0, :-1] / 0.7, -1)
        expected = full.gather(1, ids[0, 1:, None])[:, 0]
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, expected.detach().numpy(), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="empty sequence"):
        learner.logprobs([[]])


def test_half_precision_weights_get_a_float32_master_copy() -> None:
    learner = Learner(tiny_model().to(torch.bfloat16), GRPO, OptimiserOptions(learning_rate=1e-5))
    assert {value.dtype for value in learner.state().values()} == {torch.float32}
    before = parameters(learner)
    train(learner, make_batch())
    assert changed(learner, before)  # the step would vanish in bfloat16


def test_bf16_is_close_to_fp32_and_keeps_weights_and_logprobs_in_float32() -> None:
    batch = make_batch()
    exact, fast = (
        Learner(tiny_model(), GRPO, OptimiserOptions(precision=precision, epochs=2))
        for precision in ("fp32", "bf16")
    )
    old = fast.prepare(batch).old
    assert old is not None
    assert old.dtype == torch.float32
    gap = (exact.prepare(batch).old - old).abs()
    assert 0 < float(gap.max()) < 0.2
    assert train(fast, batch)["grad_norm"] == pytest.approx(
        train(exact, batch)["grad_norm"], rel=0.1
    )
    assert {value.dtype for value in fast.state().values()} == {torch.float32}


def test_state_has_the_names_of_the_model_and_is_no_copy() -> None:
    learner = Learner(tiny_model(), GRPO, OptimiserOptions(learning_rate=1e-2))
    state = learner.state()
    assert state.keys() == learner.model.state_dict().keys()
    train(learner, make_batch())
    assert all(torch.equal(state[n], v) for n, v in learner.model.state_dict().items())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447, 0]),
    ],
)
def test_learning_rate_follows_the_schedule(schedule: Any, expected: list[float]) -> None:
    options = OptimiserOptions(schedule=schedule, warmup_steps=2, total_steps=6)
    assert [options.scale(step) for step in range(7)] == pytest.approx(expected, abs=1e-6)
    assert options.scale(99) == pytest.approx(expected[-1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"temperature": 0.0},
        {"epochs": 0},
        {"mini_batches": 0},
        {"tokens_per_micro_batch": 0},
        {"max_grad_norm": 0.0},
        {"betas": (0.9, 1.0)},
        {"schedule": "exponential"},
        {"precision": "fp8"},
        {"schedule": "linear"},
        {"schedule": "cosine", "warmup_steps": 5, "total_steps": 5},
    ],
)
def test_a_wrong_option_is_a_usage_error_that_names_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        OptimiserOptions(**wrong)
