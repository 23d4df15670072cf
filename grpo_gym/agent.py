"""An agent: the value that composes the stages of an update rule."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from typing import Any, Literal

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.ratios import LOG_RATIO_LIMIT, bounded_exp
from grpo_gym.objectives.reductions import group_centred, group_std, masked
from grpo_gym.objectives.signals import Credit, Metrics, Needs, Outputs, Signals
from grpo_gym.objectives.stages import (
    Advantage,
    Aggregation,
    Anchor,
    Correction,
    Penalty,
    Ratio,
    Selection,
    Shaping,
    Stage,
    Terms,
    TrustRegion,
)
from grpo_gym.types import Group


@dataclass(frozen=True)
class Agent:
    """An update rule as a value: `repr` records it, `==`, `hash`, `pickle` and
    `dataclasses.replace` work.

    Attributes:
        advantage: credit of each rollout or token.
        ratio: how far the policy has moved from its anchor.
        trust_region: surrogate loss of each token.
        aggregation: weights of the tokens' losses.
        corrections: weights of the surrogate, without gradient.
        penalties: losses added to the surrogate.
        shaping: changes of the rewards, group by group.
        selection: choices of what to train on.
        max_rounds: most collections for one batch; above 1, groups that the selection dropped are
            replaced.
        exhausted: what to do when the rounds did not fill the batch: "train" on what there is, or
            "raise".
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
    shaping: tuple[Shaping, ...] = ()
    selection: tuple[Selection, ...] = ()
    max_rounds: int = 1
    exhausted: Literal["train", "raise"] = "train"
    mask_truncated: bool = False
    truncated_in_baseline: bool = True
    empty_in_baseline: bool = False
    allow_singleton_groups: bool = False
    max_nan_fraction: float = 0.01

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
            UsageError: The group is smaller than the advantage needs.
        """
        smallest = 1 if self.allow_singleton_groups else self.advantage.min_group_size
        if group_size < smallest:
            raise UsageError(
                f"group_size is {group_size}, but {type(self.advantage).__name__} compares the "
                f"rollouts of a group; use at least {smallest}, or an agent with a critic, such as ppo"
            )

    def shape(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups with shaped rewards."""
        for shaping in self.shaping:
            groups = [shaping(group) for group in groups]
        return tuple(groups)

    def select(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups, or parts of them, to train on; may be none."""
        for selection in self.selection:
            groups = selection(groups)
        return tuple(groups)

    def credit(self, signals: Signals) -> Credit:
        """Advantages and the effective mask of a whole batch.

        Raises:
            UsageError: Signals that the agent needs are missing.
        """
        self._require(signals)
        possible = signals.mask
        for logprobs in (signals.old, signals.behaviour):
            if logprobs is not None:
                possible = possible & ~logprobs.isinf()
        baseline = signals.rewards.isfinite()
        if not self.empty_in_baseline:
            baseline = baseline & signals.mask.any(1)
        mask = possible
        if self.mask_truncated:
            mask = mask & ~signals.truncated[:, None]
        if self.mask_truncated and not self.truncated_in_baseline:
            baseline = baseline & ~signals.truncated
        return self._credit(signals, possible, mask, baseline)

    def _credit(self, signals: Signals, possible: Tensor, mask: Tensor, baseline: Tensor) -> Credit:
        components = signals.components
        scored = replace(
            signals,
            mask=possible,
            rewards=signals.rewards.double().where(baseline, torch.nan),
            components=None
            if components is None
            else components.where(baseline[:, None], torch.nan),
        )
        advantages, returns = self.advantage(scored), self.advantage.returns(scored)
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand(mask.shape)
        used = mask & baseline[:, None]
        return Credit(
            advantages=masked(advantages, used),
            mask=mask,
            returns=returns,
            metrics=_batch_metrics(signals, scored, mask, possible),
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

        Args:
            outputs: what the policy says about these rows.
            signals: the signals of these rows.
            credit: the credit of these rows.
            weights: (B, T) these rows of `weights`.

        Returns:
            The scalar loss with gradient, and (sum, count) pairs of metrics.
        """
        terms = make_terms(outputs, signals, credit, self.ratio.anchor)
        log_ratio = self.ratio(terms)
        importance, keep = self._corrections(terms)
        surrogate = self.trust_region(terms, log_ratio, importance)
        outer = keep if self.trust_region.folds_importance else keep * importance
        losses = surrogate.loss * outer
        for penalty in self.penalties:
            losses = losses + penalty(terms, log_ratio)
        # The last summand keeps the graph alive when no token is left.
        loss = (masked(losses, terms.mask) * weights.to(losses)).sum() + 0 * terms.logprobs.sum()
        metrics = _loss_metrics(terms, log_ratio, surrogate.bounded, importance, keep, credit.mask)
        return loss, metrics

    def _corrections(self, terms: Terms) -> tuple[Tensor, Tensor]:
        """(B, T) importance weights, and (B, T) other weights."""
        importance = torch.ones_like(terms.old)
        keep = importance if terms.keep is None else terms.keep.to(importance)
        for correction in self.corrections:
            weight = masked(correction(terms).detach(), terms.mask)
            if correction.importance:
                importance = importance * weight
            else:
                keep = keep * weight
        return importance, keep

    def _require(self, signals: Signals) -> None:
        needs = self.needs
        for name, signal in (
            ("old", "old"),
            ("reference", "reference"),
            ("behaviour", "behaviour"),
            ("old_entropy", "entropy"),
            ("critic", "values"),
            ("top_logprobs", "behaviour_top_ids"),
        ):
            if getattr(needs, name) and getattr(signals, signal) is None:
                raise UsageError(
                    f"this agent needs signals.{signal}, which were not computed; see Agent.needs"
                )
        if needs.behaviour and signals.behaviour is not None:
            missing = (signals.behaviour.isnan() & signals.mask).sum() / signals.mask.sum().clamp(
                min=1
            )
            if missing > self.max_nan_fraction:
                raise UsageError(
                    f"the engine reported no log-prob for {missing:.1%} of the tokens, but the "
                    f"agent needs them (max_nan_fraction={self.max_nan_fraction}); use an engine "
                    "that reports them, or an agent without corrections"
                )


def make_terms(outputs: Outputs, signals: Signals, credit: Credit, anchor: Anchor = "old") -> Terms:
    """The terms of a loss: log-probs in float32 or float64, harmless wherever the mask is False."""
    raw = outputs.logprobs
    dtype = torch.float64 if raw.dtype == torch.float64 else torch.float32
    # A token that has become impossible has no gradient to give; nan stays, and spoils the loss.
    mask = credit.mask & ~raw.isinf()

    def safe(values: Tensor | None) -> Tensor | None:
        return None if values is None else masked(values.to(raw.device, dtype), mask)

    def safe_rows(values: Tensor | None) -> Tensor | None:
        return None if values is None else masked(values.to(raw.device, dtype), mask[..., None])

    logprobs = masked(raw.to(dtype), mask)
    stored, behaviour = safe(signals.old), safe(signals.behaviour)
    old = logprobs.detach() if stored is None else stored
    if anchor == "behaviour" and behaviour is not None:
        old = torch.where(behaviour.isnan(), old, behaviour)
    return Terms(
        mask=mask,
        advantages=masked(credit.advantages.to(raw.device, dtype), mask),
        logprobs=logprobs,
        old=old,
        behaviour=behaviour,
        reference=safe(signals.reference),
        entropy=safe(outputs.entropy),
        tokens=signals.tokens,
        top_ids=signals.behaviour_top_ids,
        behaviour_top=safe_rows(signals.behaviour_top_logprobs),
        policy_top=safe_rows(outputs.top_logprobs),
        keep=credit.keep,
    )


def _pair(values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of `values` over `where`."""
    return masked(values.detach().double(), where).sum(), where.sum()


def _batch_metrics(signals: Signals, scored: Signals, mask: Tensor, possible: Tensor) -> Metrics:
    centred = group_centred(scored.rewards, scored.group)
    flat = group_std(centred, scored.group, 0) < 1e-8
    return {
        "frac_reward_zero_std": _pair(flat, ~scored.rewards.isnan()),
        "frac_unscored": _pair(signals.rewards.isnan(), torch.ones_like(signals.rewards).bool()),
        "frac_impossible": _pair(signals.mask & ~possible, signals.mask),
        "frac_truncated_masked": _pair(possible & ~mask, possible),
    }


def _loss_metrics(
    terms: Terms, log_ratio: Tensor, bounded: Tensor, importance: Tensor, keep: Tensor, used: Tensor
) -> Metrics:
    mask = terms.mask
    pairs: dict[str, tuple[Any, Tensor]] = {
        "ratio_mean": (bounded_exp(log_ratio), mask),
        "clip_fraction": (bounded, mask),
        "log_ratio_clamped": (log_ratio.detach().abs() >= LOG_RATIO_LIMIT, mask),
        "impossible_now": (used & ~mask, used),
        "kept_fraction": (keep * (importance > 0), mask),
        "advantage_mean": (terms.advantages, mask),
    }
    if terms.behaviour is not None:
        gap = (terms.old - terms.behaviour).abs()
        known = mask & ~terms.behaviour.isnan()
        pairs["is_weight_mean"] = (importance, mask)
        pairs["behaviour_gap"] = (gap, known)
        pairs["behaviour_nan_fraction"] = (terms.behaviour.isnan(), mask)
    if terms.reference is not None:
        x = (terms.reference - terms.logprobs).detach().clamp(-20, 20)
        pairs["kl"] = (x.exp() - x - 1, mask)
    if terms.entropy is not None:
        pairs["entropy"] = (terms.entropy, mask)
    return {name: _pair(values, where) for name, (values, where) in pairs.items()}
