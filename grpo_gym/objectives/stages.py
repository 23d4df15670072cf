"""The kinds of stage that an agent is composed of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.types import Group

Anchor = Literal["old", "behaviour"]


@dataclass(frozen=True, eq=False)
class Terms:
    """Log-probs of some rows, with 0 wherever `mask` is False.

    Attributes:
        mask: (B, T) bool, the tokens that enter the loss.
        advantages: (B, T).
        logprobs: (B, T) of the policy being trained, with gradient.
        old: (B, T) of the policy that the ratio is anchored at.
        behaviour: (B, T) that the engine reported; nan where it reported none.
        reference: (B, T) of the reference policy.
        entropy: (B, T) of the policy being trained, with gradient.
        tokens: (B, T) int64 token ids.
        top_ids: (B, T, K) int64 most probable tokens of the behaviour policy.
        behaviour_top: (B, T, K) their log-probs under the behaviour policy.
        policy_top: (B, T, K) their log-probs under the policy being trained, without gradient.
        keep: (B, T) bool, tokens whose surrogate counts; None: all.
    """

    mask: Tensor
    advantages: Tensor
    logprobs: Tensor
    old: Tensor
    behaviour: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None
    tokens: Tensor | None = None
    top_ids: Tensor | None = None
    behaviour_top: Tensor | None = None
    policy_top: Tensor | None = None
    keep: Tensor | None = None


class Surrogate(NamedTuple):
    """What a trust region answers: (B, T) losses, and (B, T) whether the region bounds them."""

    loss: Tensor
    bounded: Tensor


class Stage:
    """A part of an agent: a frozen dataclass that is called."""

    @property
    def needs(self) -> Needs:
        """What has to be computed for this stage."""
        return Needs()


class Advantage(Stage, ABC):
    """Credit of each rollout or token, from the signals of the whole batch."""

    @property
    def min_group_size(self) -> int:
        """Fewest rollouts per group for which the advantage means something."""
        return 2

    @abstractmethod
    def __call__(self, signals: Signals) -> Tensor:
        """(B,) or (B, T) float64; what it gives for rows with a nan reward is not used."""

    def returns(self, signals: Signals) -> Tensor | None:
        """(B, T) float64 targets for a critic, if this advantage uses one."""
        return None


class AdvantageOf(Advantage):
    """An advantage made from another one, `inner`."""

    inner: Advantage

    @property
    def needs(self) -> Needs:
        """What the inner advantage needs."""
        return self.inner.needs

    @property
    def min_group_size(self) -> int:
        """That of the inner advantage."""
        return self.inner.min_group_size

    def returns(self, signals: Signals) -> Tensor | None:
        """Those of the inner advantage."""
        return self.inner.returns(signals)


class Ratio(Stage, ABC):
    """How far the policy has moved from its anchor."""

    anchor: Anchor

    @property
    def needs(self) -> Needs:
        """The behaviour policy's log-probs where the ratio is anchored at it."""
        return Needs(behaviour=self.anchor == "behaviour")

    @abstractmethod
    def __call__(self, terms: Terms) -> Tensor:
        """(B, T) logarithm of the ratio, with gradient; a ratio of sequences is repeated over T."""


class TrustRegion(Stage, ABC):
    """The surrogate loss of each token."""

    folds_importance: ClassVar[bool] = False
    """Whether the importance weight goes into the region instead of multiplying its loss."""

    @abstractmethod
    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """Loss from terms, (B, T) log-ratio, and (B, T) importance weights of the corrections."""


class Aggregation(Stage, ABC):
    """Weights of the tokens' losses, from the mask of a whole optimiser window."""

    @abstractmethod
    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """(B, T) float64 weights, 0 where `mask` is False; the loss is the weighted sum."""


class Correction(Stage, ABC):
    """A weight of each token's surrogate, without gradient."""

    importance: ClassVar[bool] = False
    """Whether the weight is an importance ratio between old and behaviour policy."""

    @abstractmethod
    def __call__(self, terms: Terms) -> Tensor:
        """(B, T) weights."""

    def keep(self, signals: Signals, mask: Tensor) -> Tensor | None:
        """(B, T) bool chosen on the whole batch: tokens whose surrogate counts. None: all."""
        return None

    def restrict(self, terms: Terms) -> Tensor:
        """(B, T) bool, the tokens that stay in the loss and its denominator."""
        return terms.mask


class Penalty(Stage, ABC):
    """A loss added to each token's surrogate, after the corrections."""

    @abstractmethod
    def __call__(self, terms: Terms, log_ratio: Tensor) -> Tensor:
        """(B, T) loss, coefficient included, with gradient."""

    def adapt(self, metrics: Mapping[str, float]) -> "Penalty":
        """The penalty for the next update, given the mean metrics of this one."""
        return self

    @property
    def state(self) -> tuple[float, ...]:
        """The numbers that `adapt` has changed, for a checkpoint."""
        return ()

    def restore(self, state: Sequence[float]) -> "Penalty":
        """The penalty with the numbers that `state` gave."""
        return self


class Shaping(Stage, ABC):
    """A change of the rewards of one group."""

    @abstractmethod
    def __call__(self, group: Group) -> Group:
        """The group with other rewards."""


class Selection(Stage, ABC):
    """A choice of what to train on."""

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups, or parts of groups, that stay."""
