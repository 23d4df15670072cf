"""What a verifier says of a completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Score:
    """A verdict on one completion or episode.

    Attributes:
        value: the reward; nan where it cannot be scored (such a rollout leaves the baseline, it is
            not 0).
        success: whether the task was solved. A bonus for the format alone is no success.
        components: named parts of the reward and other numbers worth logging.
    """

    value: float
    success: bool
    components: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "success", bool(self.success))
        parts = {str(name): float(part) for name, part in self.components.items()}
        object.__setattr__(self, "components", parts)


Verifier = Callable[[str, str], Score | float]
"""Grades a completion against a reference; a plain number of at least 1 counts as solved."""


def as_score(verdict: Score | float) -> Score:
    """A verdict as a `Score`: a plain number counts as solved when it is at least 1."""
    if isinstance(verdict, Score):
        return verdict
    return Score(value=verdict, success=verdict >= 1)
