"""Our losses and advantages against verl's own functions, where verl can be imported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_agents import (
    cispo,
    dapo,
    dppo,
    dr_grpo,
    gmpo,
    grpo,
    gspo_token,
    ppo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
    sapo,
)
from grpo_gym.agent import Agent
from grpo_gym.objectives.aggregations import SequenceMean, SequenceSum, TokenMean, TokenSum
from grpo_gym.objectives.corrections import MIS, TIS
from grpo_gym.objectives.penalties import KL_ESTIMATORS
from grpo_gym.objectives.reductions import masked
from grpo_gym.objectives.trust_regions import WeightCap
from tests.agent_batches import Example, differentiate
from tests.test_agents_peers import BUDGET, GROUP_SIZE, SEEDS, example, float64_by_default

__all__ = ["float64_by_default"]  # pytest finds the fixture here

# verl adds 1e-8 to its denominators.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # those of verl's imports
]


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip(
        "verl.trainer.ppo.core_algos", reason="verl is not installed", exc_type=ImportError
    )


def config(**changes: Any) -> Any:
    from verl.workers.config import ActorConfig

    return ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **changes)


def clip(low: float, high: float, c: float = 1e9, **more: Any) -> dict[str, Any]:
    changes = {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": c}
    return changes | more


def everyone(agent: Agent, aggregation: Any) -> Agent:
    return replace(agent, aggregation=aggregation)


CASES: dict[str, tuple[Agent, str, str, dict[str, Any]]] = {
    "grpo": (grpo(), "vanilla", "seq-mean-token-mean", clip(0.2, 0.2)),
    "grpo_dual_clip": (grpo(dual_clip=1.5), "vanilla", "seq-mean-token-mean", clip(0.2, 0.2, 1.5)),
    "dapo": (dapo(), "vanilla", "token-mean", clip(0.2, 0.28)),
    "dr_grpo": (
        dr_grpo(BUDGET),
        "vanilla",
        "seq-mean-token-sum-norm",
        clip(0.2, 0.2, loss_scale_factor=BUDGET),
    ),
    "sequence_sum": (
        everyone(grpo(), SequenceSum()),
        "vanilla",
        "seq-mean-token-sum",
        clip(0.2, 0.2),
    ),
    "gspo_token": (gspo_token(0.05, 0.1), "gspo", "seq-mean-token-mean", clip(0.05, 0.1)),
    "sapo": (sapo(), "sapo", "seq-mean-token-mean", clip(0.2, 0.2)),
    "gmpo": (gmpo(0.1, 0.2), "geo_mean", "token-mean", clip(0.1, 0.2)),
    "cispo": (
        replace(cispo(), trust_region=WeightCap(1.3, 0.8)),
        "cispo",
        "token-mean",
        clip(0.2, 0.3),
    ),
    "dppo_binary_tv": (dppo(anchor="old"), "dppo_tv", "token-mean", clip(0.15, 0.15, 20.0)),
    "dppo_binary_kl": (
        dppo("binary_kl", 0.05, 0.05, anchor="old"),
        "dppo_kl",
        "token-mean",
        clip(0.05, 0.05, 20.0),
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_verl(verl: Any, name: str, seed: int) -> None:
    agent, kind, mode, changes = CASES[name]
    batch = example(seed)
    credit, signals = agent.credit(batch.signals), batch.signals
    theirs, _ = verl.get_policy_loss_fn(kind)(
        old_log_prob=signals.old,
        log_prob=batch.outputs.logprobs,
        advantages=credit.advantages,
        response_mask=signals.mask.double(),
        loss_agg_mode=mode,
        config=_global(config(**changes), changes),
    )
    ours = differentiate(batch.loss(agent), batch.outputs)
    torch.testing.assert_close(ours, differentiate(theirs, batch.outputs), **CLOSE)


def _global(settings: Any, changes: dict[str, Any]) -> Any:
    """verl hands the constant of Dr. GRPO to its aggregation beside the config."""
    if "loss_scale_factor" in changes:
        settings.global_batch_info["loss_scale_factor"] = changes["loss_scale_factor"]
    return settings


def last_token_rewards(batch: Example) -> Tensor:
    """Where verl expects them: on the last sampled token."""
    mask = batch.signals.mask
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    return batch.signals.rewards[:, None] * last


def of_groups(name: str, **more: Any) -> Callable[[Any, Example], Tensor]:
    def run(verl: Any, batch: Example) -> Tensor:
        index = np.repeat(np.arange(3), GROUP_SIZE)
        advantages: Tensor = getattr(verl, name)(
            last_token_rewards(batch), batch.signals.mask.double(), index, **more
        )[0]
        return advantages

    return run


def returns_to_go(verl: Any, batch: Example) -> Tensor:
    from verl.trainer.config import AlgoConfig

    advantages: Tensor = verl.compute_reinforce_plus_plus_outcome_advantage(
        last_token_rewards(batch), batch.signals.mask.double(), config=AlgoConfig(gamma=1.0)
    )[0]
    return advantages


def gae(verl: Any, batch: Example) -> Tensor:
    advantages: Tensor = verl.compute_gae_advantage_return(
        last_token_rewards(batch), batch.signals.values, batch.signals.mask.double(), 0.9, 0.95
    )[0]
    return advantages


ADVANTAGES: dict[str, tuple[Agent, Callable[[Any, Example], Tensor]]] = {
    "grpo": (
        grpo(std_ddof=1, adv_eps=1e-6),
        of_groups("compute_grpo_outcome_advantage", epsilon=1e-6),
    ),
    "dr_grpo": (
        dr_grpo(),
        of_groups("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
    ),
    "rloo": (rloo(kl=0), of_groups("compute_rloo_outcome_advantage")),
    "reinforce_pp_baseline": (
        reinforce_pp_baseline(),
        of_groups("compute_reinforce_plus_plus_baseline_outcome_advantage"),
    ),
    "reinforce_pp": (reinforce_pp(kl=0), returns_to_go),
    "ppo": (ppo(kl=0, gamma=0.9, lam=0.95), gae),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_those_of_verl(verl: Any, name: str, seed: int) -> None:
    agent, theirs = ADVANTAGES[name]
    batch = example(seed)
    expected = masked(theirs(verl, batch), batch.signals.mask)
    torch.testing.assert_close(agent.credit(batch.signals).advantages, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_is_that_of_verl(verl: Any, kind: str) -> None:
    batch = example(0)
    new, reference = batch.outputs.logprobs, batch.signals.reference
    assert reference is not None
    ours = KL_ESTIMATORS[kind](reference - new, torch.zeros_like(new))
    torch.testing.assert_close(ours, verl.kl_penalty(new, reference, kind), **CLOSE)


def test_value_loss_is_that_of_verl(verl: Any) -> None:
    agent, batch = ppo(kl=0), example(0)
    credit = agent.credit(batch.signals)
    without = replace(agent, critic=None)
    theirs, _ = verl.compute_value_loss(
        batch.outputs.values, credit.returns, batch.signals.values, batch.signals.mask.double(), 0.5
    )
    ours = batch.loss(agent) - batch.loss(without)
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize(
    ("aggregation", "mode"),
    [
        (TokenMean(), "token-mean"),
        (SequenceMean(), "seq-mean-token-mean"),
        (SequenceSum(), "seq-mean-token-sum"),
        (TokenSum(), "token-sum"),
    ],
)
def test_aggregation_is_that_of_verl(verl: Any, aggregation: Any, mode: str) -> None:
    batch = example(0)
    mask = batch.signals.mask
    loss = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1))
    ours = (loss * aggregation(mask, batch.signals.group)).sum()
    torch.testing.assert_close(ours, verl.agg_loss(loss, mask.double(), mode), **CLOSE)


@pytest.mark.parametrize("correction", [TIS(1.5), MIS(1.5, 0.5, "token")])
def test_corrections_multiply_the_surrogate_as_in_verl(verl: Any, correction: Any) -> None:
    batch = example(0)
    signals = batch.signals
    assert signals.old is not None
    assert signals.behaviour is not None
    ratio = (signals.old - signals.behaviour).exp()
    inside = (ratio >= 0.5) & (ratio <= 1.5)
    weights = ratio.clamp(max=1.5) if isinstance(correction, TIS) else ratio * inside
    agent = replace(dapo(), corrections=(correction,))
    theirs, _ = verl.get_policy_loss_fn("vanilla")(
        old_log_prob=signals.old,
        log_prob=batch.outputs.logprobs,
        advantages=agent.credit(signals).advantages,
        response_mask=signals.mask.double(),
        loss_agg_mode="token-mean",
        config=config(**clip(0.2, 0.28)),
        rollout_is_weights=weights,
    )
    ours = differentiate(batch.loss(agent), batch.outputs)
    torch.testing.assert_close(ours, differentiate(theirs, batch.outputs), **CLOSE)
