"""How several verdicts make one reward: sum, product, gate, clip. Each is itself a verifier."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_gym.errors import UsageError
from grpo_gym.rewards.score import Score, Verifier, as_score


@dataclass(frozen=True)
class Criterion:
    """One named function of a rubric. With weight 0 it is logged, but no part of the reward.

    Raises:
        UsageError: The weight is not finite.
    """

    name: str
    verifier: Verifier
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise UsageError(f"the weight of {self.name!r} must be finite, got {self.weight}")


@dataclass(frozen=True)
class Rubric:
    """A weighted sum of criteria.

    The first criterion decides success, so that a bonus for the format never counts as a solved
    task. A criterion that says nan makes the whole score nan, unless its weight is 0.

    The components of the score are the values of the criteria; those that a criterion has itself
    are named after both, as in "format/tags".

    Raises:
        UsageError: There is no criterion, or two have the same name.
    """

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        _check_names("rubric", self.criteria)

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference` by every criterion."""
        verdicts = _verdicts(self.criteria, completion, reference)
        value = sum(c.weight * v.value for c, v in verdicts if c.weight != 0)
        return Score(value, verdicts[0][1].success, _components(verdicts))


@dataclass(frozen=True)
class Product:
    """The product of criteria, each raised to the power of its weight.

    Success and components are as in `Rubric`. A criterion of weight 0 is a metric; one that says
    nan, or a value whose power is no real number or too large, makes the whole score nan.

    Raises:
        UsageError: There is no criterion, two have the same name, or a weight is negative.
    """

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        _check_names("product", self.criteria)
        for criterion in self.criteria:
            if criterion.weight < 0:
                raise UsageError(f"the weight of {criterion.name!r} in a product is at least 0")

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference` by every criterion."""
        verdicts = _verdicts(self.criteria, completion, reference)
        value = math.prod(_power(v.value, c.weight) for c, v in verdicts if c.weight != 0)
        return Score(value, verdicts[0][1].success, _components(verdicts))


@dataclass(frozen=True)
class Gate:
    """The score of `then`, where `condition` succeeds; else `otherwise`, and no success.

    Both are always asked, so that the components are the same either way. A condition that says
    nan makes the score nan; what `then` says behind a closed gate does not count.

    Attributes:
        condition: what must succeed, such as the format; logged as "gate".
        then: what is rewarded.
        otherwise: the reward behind a closed gate.
    """

    condition: Verifier
    then: Verifier
    otherwise: float = 0.0

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference`."""
        gate = as_score(self.condition(completion, reference))
        score = as_score(self.then(completion, reference))
        components = {**_prefixed("gate", gate), **score.components}
        if math.isnan(gate.value):
            return Score(math.nan, False, components)
        if not gate.success:
            return Score(self.otherwise, False, components)
        return Score(score.value, score.success, components)


@dataclass(frozen=True)
class Clip:
    """The score of `verifier` with its value kept between `low` and `high`; nan stays nan.

    Raises:
        UsageError: `low` is not below `high`.
    """

    verifier: Verifier
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise UsageError(f"a clip needs low < high, got {self.low} and {self.high}")

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference`."""
        score = as_score(self.verifier(completion, reference))
        if math.isnan(score.value):
            return score
        value = min(max(score.value, self.low), self.high)
        return Score(value, score.success, score.components)


Verdicts = list[tuple[Criterion, Score]]


def _verdicts(criteria: Sequence[Criterion], completion: str, reference: str) -> Verdicts:
    return [(c, as_score(c.verifier(completion, reference))) for c in criteria]


def _components(verdicts: Verdicts) -> dict[str, float]:
    parts: dict[str, float] = {}
    for criterion, verdict in verdicts:
        parts |= _prefixed(criterion.name, verdict)
    return parts


def _prefixed(name: str, verdict: Score) -> dict[str, float]:
    """The value of a verdict under its name, and its components below that."""
    return {name: verdict.value} | {f"{name}/{part}": v for part, v in verdict.components.items()}


def _power(value: float, exponent: float) -> float:
    try:
        power = value**exponent
    except OverflowError:
        return math.nan
    return math.nan if isinstance(power, complex) else float(power)


def _check_names(what: str, criteria: Sequence[Criterion]) -> None:
    names = [criterion.name for criterion in criteria]
    if not names:
        raise UsageError(f"a {what} needs at least one criterion")
    if len(set(names)) < len(names):
        raise UsageError(f"a {what}'s criteria need different names, got {', '.join(names)}")
