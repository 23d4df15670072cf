"""Changes of the rewards, group by group, before advantages are computed."""

from dataclasses import dataclass, replace
from typing import Literal

from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.stages import Shaping
from grpo_gym.types import Group

Overlong = Literal["paper", "tutorial"]


@dataclass(frozen=True)
class SoftOverlong(Shaping):
    """Adds factor * P(n) to the reward of a rollout of n sampled tokens.

    P is 0 up to the safe length max_tokens - buffer, falls linearly to -1 at max_tokens, and stays
    there. DAPO, arXiv 2503.14476, eq. 13.

    Attributes:
        max_tokens: most tokens that a rollout may have.
        buffer: width of the interval over which the penalty grows.
        factor: weight of the penalty.
        kind: "paper", or "tutorial" for a penalty that goes on growing beyond max_tokens.
    """

    max_tokens: int
    buffer: int
    factor: float = 1.0
    kind: Overlong = "paper"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("paper", "tutorial"))
        at_least("buffer", self.buffer, 1)
        at_least("max_tokens", self.max_tokens, self.buffer)

    def penalty(self, tokens: int) -> float:
        """P(n), without the factor."""
        over = max(0, tokens - (self.max_tokens - self.buffer)) / self.buffer
        return -min(over, 1.0) if self.kind == "paper" else -over

    def __call__(self, group: Group) -> Group:
        """See `Shaping`."""
        rollouts = tuple(
            replace(r, reward=r.reward + self.factor * self.penalty(r.sampled_tokens))
            for r in group.rollouts
        )
        return replace(group, rollouts=rollouts)


def soft_overlong(
    max_tokens: int | None, buffer: int, kind: Overlong = "paper"
) -> tuple[SoftOverlong, ...]:
    """The punishment as a tuple for `Agent.shaping`; empty where no `max_tokens` is given."""
    return () if max_tokens is None else (SoftOverlong(max_tokens, buffer, kind=kind),)
