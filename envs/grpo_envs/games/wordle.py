"""Wordle: find a five-letter word from the colours of the letters guessed."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.games.guessing import GuessingEnv
from grpo_envs.games.moves import BadMove, consistent_guesses, read_move
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task, TaskSource

WORDS = Path(__file__).parent / "words.txt"
TEST_EVERY = 5

GREEN, YELLOW, GRAY = "green", "yellow", "gray"


def clue(guess: str, secret: str) -> tuple[str, ...]:
    """The colour of each letter of a guess.

    A letter is green in its place. It is yellow elsewhere, from the left, as often as the secret
    holds it beyond its greens; further copies of it are gray.
    """
    left = Counter(b for a, b in zip(guess, secret, strict=True) if a != b)
    colours = []
    for a, b in zip(guess, secret, strict=True):
        if a == b:
            colours.append(GREEN)
        elif left[a] > 0:
            left[a] -= 1
            colours.append(YELLOW)
        else:
            colours.append(GRAY)
    return tuple(colours)


@cache
def shipped_words() -> tuple[str, ...]:
    """The words that come with this package: common English words of five letters."""
    return tuple(WORDS.read_text(encoding="ascii").split())


class WordleEnv(GuessingEnv):
    """Six guesses at a secret word; each letter of a guess is called green, yellow or gray.

    Every fifth word of the list belongs to the split "test", the others to "train".

    Args:
        words: the secrets, words of five letters a to z; by default the shipped list.
        only_words: whether a guess must be one of `words`; otherwise any five letters will do, since
            the list is shorter than the language.
        max_turns: most guesses, 6 by default.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: Fewer than 5 words, or one that is not five letters a to z.
    """

    max_turns = 6

    def __init__(
        self,
        *,
        words: Sequence[str] | None = None,
        only_words: bool = False,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.words = shipped_words() if words is None else tuple(dict.fromkeys(words))
        for word in self.words:
            if not isinstance(word, str) or not re.fullmatch(r"[a-z]{5}", word):
                raise UsageError(f"words must be five letters a to z, got {word!r}")
        if len(self.words) < TEST_EVERY:
            raise UsageError(f"words must be at least {TEST_EVERY}, got {len(self.words)}")
        self.only_words = only_words
        self.max_turns = self.max_turns if max_turns is None else max_turns  # the prompt names it
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """One task a word."""
        return _tasks(self.words, self.max_turns)

    def read(self, action: str) -> str:
        """One word of five letters, in capitals or not."""
        guess = read_move(action).lower()
        if not re.fullmatch(r"[a-z]{5}", guess):
            raise BadMove("A guess is one word of five letters.")
        if self.only_words and guess not in self.words:
            raise BadMove(f"{guess} is not in the list of words.")
        return guess

    def tell(self, guess: str, answer: str) -> str:
        """The colour of each letter."""
        coloured = zip(guess.upper(), clue(guess, answer), strict=True)
        return ", ".join(f"{letter} {colour}" for letter, colour in coloured)

    def solution(self, task: Task) -> tuple[str, ...]:
        """Always the first word that fits every clue; the last guess is right in any case."""
        guesses = consistent_guesses(self.words, task.answer, clue, self.max_turns)
        return tuple(f"\\boxed{{{guess}}}" for guess in guesses)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Other words of the list."""
        others = [word for word in self.words if word != task.answer]
        picks = rng.integers(len(others), size=self.max_turns)
        return tuple(f"\\boxed{{{others[i]}}}" for i in picks)


@cache
def _tasks(words: tuple[str, ...], turns: int) -> ListTasks:
    prompt = (
        f"I have a word of five letters. After each guess I tell of each letter whether it is in the right "
        f"place (green), in the word but elsewhere (yellow), or not in the word (gray). You have {turns} "
        "guesses."
    )
    splits = ["test" if i % TEST_EVERY == TEST_EVERY - 1 else "train" for i in range(len(words))]
    return ListTasks(
        [
            Task(f"{split}-{number}", prompt, word, split)
            for number, (word, split) in enumerate(zip(words, splits, strict=True))
        ]
    )
