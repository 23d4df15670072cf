"""What holds for every agent, whatever paper it is from; a new file is tested once it exists."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_agents import sapo
from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred, LeaveOneOut, RefSurprise
from grpo_gym.objectives.signals import Outputs, Signals
from grpo_gym.objectives.token_advantages import GAE, ReturnToGo, TurnLeaveOneOut, Whitened
from tests.agent_batches import DEFAULTS, EVERY, Example, differentiate, examples

pytestmark = pytest.mark.filterwarnings("error")
PER_ROW = ("group", "rewards", "truncated", "components", "turn_rewards")
few = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
every = pytest.mark.parametrize("agent", EVERY.values(), ids=EVERY.keys())
default = pytest.mark.parametrize("agent", DEFAULTS.values(), ids=DEFAULTS.keys())


def same(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def rewired(record: Any, change: Any) -> Any:
    """The record with `change(name, tensor)` in place of each of its tensors."""
    tensors = {
        f.name: change(f.name, getattr(record, f.name))
        for f in dataclasses.fields(record)
        if isinstance(getattr(record, f.name), Tensor)
    }
    return replace(record, **tensors)


def changed(example: Example, change: Any) -> Example:
    """The example with other tensors; the log-probs are new leaves."""
    outputs = rewired(example.outputs, lambda name, x: change(name, x.detach()))
    outputs.logprobs.requires_grad_()
    return Example(rewired(example.signals, change), outputs)


@every
@given(examples(), st.integers(0, 2**32 - 1))
@few
def test_garbage_at_masked_positions_changes_nothing(
    agent: Agent, example: Example, seed: int
) -> None:
    mask = example.signals.mask
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 0.0])

    def spoil(name: str, x: Tensor) -> Tensor:
        if name in PER_ROW or x.dtype == torch.bool:
            return x
        where = mask if x.ndim == 2 else mask[..., None]
        garbage = values[torch.randint(len(values), x.shape, generator=generator)].to(x.dtype)
        # Integers have no nan: these are ids, and -1 is none.
        return x.where(where, garbage if x.is_floating_point() else -1)

    loss, gradient = example.gradient(agent)
    spoilt_loss, spoilt_gradient = changed(example, spoil).gradient(agent)
    same(spoilt_loss, loss)
    same(spoilt_gradient, gradient)
    assert (gradient[~mask] == 0).all()


@every
@given(examples(), st.integers(0, 2), st.integers(0, 2))
@few
def test_padding_changes_nothing(agent: Agent, example: Example, rows: int, columns: int) -> None:
    shape = example.signals.mask.shape

    def pad(name: str, x: Tensor) -> Tensor:
        fill: Any = False if x.dtype == torch.bool else 7 if x.is_floating_point() else 0
        if name not in PER_ROW:
            x = torch.cat([x, x.new_full((x.shape[0], columns, *x.shape[2:]), fill)], 1)
        return torch.cat([x, x.new_full((rows, *x.shape[1:]), fill)])

    loss, gradient = example.gradient(agent)
    padded_loss, padded = changed(example, pad).gradient(agent)
    same(padded_loss, loss)
    same(padded[: shape[0], : shape[1]], gradient)
    assert padded[shape[0] :].abs().sum() == 0
    assert padded[:, shape[1] :].abs().sum() == 0


@every
@given(examples(), st.randoms(use_true_random=False))
@few
def test_permuting_rows_permutes_gradients(agent: Agent, example: Example, random: Any) -> None:
    order = list(range(len(example.signals.group)))
    random.shuffle(order)
    loss, gradient = example.gradient(agent)
    moved_loss, moved = changed(example, lambda name, x: x[order]).gradient(agent)
    same(moved_loss, loss)
    same(moved, gradient[order])


@every
@given(examples(), st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
@few
def test_any_split_over_ranks_and_micro_batches_adds_up(
    agent: Agent, example: Example, ranks: int, cuts: int, random: Any
) -> None:
    credit = agent.credit(example.signals)
    loss, gradient = example.gradient(agent, credit)
    weights = agent.weights(credit.mask, example.signals.group)

    part_of = [random.randrange(ranks * cuts) for _ in example.signals.group]
    total, summed = torch.zeros_like(loss), torch.zeros_like(gradient)
    for part in range(ranks * cuts):
        rows = [row for row, found in enumerate(part_of) if found == part]
        pieces = example.outputs, example.signals, credit
        outputs, signals, own = (piece.rows(rows) for piece in pieces)
        outputs = replace(outputs, logprobs=outputs.logprobs.detach().requires_grad_())
        part_loss, _ = agent.loss(outputs, signals, own, weights[rows])
        value, slope = differentiate(part_loss, outputs)
        total += value
        summed[rows] = slope
    same(total, loss)
    same(summed, gradient)


@default
@given(examples())
@few
def test_zero_advantage_gives_zero_gradient(agent: Agent, example: Example) -> None:
    credit = agent.credit(example.signals)
    nothing = replace(credit, advantages=torch.zeros_like(credit.advantages))
    _, gradient = example.gradient(agent, nothing)
    assert (gradient == 0).all()


@default
@given(examples(on_policy=True))
@few
def test_on_policy_every_agent_is_the_policy_gradient(agent: Agent, example: Example) -> None:
    credit = agent.credit(example.signals)
    weights = agent.weights(credit.mask, example.signals.group)
    _, gradient = example.gradient(agent, credit)
    same(gradient, -credit.advantages * weights)


@given(examples(on_policy=True))
@few
def test_on_policy_the_tutorial_gate_is_not(example: Example) -> None:
    agent = sapo(gate="tutorial")
    credit = agent.credit(example.signals)
    weights = agent.weights(credit.mask, example.signals.group)
    _, gradient = example.gradient(agent, credit)
    slope = torch.full_like(weights, 0.5 - 0.25 / 1.05).masked_fill(credit.advantages > 0, 0.75)
    same(gradient, -slope * credit.advantages * weights)


def _shifted(signals: Signals, scale: float, shift: float) -> Signals:
    assert signals.components is not None
    assert signals.turn_rewards is not None
    last = torch.zeros_like(signals.turn_rewards)
    last[:, -1] = shift
    return replace(
        signals,
        rewards=scale * signals.rewards + shift,
        components=scale * signals.components + shift,
        turn_rewards=scale * signals.turn_rewards + last,
    )


def _scale_free(agent: Agent) -> Agent:
    """The agent without what has a scale of its own: a KL inside the reward, an eps."""

    def strip(stage: Any) -> Any:
        inner = {"inner": strip(stage.inner)} if hasattr(stage, "inner") else {}
        values = {"kl": 0.0, "eps": 1e-12}
        return replace(stage, **inner, **{k: v for k, v in values.items() if hasattr(stage, k)})

    return replace(agent, advantage=strip(agent.advantage))


def _uses_critic(agent: Agent) -> bool:
    advantage = agent.advantage
    return isinstance(advantage.inner if isinstance(advantage, Whitened) else advantage, GAE)


@every
@given(examples(), st.floats(-100, 100))
@few
def test_a_shift_of_the_rewards_changes_no_advantage(
    agent: Agent, example: Example, shift: float
) -> None:
    if _uses_critic(agent):
        pytest.skip("a critic's values do not shift with the rewards")
    credit = agent.credit(example.signals).advantages
    same(agent.credit(_shifted(example.signals, 1.0, shift)).advantages, credit, 1e-8)


@every
@given(examples(), st.floats(0.5, 20))
@few
def test_a_scale_of_the_rewards_scales_centred_advantages_and_no_others(
    agent: Agent, example: Example, scale: float
) -> None:
    if _uses_critic(agent):
        pytest.skip("a critic's values do not scale with the rewards")
    agent = _scale_free(agent)
    linear = isinstance(agent.advantage, GroupCentred | LeaveOneOut | TurnLeaveOneOut | ReturnToGo)
    credit = agent.credit(example.signals).advantages
    scaled = agent.credit(_shifted(example.signals, scale, 0.0)).advantages
    same(scaled, credit * scale if linear else credit, 1e-6)


def test_the_tests_know_every_kind_of_advantage() -> None:
    kinds = {type(agent.advantage) for agent in EVERY.values()}
    assert RefSurprise not in kinds  # it weighs tokens, and is no shift-invariant baseline of them


@default
@given(examples())
@few
def test_half_precision_log_probs_are_computed_in_float32(agent: Agent, example: Example) -> None:
    def low(name: str, x: Tensor) -> Tensor:
        keep = not x.is_floating_point() or name in ("rewards", "components", "turn_rewards")
        return x if keep else x.to(torch.bfloat16)

    rough = changed(example, low)
    loss, gradient = rough.gradient(agent)
    assert loss.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16

    def exact(name: str, x: Tensor) -> Tensor:
        return x.double() if x.dtype == torch.bfloat16 else x

    wide, _ = changed(rough, exact).gradient(agent)
    torch.testing.assert_close(loss.double(), wide, rtol=1e-4, atol=1e-4)


@every
@given(examples())
@few
def test_the_graph_reaches_the_log_probs_even_without_tokens(
    agent: Agent, example: Example
) -> None:
    nothing = torch.zeros_like(example.signals.mask)
    empty = Example(replace(example.signals, mask=nothing), example.outputs)
    loss, gradient = empty.gradient(agent)
    assert loss == 0
    assert (gradient == 0).all()


@default
def test_metrics_are_pairs_that_add_up(agent: Agent) -> None:
    from tests.agent_batches import make

    example = make([[0.0, 1.0], [1.0, 0.5, 0.0]], 4, 3)
    credit = agent.credit(example.signals)
    weights = agent.weights(credit.mask, example.signals.group)

    def metrics(rows: Any) -> dict[str, tuple[Tensor, Tensor]]:
        outputs: Outputs = example.outputs.rows(rows)
        return agent.loss(outputs, example.signals.rows(rows), credit.rows(rows), weights[rows])[1]

    whole, first, second = metrics(slice(None)), metrics(slice(0, 2)), metrics(slice(2, None))
    assert {"ratio", "clip_fraction", "kept_fraction"} <= set(whole)
    for name, (total, count) in whole.items():
        assert not total.requires_grad
        same(first[name][0] + second[name][0], total)
        same(first[name][1] + second[name][1], count)
