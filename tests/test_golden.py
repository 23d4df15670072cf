"""The worked examples: advantages, loss, gradient and intermediates, computed independently."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_agents import dapo, dr_grpo, gopo, grpo, rloo
from grpo_gym.agent import Agent
from grpo_gym.objectives.corrections import OffPolicyMask
from grpo_gym.objectives.divergences import DivergenceMask
from grpo_gym.objectives.penalties import KL
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.reductions import masked
from grpo_gym.objectives.shaping import SoftOverlong
from grpo_gym.objectives.signals import Signals
from grpo_gym.objectives.terms import make_terms
from grpo_gym.objectives.token_advantages import GAE, ReturnToGo, token_rewards
from grpo_gym.objectives.trust_regions import SequenceKernel, soft_gate, vespo_kernel
from tests.golden import CASES, GOLDEN, example, outputs

DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}


def close(found: Tensor, expected: Any, dtype: torch.dtype = torch.float64) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.detach().double(), wanted, rtol=0, atol=TOLERANCE[dtype])


class Run:
    """One worked example, computed."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.case, self.agent, self.dtype = GOLDEN["cases"][name], CASES[name], dtype
        self.signals, self.logprobs, self.values, top = example(name, dtype)
        self.outputs = outputs(self.logprobs, self.values, top)
        self.credit = self.agent.credit(self.signals)
        self.terms = make_terms(self.outputs, self.signals, self.credit, self.agent.ratio.anchor)
        weights = self.agent.weights(self.credit.mask, self.signals.group)
        self.loss, self.metrics = self.agent.loss(self.outputs, self.signals, self.credit, weights)

    def close(self, found: Tensor, key: str) -> None:
        close(masked(found, self.signals.mask), self.case[key], self.dtype)


def test_every_worked_example_has_an_agent() -> None:
    assert set(CASES) == set(GOLDEN["cases"])
    assert len(CASES) == 55


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if name != "ppo_value"])
def test_advantages_loss_and_gradient(name: str, dtype: torch.dtype) -> None:
    run = Run(name, dtype)
    expected = torch.tensor(run.case["advantages"], dtype=torch.float64)
    expected = expected[:, None] if expected.ndim == 1 else expected
    mask = run.credit.mask

    close(run.credit.advantages, masked(expected.expand(mask.shape), mask), dtype)
    close(run.loss, run.case["loss"], dtype)
    run.loss.backward()
    assert run.logprobs.grad is not None
    close(run.logprobs.grad, run.case["grad"], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_critic_loss_and_gradient(dtype: torch.dtype) -> None:
    policy, both = Run("ppo_policy", dtype), Run("ppo_value", dtype)
    assert both.credit.returns is not None
    both.close(both.credit.returns, "returns")
    close(both.loss - policy.loss, both.case["loss"], dtype)
    both.loss.backward()
    assert both.values.grad is not None
    close(both.values.grad, both.case["grad_values"], dtype)
    total, count = both.metrics["value_loss"]
    close(total / count, both.case["loss"], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k3_is", "k3_plus"])
def test_kl_per_token(kind: Any, dtype: torch.dtype) -> None:
    run = Run(f"grpo_kl_{kind}", dtype)
    log_ratio = run.agent.ratio(run.terms)
    run.close(KL(1.0, kind)(run.terms, log_ratio), "kl_per_token")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["gspo", "gspo_token", "gspo_unnormalised_seed003"])
def test_sequence_ratio(name: str, dtype: torch.dtype) -> None:
    run = Run(name, dtype)
    close(run.agent.ratio(run.terms)[:, 0].exp(), run.case["seq_ratio"], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sapo_gate(dtype: torch.dtype) -> None:
    run = Run("sapo", dtype)
    tau = torch.full_like(run.terms.old, 1.05).masked_fill(run.terms.advantages > 0, 1.0)
    run.close(soft_gate(run.agent.ratio(run.terms).exp(), tau), "gate")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if "_is_" in name or "_mis_" in name])
def test_importance_weights(name: str, dtype: torch.dtype) -> None:
    if "is_weight" not in GOLDEN["cases"][name]:
        pytest.skip("a case of the KL, not of a correction")
    run = Run(name, dtype)
    (correction,) = run.agent.corrections
    run.close(correction(run.terms), "is_weight")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["vespo", "vespo_token_tis"])
def test_vespo_weight(name: str, dtype: torch.dtype) -> None:
    run = Run(name, dtype)
    # The loss of a token is -phi A log pi, so phi is what an advantage and a log-prob of one leave.
    terms = replace(run.terms, logprobs=torch.ones_like(run.terms.logprobs))
    kernel = run.agent.trust_region
    assert isinstance(kernel, SequenceKernel)
    log_ratio, (importance, _) = run.agent.ratio(run.terms), run.agent._corrections(run.terms)
    loss = kernel(terms, log_ratio, importance).loss
    phi = loss[:, 0] / -run.terms.advantages[:, 0]
    expected = torch.tensor(run.case["phi"], dtype=torch.float64)
    scored = run.terms.advantages[:, 0] != 0
    close(phi[scored], expected[scored], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("dppo")])
def test_divergence_and_mask(name: str, dtype: torch.dtype) -> None:
    run = Run(name, dtype)
    region = run.agent.trust_region
    assert isinstance(region, DivergenceMask)
    run.close(region.divergence(run.terms), "divergence")
    log_ratio = run.agent.ratio(run.terms)
    bounded = region(run.terms, log_ratio, torch.ones_like(log_ratio)).bounded
    run.close((~bounded).to(dtype), "keep")


def test_entropy_mask() -> None:
    run = Run("dapo_top_entropy", torch.float64)
    assert run.credit.keep is not None
    assert run.signals.entropy is not None
    run.close(run.signals.entropy, "entropy")
    run.close(run.credit.keep.double(), "entropy_mask")


def test_off_policy_mask() -> None:
    run = Run("dapo_opsm", torch.float64)
    (correction,) = run.agent.corrections
    assert isinstance(correction, OffPolicyMask)
    close(correction.evidence(run.terms)[:, 0], run.case["seq_kl"])
    close(correction(run.terms)[:, 0], run.case["keep"])


def test_token_rewards_and_returns() -> None:
    run = Run("reinforce_pp", torch.float64)
    run.close(token_rewards(run.signals, 0.05), "token_rewards")
    run.close(ReturnToGo(kl=0.05)(run.signals), "returns")


def test_generalised_advantages() -> None:
    run = Run("ppo_policy", torch.float64)
    gae = GAE(lam=0.95, kl=0.05)
    run.close(gae(run.signals), "gae_raw")
    run.close(gae.returns(run.signals), "returns")


# The accumulation block: micro-batches of one optimiser window.

AGGREGATIONS: dict[str, Agent] = {
    "token_mean": dapo(std_ddof=1),
    "seq_mean_token_mean": grpo(0.2, 0.28, std_ddof=1),
    "seq_mean_token_sum_norm": replace(dr_grpo(8, 0.2, 0.28), advantage=grpo(std_ddof=1).advantage),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_micro_batches_add_up(name: str) -> None:
    agent, block = AGGREGATIONS[name], GOLDEN["accumulation"][name]
    signals, logprobs, values, top = example("dapo", torch.float64)
    credit, whole = agent.credit(signals), outputs(logprobs, values, top)
    weights = agent.weights(credit.mask, signals.group)

    losses = [
        agent.loss(whole.rows(rows), signals.rows(rows), credit.rows(rows), weights[rows])[0]
        for rows in block["micro_batches"]
    ]
    found = torch.stack(losses).detach()
    close(found, block["micro_losses"])
    close(found.sum(), block["global_loss"])

    wrong = block["mean_of_micro_token_means_WRONG"]
    if wrong is not None:
        assert (found.sum() - wrong).abs() > 1e-2


# The edge_cases block.

EDGES = GOLDEN["edge_cases"]


def one_group(rewards: list[float], dtype: torch.dtype = torch.float64) -> Signals:
    size = len(rewards)
    return Signals(
        mask=torch.ones(size, 1, dtype=torch.bool),
        group=torch.zeros(size, dtype=torch.int64),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        truncated=torch.zeros(size, dtype=torch.bool),
    )


@pytest.mark.parametrize(
    ("agent", "key"),
    [
        (grpo(), "grpo"),
        (grpo(std_ddof=1), "grpo"),
        (gopo(), "gopo_average"),
        (gopo(ties="first"), "gopo_first_BAD"),
        (rloo(kl=0), "rloo"),
    ],
)
def test_zero_std_group(agent: Agent, key: str) -> None:
    edge = EDGES["zero_std_group"]
    close(agent.credit(one_group(edge["rewards"])).advantages[:, 0], edge[key])


def test_near_zero_std_group() -> None:
    edge = EDGES["near_zero_std"]
    signals = one_group(edge["rewards"])
    for eps, key in ((1e-4, "grpo_eps1e4"), (1e-6, "grpo_eps1e6")):
        close(grpo(std_ddof=1, adv_eps=eps).credit(signals).advantages[:, 0], edge[key])


def test_group_of_one() -> None:
    edge = EDGES["group_of_one"]
    for agent, key in ((grpo(), "grpo"), (gopo(), "gopo")):
        close(agent.credit(one_group(edge["rewards"])).advantages[:, 0], edge[key])


def test_two_grpo_equal() -> None:
    close(grpo().credit(one_group([1.0, 1.0])).advantages[:, 0], EDGES["two_grpo_equal"])


@pytest.mark.parametrize("edge", EDGES["soft_overlong"], ids=lambda edge: f"n={edge['n']}")
def test_soft_overlong(edge: dict[str, float]) -> None:
    limits = int(edge["l_max"]), int(edge["l_cache"])
    assert SoftOverlong(*limits).penalty(int(edge["n"])) == edge["paper"]
    assert SoftOverlong(*limits, kind="tutorial").penalty(int(edge["n"])) == edge["seed000"]


@pytest.mark.parametrize(
    "edge", EDGES["sapo_gate_derivative"], ids=lambda e: f"{e['r']}-{e['tau']}"
)
def test_sapo_gate_derivative(edge: dict[str, float]) -> None:
    ratio = torch.tensor(edge["r"], dtype=torch.float64, requires_grad=True)
    soft_gate(ratio, edge["tau"]).backward()
    assert ratio.grad is not None
    close(ratio.grad, edge["df_dr"])


@pytest.mark.parametrize("edge", EDGES["vespo_phi"], ids=lambda e: f"{e['w']}-{e['k']}")
def test_vespo_kernel(edge: dict[str, float]) -> None:
    weight = torch.tensor(edge["w"], dtype=torch.float64)
    close(vespo_kernel(weight.log(), edge["k"], edge["lam"]), edge["phi"])


def test_token_ratio_is_the_plain_one() -> None:
    run = Run("grpo", torch.float64)
    gap = run.terms.logprobs - run.terms.old
    close(TokenRatio()(run.terms), gap.detach())
