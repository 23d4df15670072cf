"""An agent: the value that composes the stages of an update rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from typing import Literal

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.checks import check_stages, require
from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.critics import ValueLoss
from grpo_gym.objectives.metrics import batch_metrics, loss_metrics, pair
from grpo_gym.objectives.reductions import masked
from grpo_gym.objectives.signals import Credit, Metrics, Needs, Outputs, Signals
from grpo_gym.objectives.stages import (
    Advantage,
    Aggregation,
    Correction,
    Penalty,
    Ratio,
    Selection,
    Shaping,
    Stage,
    Terms,
    TrustRegion,
)
from grpo_gym.objectives.terms import make_terms
from grpo_gym.types import Group


@dataclass(frozen=True)
class Agent:
    """An update rule as a value.

    `repr` records it; `==`, `hash`, `pickle` and `dataclasses.replace` work.

    Attributes:
        advantage: credit of each rollout or token.
        ratio: how far the policy has moved from its anchor.
        trust_region: surrogate loss of each token.
        aggregation: weights of the tokens' losses.
        corrections: weights of the surrogate, without gradient.
        penalties: losses added to the surrogate.
        critic: loss of the critic, for an advantage that uses one.
        shaping: changes of the rewards, group by group.
        selection: choices of what to train on.
        max_rounds: most collections for one batch; above 1, groups that the selection dropped are
            replaced.
        exhausted: what to do when the rounds did not fill the batch: "train" on what there is, or
            "raise".
        group_size: the only group size that the rule is meant for; None: any.
        mask_truncated: truncated rollouts leave the loss.
        truncated_in_baseline: and their rewards stay in their group's statistics.
        empty_in_baseline: rewards of rollouts without a sampled token count in their group's
            statistics.
        allow_singleton_groups: a group of one has advantage 0 instead of being refused.
        max_nan_fraction: largest share of tokens that may lack a behaviour log-prob where they are
            needed.
    """

    advantage: Advantage
    ratio: Ratio
    trust_region: TrustRegion
    aggregation: Aggregation
    corrections: tuple[Correction, ...] = ()
    penalties: tuple[Penalty, ...] = ()
    critic: ValueLoss | None = None
    shaping: tuple[Shaping, ...] = ()
    selection: tuple[Selection, ...] = ()
    max_rounds: int = 1
    exhausted: Literal["train", "raise"] = "train"
    group_size: int | None = None
    mask_truncated: bool = False
    truncated_in_baseline: bool = True
    empty_in_baseline: bool = False
    allow_singleton_groups: bool = False
    max_nan_fraction: float = 0.01

    def __post_init__(self) -> None:
        check_stages(self)
        one_of("exhausted", self.exhausted, ("train", "raise"))
        at_least("max_rounds", self.max_rounds, 1)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage, in the order of the fields."""
        values = [getattr(self, f.name) for f in fields(self)]
        flat = [v if isinstance(v, tuple) else (v,) for v in values]
        return tuple(s for group in flat for s in group if isinstance(s, Stage))

    @property
    def needs(self) -> Needs:
        """What has to be computed for this agent."""
        return reduce(or_, (stage.needs for stage in self.stages))

    def check(self, group_size: int) -> None:
        """Refuse a group size that this agent cannot learn from.

        Raises:
            UsageError: The group is smaller than the advantage needs, or not the size of the rule.
        """
        smallest = 1 if self.allow_singleton_groups else self.advantage.min_group_size
        if group_size < smallest:
            raise UsageError(
                f"group_size is {group_size}, but {type(self.advantage).__name__} compares the "
                f"rollouts of a group; use at least {smallest}, or an agent with a critic (ppo)"
            )
        if self.group_size not in (None, group_size):
            raise UsageError(
                f"group_size is {group_size}, but this agent is defined for groups of "
                f"{self.group_size}; use that, or grpo for other sizes"
            )

    def shape(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups with shaped rewards."""
        for shaping in self.shaping:
            groups = [shaping(group) for group in groups]
        return tuple(groups)

    def select(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups, or parts of them, to train on; there may be none."""
        for selection in self.selection:
            groups = selection(groups)
        return tuple(groups)

    def credit(self, signals: Signals) -> Credit:
        """Advantages and the effective mask of a whole batch, all groups and all ranks.

        Raises:
            UsageError: Signals that the agent needs are missing.
        """
        require(self.needs, signals, self.max_nan_fraction)
        possible = _possible(signals)
        scored = self._scored(signals, possible)
        mask = possible & ~signals.truncated[:, None] if self.mask_truncated else possible
        mask = self._restrict(signals, mask)
        advantages = self.advantage(scored)
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand(mask.shape)
        keeps = [c.keep(signals, mask) for c in self.corrections]
        chosen = [keep for keep in keeps if keep is not None]
        return Credit(
            advantages=masked(advantages, mask & ~scored.rewards.isnan()[:, None]),
            mask=mask,
            returns=self.advantage.returns(scored),
            keep=reduce(torch.logical_and, chosen) if chosen else None,
            metrics=batch_metrics(signals, scored, possible, mask),
        )

    def weights(self, mask: Tensor, group: Tensor) -> Tensor:
        """(B, T) float64 weights of the tokens' losses in one optimiser window.

        Args:
            mask: (B, T) bool, `Credit.mask` of every row of the window, over all micro-batches and
                ranks.
            group: (B,) int64, `Signals.group` of the same rows.
        """
        return self.aggregation(mask, group)

    def loss(
        self, outputs: Outputs, signals: Signals, credit: Credit, weights: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The loss of some rows: sum it over micro-batches, and do not divide it.

        Everything lies on one device.

        Args:
            outputs: what the policy says about these rows.
            signals: the signals of these rows.
            credit: the credit of these rows.
            weights: (B, T) these rows of `weights`.

        Returns:
            The scalar loss with gradient, in float32 or float64, and (sum, count) pairs of metrics.
        """
        terms = make_terms(outputs, signals, credit, self.ratio.anchor)
        log_ratio = self.ratio(terms)
        importance, keep = self._corrections(terms)
        surrogate = self.trust_region(terms, log_ratio, importance)
        outer = keep if self.trust_region.folds_importance else keep * importance
        losses = surrogate.loss * outer
        for penalty in self.penalties:
            losses = losses + penalty(terms, log_ratio)
        metrics = loss_metrics(terms, log_ratio, surrogate.bounded, importance, keep)
        metrics["impossible_now"] = pair(credit.mask & ~terms.mask, credit.mask)
        if self.critic is not None:
            value_losses = self._value_losses(self.critic, outputs, signals, credit, terms)
            losses = losses + value_losses
            metrics["value_loss"] = pair(value_losses, terms.mask)
        # The last summand keeps the graph alive when no token is left.
        loss = (masked(losses, terms.mask) * weights.to(losses)).sum() + 0 * terms.logprobs.sum()
        return loss, metrics

    def adapt(self, metrics: Mapping[str, float]) -> "Agent":
        """The agent for the next update, given the mean metrics of this one."""
        return replace(self, penalties=tuple(p.adapt(metrics) for p in self.penalties))

    @property
    def state(self) -> tuple[tuple[float, ...], ...]:
        """The numbers that `adapt` has changed, for a checkpoint."""
        return tuple(penalty.state for penalty in self.penalties)

    def restore(self, state: Sequence[Sequence[float]]) -> "Agent":
        """The agent with the numbers that `state` gave."""
        pairs = zip(self.penalties, state, strict=True)
        return replace(self, penalties=tuple(p.restore(numbers) for p, numbers in pairs))

    def _scored(self, signals: Signals, possible: Tensor) -> Signals:
        """The signals with nan for every reward that must not enter a baseline."""
        baseline = signals.rewards.isfinite()
        if not self.empty_in_baseline:
            baseline = baseline & signals.mask.any(1)
        if self.mask_truncated and not self.truncated_in_baseline:
            baseline = baseline & ~signals.truncated
        parts = signals.components
        return replace(
            signals,
            mask=possible,
            rewards=signals.rewards.double().where(baseline, torch.nan),
            components=None if parts is None else parts.where(baseline[:, None], torch.nan),
        )

    def _restrict(self, signals: Signals, mask: Tensor) -> Tensor:
        """The mask without the tokens that a correction takes out of the denominator."""
        if signals.old is None or not self.corrections:
            return mask
        blank = Credit(torch.zeros_like(signals.old), mask)
        terms = make_terms(Outputs(signals.old), signals, blank, self.ratio.anchor)
        return reduce(torch.logical_and, (c.restrict(terms) for c in self.corrections))

    def _corrections(self, terms: Terms) -> tuple[Tensor, Tensor]:
        """(B, T) importance weights, and (B, T) other weights."""
        importance = torch.ones_like(terms.old)
        keep = importance if terms.keep is None else terms.keep.to(importance)
        for correction in self.corrections:
            # Masked positions hold 1, the weight whose logarithm is 0.
            weight = correction(terms).detach().where(terms.mask, 1.0)
            if correction.importance:
                importance = importance * weight
            else:
                keep = keep * weight
        return importance, keep

    def _value_losses(
        self, critic: ValueLoss, outputs: Outputs, signals: Signals, credit: Credit, terms: Terms
    ) -> Tensor:
        if outputs.values is None or signals.values is None or credit.returns is None:
            raise UsageError("this agent trains a critic, but there are no values; see Agent.needs")
        new, old, returns = (
            masked(values.to(terms.logprobs), terms.mask)
            for values in (outputs.values, signals.values, credit.returns)
        )
        return critic(new, old, returns)


def _possible(signals: Signals) -> Tensor:
    """(B, T) bool, the sampled tokens to which neither policy gives probability 0."""
    possible = signals.mask
    for logprobs in (signals.old, signals.behaviour):
        if logprobs is not None:
            possible = possible & ~logprobs.isinf()
    return possible
