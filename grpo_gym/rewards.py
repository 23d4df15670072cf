"""What a verifier says of a completion, and how several such verdicts make one reward."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_gym.errors import UsageError


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


@dataclass(frozen=True)
class Criterion:
    """One named function of a rubric. With weight 0 it is logged, but no part of the reward."""

    name: str
    verifier: Verifier
    weight: float = 1.0


@dataclass(frozen=True)
class Rubric:
    """A weighted sum of criteria; itself a verifier.

    The first criterion decides success, so that a bonus for the format never counts as a solved
    task. A criterion that says nan makes the whole score nan, unless its weight is 0.

    Raises:
        UsageError: There is no criterion, or two have the same name.
    """

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        names = [criterion.name for criterion in self.criteria]
        if not names:
            raise UsageError("a rubric needs at least one criterion")
        if len(set(names)) < len(names):
            raise UsageError(f"a rubric's criteria need different names, got {', '.join(names)}")

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference` by every criterion."""
        verdicts = [as_score(c.verifier(completion, reference)) for c in self.criteria]
        weighted = [
            criterion.weight * verdict.value
            for criterion, verdict in zip(self.criteria, verdicts, strict=True)
            if criterion.weight != 0
        ]
        return Score(
            value=sum(weighted),
            success=verdicts[0].success,
            components={
                criterion.name: verdict.value
                for criterion, verdict in zip(self.criteria, verdicts, strict=True)
            },
        )


def as_score(verdict: Score | float) -> Score:
    """A verdict as a `Score`: a plain number counts as solved when it is at least 1."""
    if isinstance(verdict, Score):
        return verdict
    return Score(value=verdict, success=verdict >= 1)
