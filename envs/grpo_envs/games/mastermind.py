"""Mastermind: find a code from the number of pegs in the right place and elsewhere."""

import re
from collections import Counter
from itertools import product
from typing import Any

import numpy as np

from grpo_envs.games.guessing import GuessingEnv
from grpo_envs.games.moves import BadMove, consistent_guesses, read_move
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource

LEVELS = ((2, 4), (3, 4), (3, 6), (4, 6), (5, 6))
"""Places and colours of each level."""


def clue(guess: str, code: str) -> tuple[int, int]:
    """How many pegs are right in colour and place, and how many more are right in colour only."""
    placed = sum(a == b for a, b in zip(guess, code, strict=True))
    shared = sum((Counter(guess) & Counter(code)).values())
    return placed, shared - placed


class MastermindEnv(GuessingEnv):
    """A code of digits, each a colour; a guess tells how many digits are right, not which.

    Args:
        level: difficulty, 1 to 5: 2 places of 4 colours, 3 of 4, 3 of 6, 4 of 6, 5 of 6.
        **kwargs: as in `TextEnv`; 10 turns by default.
    """

    max_turns = 10

    def __init__(self, *, level: int = 2, **kwargs: Any) -> None:
        if level not in range(1, len(LEVELS) + 1):
            raise UsageError(f"level must be between 1 and {len(LEVELS)}, got {level}")
        self.places, self.colours = LEVELS[level - 1]
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless codes."""
        return ProceduralTasks(self._problem)

    def read(self, action: str) -> str:
        """A code of the right length; spaces and commas between the digits do not count."""
        guess = re.sub(r"[\s,]", "", read_move(action))
        if len(guess) != self.places or not set(guess) <= set(self._digits):
            raise BadMove(f"A guess is {self.places} digits between 1 and {self.colours}.")
        return guess

    def tell(self, guess: str, answer: str) -> str:
        """The clue in words."""
        placed, misplaced = clue(guess, answer)
        return f"{guess}: {placed} in the right place, {misplaced} in the wrong place."

    def solution(self, task: Task) -> tuple[str, ...]:
        """Always the first code that fits every clue; the last guess is right in any case."""
        codes = ["".join(pegs) for pegs in product(self._digits, repeat=self.places)]
        guesses = consistent_guesses(codes, task.answer, clue, self.max_turns)
        return tuple(f"\\boxed{{{guess}}}" for guess in guesses)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """One wrong guess, again and again: the code with one peg changed."""
        place = int(rng.integers(self.places))
        other = rng.choice([d for d in self._digits if d != task.answer[place]])
        wrong = task.answer[:place] + str(other) + task.answer[place + 1 :]
        return (f"\\boxed{{{wrong}}}",) * self.max_turns

    @property
    def _digits(self) -> str:
        return "123456789"[: self.colours]

    def _problem(self, rng: np.random.Generator) -> tuple[str, str]:
        code = "".join(self._digits[i] for i in rng.integers(self.colours, size=self.places))
        prompt = (
            f"I have a code of {self.places} digits, each between 1 and {self.colours}; digits may "
            f"repeat. After each guess I tell how many digits are in the right place, and how many more "
            f"are in the code but elsewhere. You have {self.max_turns} guesses."
        )
        return prompt, code
