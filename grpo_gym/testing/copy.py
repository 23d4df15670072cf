"""The smallest task worth learning: say the word that was asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource

WORDS = ("red", "blue", "green", "one", "two", "yes", "no", "cat")


class CopyEnv(TextEnv):
    """One turn: the prompt is "Say red", and "red" earns 1, anything else 0.

    A policy that copies solves it; one that ignores the prompt gets 1 in `words`.

    Args:
        words: what may be asked for.
        **kwargs: as in `TextEnv`.
    """

    max_turns = 1

    def __init__(self, *, words: Sequence[str] = WORDS, **kwargs: Any) -> None:
        if not words:
            raise UsageError("words must not be empty")
        self.words = tuple(words)
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless draws from the words."""
        return ProceduralTasks(self._problem)

    def respond(self, task: Task, action: str) -> Score:
        """1 for the word itself, spaces around it aside."""
        right = action.strip() == task.answer
        return Score(value=float(right), success=right)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Another of the words."""
        others = [word for word in self.words if word != task.answer]
        return (others[int(rng.integers(len(others)))],) if others else ()

    def _problem(self, rng: np.random.Generator) -> tuple[str, str]:
        word = self.words[int(rng.integers(len(self.words)))]
        return f"Say {word}", word
