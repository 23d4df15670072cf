"""The worked examples of tests/data/golden.json as tensors, and the agent of each case."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_agents import (
    cispo,
    dapo,
    dppo,
    dr_grpo,
    gdpo,
    gopo,
    grpo,
    gspo,
    gspo_token,
    luspo,
    ppo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
    sapo,
    scalerl,
    two_grpo,
    vespo,
)
from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import BatchStandardised, GroupStandardised, RefSurprise
from grpo_gym.objectives.corrections import MIS, TIS, OffPolicyMask, TopEntropy
from grpo_gym.objectives.multi_reward import SumThenNormalise
from grpo_gym.objectives.signals import Outputs, Signals
from grpo_gym.objectives.stages import Advantage

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
INPUTS = GOLDEN["inputs"]
TOP = 2


@dataclass(frozen=True)
class Given(Advantage):
    """Advantages that a case states instead of rewards: A_i falling by a tenth per token."""

    def __call__(self, signals: Signals) -> Tensor:
        rows = GroupStandardised(ddof=1)(signals)[:, None]
        return rows * (1 - 0.1 * torch.arange(signals.mask.shape[1], dtype=torch.float64))


U: dict[str, Any] = {"std_ddof": 1}
WEIGHTS = {"first": 1.0, "second": 0.5}


def _tight(agent: Agent) -> Agent:
    """DPPO's cases have the advantages of GRPO."""
    return replace(agent, advantage=GroupStandardised(ddof=1))


def _corrected(correction: Any) -> Agent:
    return replace(dapo(**U), corrections=(correction,))


CASES: dict[str, Agent] = {
    "grpo": grpo(**U),
    "grpo_population_std": grpo(),
    "grpo_kl_k1": grpo(kl=0.04, kl_kind="k1", **U),
    "grpo_kl_k2": grpo(kl=0.04, kl_kind="k2", **U),
    "grpo_kl_k3": grpo(kl=0.04, kl_kind="k3", **U),
    "grpo_kl_k3_is": grpo(kl=0.04, kl_kind="k3_is", **U),
    "grpo_kl_k3_plus": grpo(kl=0.04, kl_kind="k3_plus", **U),
    "grpo_two_sided_delta": grpo(dual_clip=1.3, **U),
    "grpo_dual_clip": replace(
        grpo(dual_clip=1.3, adv_eps=1e-6, **U), aggregation=dapo().aggregation
    ),
    "dr_grpo": dr_grpo(budget=8),
    "dapo": dapo(**U),
    "dapo_prompt_mean": dapo(loss_agg="prompt_mean", **U),
    "dapo_overlong_filter": dapo(mask_truncated=True, **U),
    "gspo": gspo(0.05, 0.15, **U),
    "gspo_token": gspo_token(0.05, 0.15, **U),
    "gspo_unnormalised_seed003": gspo(0.05, 0.15, length_normalize=False, **U),
    "gspo_paper_eps_all_clipped": gspo(**U),
    "gspo_token_tokenwise_adv": replace(gspo_token(0.05, 0.15), advantage=Given()),
    "two_grpo_population_std": two_grpo(),
    "two_grpo_unbiased_std": two_grpo(**U),
    "sapo": sapo(**U),
    "sapo_seed000": sapo(gate="tutorial", **U),
    "dapo_is_token_truncate": _corrected(TIS(3.0, 0.5)),
    "dapo_is_token_mask": _corrected(MIS(3.0, 0.5, level="token")),
    "dapo_is_sequence_truncate": _corrected(TIS(3.0, 0.5, level="sequence")),
    "dapo_is_sequence_mask": _corrected(MIS(3.0, 0.5)),
    "dapo_is_sequence_mask_trl_default": _corrected(MIS()),
    "dapo_mis_seed000_indicator_geomean": _corrected(
        MIS(1.3, seq_ratio="geomean", mask_keeps_ratio=False)
    ),
    "vespo": vespo(**U),
    "vespo_token_tis": replace(vespo(**U), corrections=(TIS(3.0),)),
    "vespo_mean_centred_seq_sum": vespo(advantage="group_center", loss_agg="seq_mean_token_sum"),
    "dppo_binary_tv": _tight(dppo()),
    "dppo_binary_kl": _tight(dppo("binary_kl", 0.05, 0.05)),
    "dppo_topk_tv": _tight(dppo("topk_tv", k=TOP)),
    "dppo_topk_kl": _tight(dppo("topk_kl", 0.08, 0.08, k=TOP)),
    "cispo": cispo(ratio_cap=1.3, **U),
    "scalerl": scalerl(ratio_cap=1.3, **U),
    "cispo_trl_scale_rewards_batch": replace(
        cispo(ratio_cap=1.3), advantage=BatchStandardised("group", "rewards", ddof=1)
    ),
    "cispo_seed000_ppo_min": cispo(surrogate="ppo_min", advantage="batch_mean_std"),
    "gdpo": gdpo(WEIGHTS, **U),
    "gdpo_seed000_no_batch_norm": gdpo(WEIGHTS, batch_norm=False, **U),
    "grpo_sum_then_normalize_multi_reward": replace(
        dapo(), advantage=SumThenNormalise(WEIGHTS, GroupStandardised(ddof=1))
    ),
    "gopo": gopo(),
    "gopo_official_ties": gopo(ties="first"),
    "gopo_seed000_linear": gopo(half_range=1.0),
    "dr_grpo_seed000_ref_surprise": replace(
        grpo(), advantage=RefSurprise(GroupStandardised(ddof=1))
    ),
    "rloo_paper_reinforce": rloo(kl=0.05),
    "rloo_trl_sequence_ppo": rloo(kl=0.05, surrogate="seq_ppo"),
    "reinforce_pp": reinforce_pp(kl=0.05),
    "reinforce_pp_baseline": reinforce_pp_baseline(),
    "ppo_policy": replace(ppo(lam=0.95, dual_clip=3.0), critic=None),
    "ppo_value": ppo(lam=0.95, dual_clip=3.0),
    "luspo": luspo(0.05, 0.15, **U),
    "dapo_top_entropy": _corrected(TopEntropy(0.4)),
    "dapo_opsm": _corrected(OffPolicyMask(0.1)),
}
"""Name of a worked example -> the agent that computes it."""


def _top(probabilities: Tensor, ids: Tensor) -> Tensor:
    return probabilities.gather(-1, ids).log()


def example(name: str, dtype: torch.dtype) -> tuple[Signals, Tensor, Tensor, Tensor]:
    """Signals, (B, T) new log-probs and values with gradient, and (B, T, K) new top log-probs."""
    hyper = GOLDEN["cases"][name].get("hyper", {})
    rows = hyper.get("rows", list(range(6)))

    def tensor(key: str) -> Tensor:
        return torch.tensor(INPUTS[key], dtype=dtype)[rows]

    truncated = torch.zeros(6, dtype=torch.bool)
    truncated[hyper.get("truncated_rows", [])] = True
    old_vocab, new_vocab = tensor("vocab_rollout_probs"), tensor("vocab_new_probs")
    ids = old_vocab.topk(TOP, -1).indices
    rewards = torch.tensor(INPUTS["rewards"], dtype=torch.float64)[rows]
    second = torch.tensor(INPUTS["rewards_2"], dtype=torch.float64)[rows]
    signals = Signals(
        mask=tensor("mask").bool(),
        group=torch.tensor(INPUTS["prompt"])[rows],
        rewards=rewards,
        truncated=truncated[rows],
        tokens=torch.full(tensor("mask").shape, INPUTS["sampled_id"]),
        components=torch.stack([rewards, second], 1),
        component_names=("first", "second"),
        old=tensor("logp_old"),
        behaviour=tensor("logp_rollout"),
        reference=tensor("logp_ref"),
        entropy=-(new_vocab * new_vocab.log()).sum(-1),
        values=tensor("values_old"),
        behaviour_top_ids=ids,
        behaviour_top_logprobs=_top(old_vocab, ids),
    )
    logprobs, values = tensor("logp_new"), tensor("values_new")
    return signals, logprobs.requires_grad_(), values.requires_grad_(), _top(new_vocab, ids)


def outputs(logprobs: Tensor, values: Tensor, top: Tensor) -> Outputs:
    return Outputs(logprobs, top_logprobs=top, values=values)
