"""Random batches for the tests of agents, with everything that an agent may need."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from grpo_agents import AGENTS, cispo, dppo, gopo, grpo, rloo, sapo, vespo
from grpo_gym.agent import Agent
from grpo_gym.objectives.corrections import MIS, TIS, OffPolicyMask, TopEntropy
from grpo_gym.objectives.penalties import Entropy
from grpo_gym.objectives.signals import Credit, Outputs, Signals
from grpo_gym.objectives.token_advantages import TurnLeaveOneOut

VOCABULARY, TOP, TURNS = 6, 3, 2

DEFAULTS = {name: make() for name, make in AGENTS.items()}
OPTIONS: dict[str, Agent] = {
    "grpo_kl": grpo(kl=0.1, kl_kind="k3_is", dual_clip=1.5),
    "grpo_entropy": replace(grpo(), penalties=(Entropy(0.1),)),
    "grpo_turns": replace(grpo(), advantage=TurnLeaveOneOut()),
    "grpo_corrected": replace(grpo(), corrections=(TIS(), OffPolicyMask(0.1), TopEntropy(0.5))),
    "grpo_restricted": replace(grpo(), corrections=(MIS(masked_in_denominator=False),)),
    "grpo_mask_truncated": replace(grpo(), mask_truncated=True),
    "cispo_ppo_min": cispo(surrogate="ppo_min", advantage="batch_mean_std"),
    "dppo_binary_kl": dppo("binary_kl", 0.05, 0.05),
    "dppo_topk_tv": dppo("topk_tv", k=TOP),
    "dppo_topk_kl": dppo("topk_kl", 0.08, 0.08, k=TOP),
    "gopo_linear": gopo(half_range=1.0),
    "rloo_seq_ppo": rloo(surrogate="seq_ppo"),
    "sapo_tutorial": sapo(gate="tutorial"),
    "vespo_tis": replace(vespo(), corrections=(TIS(),)),
}
EVERY = {**DEFAULTS, **OPTIONS}


@dataclass(frozen=True)
class Example:
    """A batch and what a policy says about it; `outputs` are leaves that collect gradients."""

    signals: Signals
    outputs: Outputs

    def loss(self, agent: Agent, credit: Credit | None = None) -> Tensor:
        """The whole batch's loss."""
        credit = agent.credit(self.signals) if credit is None else credit
        weights = agent.weights(credit.mask, self.signals.group)
        return agent.loss(self.outputs, self.signals, credit, weights)[0]

    def gradient(self, agent: Agent, credit: Credit | None = None) -> tuple[Tensor, Tensor]:
        """The whole batch's loss and its gradient in the log-probs."""
        return differentiate(self.loss(agent, credit), self.outputs)


def differentiate(loss: Tensor, outputs: Outputs) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(loss, outputs.logprobs)
    return loss.detach(), gradient


def _distribution(shape: tuple[int, ...], generator: torch.Generator, near: Any = None) -> Tensor:
    """Log-probs over the vocabulary, either anew or near others."""
    noise = torch.randn((*shape, VOCABULARY), generator=generator, dtype=torch.float64)
    return torch.log_softmax(noise if near is None else near + 0.4 * noise, -1)


def make(rewards: list[list[float]], width: int, seed: int, on_policy: bool = False) -> Example:
    """A batch with one group per list of rewards; masks, truncations and log-probs by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.tensor([r for group in rewards for r in group], dtype=torch.float64)
    shape = (len(flat), width)
    mask = torch.rand(shape, generator=generator) < 0.7
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    behaviour = _distribution(shape, generator)
    old = behaviour if on_policy else _distribution(shape, generator, behaviour)
    new = old if on_policy else _distribution(shape, generator, old)
    reference = _distribution(shape, generator, behaviour)
    top = behaviour.topk(TOP, -1).indices

    def of(logprobs: Tensor) -> Tensor:
        return logprobs.gather(-1, tokens[..., None])[..., 0]

    second = torch.rand(len(flat), generator=generator, dtype=torch.float64)
    split = torch.rand((len(flat), TURNS), generator=generator, dtype=torch.float64)
    turns = split / split.sum(1, keepdim=True) * flat[:, None]
    half = torch.arange(width).expand(shape) >= (width + 1) // 2
    sizes = torch.tensor([len(group) for group in rewards])
    return Example(
        Signals(
            mask=mask,
            group=torch.repeat_interleave(torch.arange(len(sizes)), sizes),
            rewards=flat,
            truncated=torch.rand(len(flat), generator=generator) < 0.2,
            tokens=tokens,
            components=torch.stack([flat, second], 1),
            component_names=("first", "second"),
            old=of(old),
            behaviour=of(behaviour),
            reference=of(reference),
            entropy=-(old * old.exp()).sum(-1),
            values=torch.randn(shape, generator=generator, dtype=torch.float64),
            turn=half.long().where(mask, -1),
            turn_rewards=turns,
            behaviour_top_ids=top,
            behaviour_top_logprobs=behaviour.gather(-1, top),
        ),
        Outputs(
            logprobs=of(new).requires_grad_(),
            entropy=-(new * new.exp()).sum(-1).requires_grad_(),
            top_logprobs=new.gather(-1, top),
            values=torch.randn(shape, generator=generator, dtype=torch.float64),
        ),
    )


numbers = st.sampled_from([0.0, 0.25, 0.5, 1.0, -1.0])
groups = st.lists(st.lists(numbers, min_size=2, max_size=4), min_size=1, max_size=3)


def examples(on_policy: bool = False) -> st.SearchStrategy[Example]:
    """Batches of one to three groups of two to four rollouts of one to five positions."""
    return st.builds(make, groups, st.integers(1, 5), st.integers(0, 2**32 - 1), st.just(on_policy))
