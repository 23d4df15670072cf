"""What an environment is like in numbers: rewards, turns, latency, lengths."""

import contextlib
import unittest
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.rewards import Measure
from grpo_gym.testing.actions import hacks
from grpo_gym.testing.checks import Make, scripted
from grpo_gym.testing.play import Episode, playing
from grpo_gym.types import as_messages

_HACKS = 6


@dataclass(frozen=True)
class Spread:
    """How some numbers are spread.

    Attributes:
        values: the numbers; nan ones are counted, but are no part of the percentiles.
    """

    values: tuple[float, ...]

    def at(self, percent: float) -> float:
        """A percentile, by linear interpolation; nan when there are no numbers."""
        known = [value for value in self.values if value == value]
        return float(np.percentile(known, percent)) if known else float("nan")

    @property
    def unscored(self) -> int:
        """How many are nan."""
        return sum(value != value for value in self.values)


@dataclass(frozen=True)
class Card:
    """Measurements of an environment.

    Attributes:
        tasks: how many seeds were played, and how many different tasks they drew.
        rewards: of whole episodes, by who played: "solution", "mistakes", "hacks".
        turns: actions of whole episodes.
        reset_s: seconds a reset took; the first one after the making is not counted.
        step_s: seconds a step took.
        lengths: of the first observation ("prompt"), of what the environment says later
            ("observation"), and of the solution's actions ("solution").
        unit: what the lengths count.
    """

    tasks: tuple[int, int]
    rewards: dict[str, Spread]
    turns: Spread
    reset_s: Spread
    step_s: Spread
    lengths: dict[str, Spread]
    unit: str

    def __str__(self) -> str:
        seeds, different = self.tasks
        rows = [("tasks", f"{different} different ones in {seeds}")]
        rows.append(("turns", _range(self.turns, "g")))
        for name, spread in self.rewards.items():
            unscored = f", {spread.unscored} cannot be scored" if spread.unscored else ""
            rows.append((f"reward, {name}", _range(spread, ".4g") + unscored))
        for name, spread in (("reset", self.reset_s), ("step", self.step_s)):
            times = ", ".join(f"p{p} {_seconds(spread.at(p))}" for p in (50, 95, 99))
            rows.append((f"{name} takes", times))
        for name, spread in self.lengths.items():
            middle = f"{_range(spread, '.0f')} {self.unit}, median {spread.at(50):.0f}"
            rows.append((f"{name} length", middle))
        return "\n".join(f"{name:20}{value}" for name, value in rows)


def measure_environment(
    make: Make, seeds: Sequence[int] = range(8), measure: Measure = len, unit: str = "characters"
) -> Card:
    """Measure an environment by playing it.

    For each seed an episode is played by the solution, where the environment names one, one by
    mistakes, and a few by actions that know nothing.

    Args:
        make: builds an environment.
        seeds: the tasks that these seeds draw are played.
        measure: the length of a text, such as its number of tokens.
        unit: what that counts.
    """
    notes = _Notes()
    task_ids = set()
    with playing(make) as env:
        env.reset(seed=seeds[0])  # the first may load what the others share
        for seed in seeds:
            episode = notes.begin(env, seed)
            task_ids.add(episode.task_id)
            notes.note("prompt", measure(episode.prompt))
            plays = [("hacks", [action] * 64) for action in hacks(episode.prompt)[:_HACKS]]
            with contextlib.suppress(unittest.SkipTest):
                solution = scripted(env, "solution")
                notes.note("solution", sum(map(measure, solution)))
                plays.append(("solution", list(solution)))
                wrong = scripted(env, "mistakes", np.random.default_rng(seed))
                plays += [("mistakes", list(wrong))] if wrong else []
            for who, actions in reversed(plays):
                notes.play(notes.begin(env, seed), who, actions, measure)
    return Card(
        tasks=(len(seeds), len(task_ids)),
        rewards={name: Spread(tuple(values)) for name, values in notes.rewards.items()},
        turns=Spread(tuple(notes.turns)),
        reset_s=Spread(tuple(notes.reset_s)),
        step_s=Spread(tuple(notes.step_s)),
        lengths={name: Spread(tuple(values)) for name, values in notes.lengths.items()},
        unit=unit,
    )


@dataclass
class _Notes:
    """What is measured while episodes are played."""

    rewards: dict[str, list[float]] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    lengths: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, length: float) -> None:
        self.lengths.setdefault(name, []).append(length)

    def begin(self, env: gymnasium.Env[Any, Any], seed: int) -> Episode:
        episode = Episode(env, seed=seed)
        self.reset_s.append(episode.seconds)
        return episode

    def play(self, episode: Episode, who: str, actions: list[str], measure: Measure) -> None:
        for action in actions:
            if not episode.over:
                episode.play([action])
                self.step_s.append(episode.seconds)
                contents = [message["content"] for message in as_messages(episode.last[0])]
                if any(contents):
                    self.note("observation", sum(map(measure, contents)))
        if episode.over:
            self.turns.append(len(episode.log) - 1)
            self.rewards.setdefault(who, []).append(episode.reward)


def _range(spread: Spread, form: str) -> str:
    low, high = format(spread.at(0), form), format(spread.at(100), form)
    return low if low == high else f"{low} to {high}"


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
