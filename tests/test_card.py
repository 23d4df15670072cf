"""The card of an environment: rewards, turns, latency, lengths."""

import math
import time
from typing import Any

import pytest

from grpo_gym.cli import main
from grpo_gym.env import Reply
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.testing import CopyEnv, measure_environment
from grpo_gym.testing.card import Spread


class Slow(CopyEnv):
    """Two turns; the second answer cannot be scored when it is empty."""

    max_turns = 2
    max_reward = 1.5

    def observe(self, task: Task) -> Any:
        time.sleep(0.002)
        return super().observe(task)

    def respond(self, task: Task, action: str) -> Any:
        time.sleep(0.004)
        if self.turn == 0:
            return Reply("Once more.", 0.5)
        right = action == task.answer
        return Score(math.nan if not action else float(right), right)

    def solution(self, task: Task) -> tuple[str, ...]:
        return task.answer, task.answer

    def mistakes(self, task: Task, rng: Any) -> tuple[str, ...]:
        return "not this", "nor this"


def words(text: str) -> int:
    return len(text.split())


def test_a_card_measures_what_is_played() -> None:
    card = measure_environment(Slow, range(6), words, "words")
    assert card.tasks[0] == 6
    assert 1 < card.tasks[1] <= 6
    assert card.rewards["solution"].values == (1.5,) * 6
    assert card.rewards["mistakes"].values == (0.5,) * 6
    assert card.rewards["hacks"].unscored > 0
    assert card.rewards["hacks"].at(100) == 0.5
    assert set(card.turns.values) == {2}
    assert card.lengths["prompt"].values == (2.0,) * 6
    assert card.lengths["solution"].values == (2.0,) * 6
    assert set(card.lengths["observation"].values) == {2.0}
    assert 0.002 < card.reset_s.at(50) < 0.1
    assert 0.004 < card.step_s.at(0) <= card.step_s.at(50) <= card.step_s.at(99) < 1.0


def test_a_card_reads_as_a_table() -> None:
    text = str(measure_environment(Slow, range(2), words, "words"))
    for row in (
        "turns               2",
        "reward, solution    1.5",
        "reward, mistakes    0.5",
        "cannot be scored",
        "prompt length       2 words, median 2",
        "step takes          p50 ",
    ):
        assert row in text


def test_an_environment_without_a_solution_has_a_card_too() -> None:
    class Plain(CopyEnv):
        solution = None  # type: ignore[assignment]

    card = measure_environment(Plain, range(2))
    assert list(card.rewards) == ["hacks"]
    assert "solution" not in card.lengths


def test_a_spread_of_nothing_is_nan() -> None:
    assert math.isnan(Spread(()).at(50))
    assert Spread((1.0, math.nan, 3.0)).at(50) == 2.0
    assert Spread((1.0, math.nan)).unscored == 1


def test_check_prints_the_card_in_a_models_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "grpo_gym/Copy-v0", "--tasks", "2", "--model", "tiny"]) == 0
    text = capsys.readouterr().out
    assert "passed  solution" in text
    assert "reward, solution    1" in text
    assert "prompt length       3 tokens, median 3" in text
    assert "Copy-v0 keeps the contract" in text


def test_check_refuses_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "grpo_gym/Copy-v0", "--model", "./nowhere"]) == 2
    assert "there is no model folder ./nowhere" in capsys.readouterr().err
