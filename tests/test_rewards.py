"""Scores and rubrics."""

import math
import pickle

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Criterion, Rubric, Score


def right(completion: str, reference: str) -> Score:
    return Score(float(completion == reference), completion == reference)


def short(completion: str, reference: str) -> float:
    return float(len(completion) < 5)


def broken(completion: str, reference: str) -> float:
    return math.nan


def test_a_score_is_a_frozen_value() -> None:
    score = Score(1, True, {"correct": 1})
    assert score == Score(1.0, True, {"correct": 1.0})
    assert hash(score) == hash(Score(1.0, True))
    assert pickle.loads(pickle.dumps(score)) == score
    assert isinstance(score.value, float)
    with pytest.raises(AttributeError):
        score.value = 2.0  # type: ignore[misc]


def test_a_score_keeps_its_own_components() -> None:
    components = {"correct": 1.0}
    score = Score(1.0, True, components)
    components["correct"] = 0.0
    assert score.components == {"correct": 1.0}


def test_a_rubric_is_a_weighted_sum() -> None:
    rubric = Rubric((Criterion("right", right), Criterion("short", short, weight=0.25)))
    assert rubric("42", "42") == Score(1.25, True, {"right": 1.0, "short": 1.0})
    assert rubric("forty-two", "42") == Score(0.0, False, {"right": 0.0, "short": 0.0})


def test_a_bonus_for_the_format_is_no_success() -> None:
    rubric = Rubric((Criterion("right", right), Criterion("short", short, weight=5.0)))
    score = rubric("41", "42")
    assert score.value == 5.0
    assert not score.success


def test_weight_zero_makes_a_metric() -> None:
    rubric = Rubric((Criterion("right", right), Criterion("broken", broken, weight=0.0)))
    score = rubric("42", "42")
    assert score.value == 1.0
    assert math.isnan(score.components["broken"])


def test_nan_in_a_weighted_criterion_cannot_be_scored() -> None:
    rubric = Rubric((Criterion("right", right), Criterion("broken", broken)))
    assert math.isnan(rubric("42", "42").value)


def test_a_rubric_needs_criteria_of_different_names() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Rubric(())
    with pytest.raises(UsageError, match="different names"):
        Rubric((Criterion("right", right), Criterion("right", short)))
