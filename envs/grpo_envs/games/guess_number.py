"""Guess a number from "too low" and "too high"."""

import re
from typing import Any

import numpy as np

from grpo_envs.games.guessing import GuessingEnv
from grpo_envs.games.moves import BadMove, read_move
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource

HIGHEST = (10, 30, 100, 300, 1000)
SPARE_TURNS = 2


class GuessNumberEnv(GuessingEnv):
    """A secret number between 1 and `highest`; each wrong guess is called too low or too high.

    Halving needs `highest.bit_length()` guesses at most; two more are allowed.

    Args:
        level: difficulty, 1 to 5: numbers up to 10, 30, 100, 300, 1000.
        highest: another greatest number instead.
        max_turns: most guesses; by default as above.
        **kwargs: as in `TextEnv`.
    """

    def __init__(
        self,
        *,
        level: int = 1,
        highest: int | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        if level not in range(1, len(HIGHEST) + 1):
            raise UsageError(f"level must be between 1 and {len(HIGHEST)}, got {level}")
        self.highest = HIGHEST[level - 1] if highest is None else highest
        if not isinstance(self.highest, int) or not 2 <= self.highest < 10**9:
            raise UsageError(f"highest must be a whole number between 2 and 10^9, got {highest}")
        if max_turns is None:
            max_turns = self.highest.bit_length() + SPARE_TURNS
        super().__init__(max_turns=max_turns, **kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless secrets."""
        return ProceduralTasks(self._problem)

    def read(self, action: str) -> str:
        """A whole number in range."""
        move = read_move(action)
        if not re.fullmatch(r"[0-9]{1,9}", move) or not 1 <= int(move) <= self.highest:
            raise BadMove(f"A guess is one whole number between 1 and {self.highest}.")
        return str(int(move))

    def tell(self, guess: str, answer: str) -> str:
        """On which side of the secret the guess is."""
        return f"{guess} is too {'low' if int(guess) < int(answer) else 'high'}."

    def solution(self, task: Task) -> tuple[str, ...]:
        """Halving; the last guess is right in any case."""
        secret, low, high = int(task.answer), 1, self.highest
        guesses: list[int] = []
        while len(guesses) < self.max_turns - 1 and (middle := (low + high) // 2) != secret:
            guesses.append(middle)
            low, high = (middle + 1, high) if middle < secret else (low, middle - 1)
        return tuple(f"\\boxed{{{guess}}}" for guess in (*guesses, secret))

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """One wrong guess, again and again."""
        wrong = (int(task.answer) + int(rng.integers(1, self.highest)) - 1) % self.highest + 1
        return (f"\\boxed{{{wrong}}}",) * self.max_turns

    def _problem(self, rng: np.random.Generator) -> tuple[str, str]:
        prompt = f"I have a number between 1 and {self.highest}. You have {self.max_turns} guesses."
        return prompt, str(rng.integers(1, self.highest + 1))
