"""What a verifier says of a completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_NO_PARTS: Mapping[str, float] = {}


@dataclass(frozen=True, init=False)
class Score:
    """A verdict on one completion or episode.

    Attributes:
        value: the reward; nan where it cannot be scored (such a rollout leaves the baseline, it is
            not 0).
        success: whether the task was solved. A bonus for the format alone is no success.
        components: named parts of the reward and other numbers worth logging; a copy.
    """

    value: float
    success: bool
    components: Mapping[str, float] = field(hash=False)

    def __init__(
        self, value: float, success: bool, components: Mapping[str, float] = _NO_PARTS
    ) -> None:
        parts: dict[str, float] = {}
        for name, part in components.items():
            parts[str(name)] = float(part)
        fields = vars(self)  # every episode makes one: half the time of a generated __init__
        fields["value"] = float(value)
        fields["success"] = bool(success)
        fields["components"] = parts


Verifier = Callable[[str, str], Score | float]
"""Grades a completion against a reference; a plain number of at least 1 counts as solved."""


def as_score(verdict: Score | float) -> Score:
    """A verdict as a `Score`: a plain number counts as solved when it is at least 1."""
    if isinstance(verdict, Score):
        return verdict
    return Score(value=verdict, success=verdict >= 1)
