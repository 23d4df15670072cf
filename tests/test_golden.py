"""The worked examples: advantages, loss, gradient and intermediates, computed independently."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_agents import dapo, dr_grpo, grpo, gspo
from grpo_gym.agent import Agent
from grpo_gym.objectives.aggregations import PromptMean
from grpo_gym.objectives.signals import Credit, Outputs, Signals

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
INPUTS = GOLDEN["inputs"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}

UNBIASED = {"std_ddof": 1}
CASES: dict[str, Agent] = {
    "grpo": grpo(**UNBIASED),
    "grpo_population_std": grpo(),
    **{
        f"grpo_kl_{kind}": grpo(kl=0.04, kl_kind=kind, **UNBIASED)
        for kind in ("k1", "k2", "k3", "k3_is", "k3_plus")
    },
    "grpo_two_sided_delta": grpo(dual_clip=1.3, **UNBIASED),
    "dr_grpo": dr_grpo(budget=8),
    "dapo": dapo(**UNBIASED),
    "dapo_prompt_mean": replace(dapo(**UNBIASED), aggregation=PromptMean()),
    "dapo_overlong_filter": dapo(mask_truncated=True, **UNBIASED),
    "gspo": gspo(0.05, 0.15, **UNBIASED),
    "gspo_unnormalised_seed003": gspo(0.05, 0.15, length_normalize=False, **UNBIASED),
    "gspo_paper_eps_all_clipped": gspo(**UNBIASED),
}


def signals(dtype: torch.dtype, hyper: dict[str, Any]) -> Signals:
    truncated = torch.zeros(6, dtype=torch.bool)
    truncated[hyper.get("truncated_rows", [])] = True
    return Signals(
        mask=torch.tensor(INPUTS["mask"]).bool(),
        group=torch.tensor(INPUTS["prompt"]),
        rewards=torch.tensor(INPUTS["rewards"], dtype=torch.float64),
        truncated=truncated,
        old=torch.tensor(INPUTS["logp_old"], dtype=dtype),
        behaviour=torch.tensor(INPUTS["logp_rollout"], dtype=dtype),
        reference=torch.tensor(INPUTS["logp_ref"], dtype=dtype),
    )


def close(found: Any, expected: Any, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found).double(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=TOLERANCE[dtype],
    )


def check_advantages(credit: Credit, mask: torch.Tensor, expected: Any, dtype: torch.dtype) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    wanted = wanted[:, None].expand(mask.shape) if wanted.ndim == 1 else wanted
    close(credit.advantages, torch.where(credit.mask, wanted, 0.0).tolist(), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, dtype: torch.dtype) -> None:
    agent, case = CASES[name], GOLDEN["cases"][name]
    batch = signals(dtype, case["hyper"])
    logprobs = torch.tensor(INPUTS["logp_new"], dtype=dtype, requires_grad=True)

    credit = agent.credit(batch)
    loss, _ = agent.loss(Outputs(logprobs), batch, credit, agent.weights(credit.mask, batch.group))
    loss.backward()

    check_advantages(credit, batch.mask, case["advantages"], dtype)
    close(loss.detach(), case["loss"], dtype)
    close(logprobs.grad, case["grad"], dtype)
