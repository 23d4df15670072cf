"""Penalties: losses added to every token's surrogate, under the same normaliser."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.signals import Needs
from grpo_gym.objectives.stages import Penalty, Terms

KLKind = Literal["k1", "k2", "k3", "k3_is", "k3_plus"]


def k1(x: Tensor, log_ratio: Tensor) -> Tensor:
    """-x; its expected gradient is 0, so it belongs in a reward and not in a loss."""
    return -x


def k2(x: Tensor, log_ratio: Tensor) -> Tensor:
    """x^2 / 2; on policy its expected gradient is that of KL(policy || reference)."""
    return x**2 / 2


def k3(x: Tensor, log_ratio: Tensor) -> Tensor:
    """e^x - x - 1, unbiased and never negative. DeepSeekMath, arXiv 2402.03300, eq. 4."""
    bounded = x.clamp(-20, 20)
    return bounded.exp() - bounded - 1


def k3_is(x: Tensor, log_ratio: Tensor) -> Tensor:
    """R (e^x - x - 1), with gradient r (log pi - log pi_ref). DeepSeek-V3.2, arXiv 2512.02556."""
    return bounded_exp(log_ratio) * k3(x, log_ratio)


def k3_plus(x: Tensor, log_ratio: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2."""
    value, slope = k3(x, log_ratio), k2(x, log_ratio)
    return value.detach() + slope - slope.detach()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_is": k3_is,
    "k3_plus": k3_plus,
}
"""Estimators of KL(policy || reference) from x = log pi_ref - log pi and the log-ratio."""


@dataclass(frozen=True)
class KL(Penalty):
    """coefficient * KL(policy || reference), estimated at each sampled token.

    Attributes:
        coefficient: the weight beta.
        kind: the estimator, a name in `KL_ESTIMATORS`.
    """

    coefficient: float
    kind: KLKind = "k3"

    def __post_init__(self) -> None:
        one_of("KL estimator", self.kind, KL_ESTIMATORS)

    @property
    def needs(self) -> Needs:
        """The reference policy."""
        return Needs(reference=True)

    def __call__(self, terms: Terms, log_ratio: Tensor) -> Tensor:
        """See `Penalty`."""
        assert terms.reference is not None
        x = terms.reference - terms.logprobs
        return self.coefficient * KL_ESTIMATORS[self.kind](x, log_ratio)


def kl_penalty(coefficient: float, kind: KLKind = "k3") -> tuple[KL, ...]:
    """The penalty as a tuple for `Agent.penalties`; empty where the coefficient is 0."""
    return (KL(coefficient, kind),) if coefficient else ()


@dataclass(frozen=True)
class Entropy(Penalty):
    """-coefficient * entropy: a bonus for undecided distributions.

    Attributes:
        coefficient: the weight.
    """

    coefficient: float

    @property
    def needs(self) -> Needs:
        """The entropy of the policy, with gradient."""
        return Needs(entropy=True)

    def __call__(self, terms: Terms, log_ratio: Tensor) -> Tensor:
        """See `Penalty`."""
        assert terms.entropy is not None
        return -self.coefficient * terms.entropy


@dataclass(frozen=True)
class AdaptiveEntropy(Penalty):
    """An entropy bonus that is on while the entropy is low, and finds its own coefficient.

    After an update with mean entropy h, the coefficient rises by `step` if h <= target and falls by
    it otherwise, within [lowest, highest]; the bonus of the next update is on if h <= target.
    Skywork-OR1, arXiv 2505.22312.

    Attributes:
        coefficient: the present weight.
        target: mean entropy per token, in nats, below which the bonus is on.
        step: change of the coefficient per update.
        lowest: smallest coefficient.
        highest: largest coefficient.
        last_entropy: mean entropy of the last update; infinite before the first one.
    """

    coefficient: float = 0.0
    target: float = 0.2
    step: float = 0.005
    lowest: float = 0.0
    highest: float = 1.0
    last_entropy: float = math.inf

    def __post_init__(self) -> None:
        at_least("step", self.step, 0)
        at_least("highest", self.highest, self.lowest)

    @property
    def needs(self) -> Needs:
        """The entropy of the policy, with gradient."""
        return Needs(entropy=True)

    def __call__(self, terms: Terms, log_ratio: Tensor) -> Tensor:
        """See `Penalty`."""
        coefficient = self.coefficient if self.last_entropy <= self.target else 0.0
        return Entropy(coefficient)(terms, log_ratio)

    def adapt(self, metrics: Mapping[str, float]) -> "AdaptiveEntropy":
        """See `Penalty`; reads metrics["entropy"], and stays as it is where there is none that is finite."""
        entropy = metrics.get("entropy", math.nan)
        if not math.isfinite(entropy):
            return self
        moved = self.coefficient + (self.step if entropy <= self.target else -self.step)
        bounded = min(max(moved, self.lowest), self.highest)
        return replace(self, coefficient=bounded, last_entropy=entropy)

    @property
    def state(self) -> tuple[float, ...]:
        """Coefficient and last entropy."""
        return (self.coefficient, self.last_entropy)

    def restore(self, state: Sequence[float]) -> "AdaptiveEntropy":
        """See `Penalty`."""
        coefficient, last_entropy = state
        return replace(self, coefficient=coefficient, last_entropy=last_entropy)
