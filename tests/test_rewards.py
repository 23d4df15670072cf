"""Scores and rubrics."""

import math
import pickle
from collections.abc import Callable

import pytest

from grpo_gym.env import Reply, TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Clip, Criterion, Gate, Product, Rubric, Score, Tags
from grpo_gym.tasks import ListTasks, Task


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


def test_what_a_criterion_says_in_detail_is_logged_under_its_name() -> None:
    inner = Rubric((Criterion("a", short), Criterion("b", broken, weight=0)))
    score = Rubric((Criterion("right", right), Criterion("style", inner, weight=0.5)))("42", "42")
    assert score.value == 1.5
    assert list(score.components) == ["right", "style", "style/a", "style/b"]
    assert score.components["style/a"] == 1.0


def test_a_product_multiplies_powers() -> None:
    product = Product((Criterion("right", right), Criterion("half", lambda *_: 0.5, weight=2)))
    assert product("42", "42") == Score(0.25, True, {"right": 1.0, "half": 0.5})
    assert product("41", "42").value == 0.0


def test_weight_zero_is_a_metric_in_a_product_too() -> None:
    product = Product((Criterion("right", right), Criterion("broken", broken, weight=0)))
    assert product("42", "42").value == 1.0


@pytest.mark.parametrize("value", [math.nan, -1.0, 1e300])
def test_a_product_that_is_no_number_cannot_be_scored(value: float) -> None:
    product = Product((Criterion("right", right), Criterion("odd", lambda *_: value, weight=1.5)))
    assert math.isnan(product("42", "42").value)


def test_a_gate_lets_through_what_keeps_the_condition() -> None:
    gate = Gate(Tags(), Rubric((Criterion("found", lambda c, r: float(r in c)),)), otherwise=-1.0)
    assert gate("<think></think> 42", "42") == Score(1.0, True, {"gate": 1.0, "found": 1.0})
    assert gate("42", "42") == Score(-1.0, False, {"gate": 0.0, "found": 1.0})
    assert gate("<think></think> 41", "42") == Score(0.0, False, {"gate": 1.0, "found": 0.0})


def test_a_gate_that_cannot_be_scored_scores_nothing() -> None:
    assert math.isnan(Gate(broken, right)("42", "42").value)
    assert math.isnan(Gate(right, broken)("42", "42").value)
    assert Gate(right, broken)("41", "42").value == 0.0


def test_a_clip_bounds_the_value_and_keeps_the_verdict() -> None:
    clip = Clip(Rubric((Criterion("right", right, weight=9.0),)), low=-1, high=2)
    assert clip("42", "42") == Score(2.0, True, {"right": 1.0})
    assert Clip(lambda *_: -9.0)("", "").value == -1.0
    assert math.isnan(Clip(broken)("", "").value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Product(()), "a product needs at least one"),
        (lambda: Product((Criterion("a", right, weight=-1),)), "at least 0"),
        (lambda: Criterion("a", right, weight=math.nan), "finite"),
        (lambda: Clip(right, 1.0, 1.0), "low < high"),
        (lambda: Clip(right, math.nan, 1.0), "low < high"),
    ],
)
def test_senseless_combinations_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


class TwoTries(TextEnv):
    """A rubric for each turn: a wrong attempt earns what its style is worth."""

    rubric = Rubric((Criterion("right", right), Criterion("short", short, weight=0.1)))
    max_turns = 2

    def respond(self, task: Task, action: str) -> Score | Reply:
        score = self.rubric(action, task.answer)
        return score if score.success else Reply.scored("Again.", score)


def test_every_component_of_every_turn_is_in_the_info() -> None:
    env = TwoTries(tasks=ListTasks([Task("one", "?", "42")]))
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("41")
    assert (reward, terminated) == (0.1, False)
    assert info["reward_components"] == {"right": 0.0, "short": 1.0}
    _, reward, terminated, _, info = env.step("42")
    assert (reward, terminated, info["success"]) == (1.1, True, True)
    assert info["reward_components"] == {"right": 1.0, "short": 1.0}
