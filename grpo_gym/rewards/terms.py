"""Terms for the language, the repetition and the length of an answer."""

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from grpo_gym.config import nearest
from grpo_gym.errors import UsageError
from grpo_gym.rewards.score import Score, Verifier, as_score

Measure = Callable[[str], int]
"""The length of a text: `len` for characters, or a tokenizer's count."""

_NAMES = """
ARABIC ARMENIAN BENGALI BOPOMOFO CJK CYRILLIC DEVANAGARI ETHIOPIC GEORGIAN GREEK GUJARATI
GURMUKHI HANGUL HEBREW HIRAGANA KANNADA KATAKANA KHMER LAO LATIN MALAYALAM MONGOLIAN MYANMAR
ORIYA SINHALA SYRIAC TAMIL TELUGU THAI TIBETAN
"""
SCRIPTS = frozenset(_NAMES.split())
"""Scripts as unicode's character names call them."""


@dataclass(frozen=True)
class Language:
    """The share of a completion's letters that belong to some scripts, between 0 and 1.

    A completion without letters is 1: nothing in it is in another language. Digits, punctuation and
    symbols do not count.

    Attributes:
        scripts: of `SCRIPTS`, such as "LATIN"; for Japanese "CJK", "HIRAGANA" and "KATAKANA".

    Raises:
        UsageError: No script, or one that is unknown.
    """

    scripts: tuple[str, ...] = ("LATIN",)

    def __post_init__(self) -> None:
        for script in self.scripts:
            if script not in SCRIPTS:
                raise UsageError(f"no script {script!r}{nearest(script, SCRIPTS)}")
        if not self.scripts:
            raise UsageError("scripts must not be empty")

    def __call__(self, completion: str, reference: str = "") -> float:
        """Grade the language of `completion`."""
        letters = [char for char in completion if char.isalpha()]
        wanted = sum(not _script(char).isdisjoint(self.scripts) for char in letters)
        return wanted / len(letters) if letters else 1.0


@lru_cache(maxsize=4096)
def _script(char: str) -> frozenset[str]:
    """The words of a letter's unicode name; its script is among them."""
    return frozenset(unicodedata.name(char, "").split()) if char.isalpha() else frozenset()


@dataclass(frozen=True)
class Repetition:
    """The share of n-grams that occurred before in the completion, from 0 to almost 1.

    Give it a negative weight. A completion with fewer than `ngram` words has none.

    Attributes:
        ngram: how many words count as one piece.
        characters: count characters instead of words, for languages without spaces.

    Raises:
        UsageError: `ngram` is below 1.
    """

    ngram: int = 4
    characters: bool = False

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise UsageError(f"ngram must be at least 1, got {self.ngram}")

    def __call__(self, completion: str, reference: str = "") -> float:
        """Grade the repetition in `completion`."""
        words = completion if self.characters else completion.casefold().split()
        pieces = [tuple(words[i : i + self.ngram]) for i in range(len(words) - self.ngram + 1)]
        return 1 - len(set(pieces)) / len(pieces) if pieces else 0.0


@dataclass(frozen=True)
class LinearLength:
    """1 up to the length `free`, falling evenly to 0 at `limit` and beyond.

    Attributes:
        free: the greatest length that costs nothing.
        limit: the length from which on it is 0.
        measure: the length of a text, in characters by default.

    Raises:
        UsageError: Not 0 <= free < limit.
    """

    free: int
    limit: int
    measure: Measure = len

    def __post_init__(self) -> None:
        if not 0 <= self.free < self.limit:
            raise UsageError(f"need 0 <= free < limit, got {self.free} and {self.limit}")

    def __call__(self, completion: str, reference: str = "") -> float:
        """Grade the length of `completion`."""
        return self.at(self.measure(completion))

    def at(self, length: int) -> float:
        """The value at a length."""
        over = (length - self.free) / (self.limit - self.free)
        return 1 - min(max(over, 0.0), 1.0)


@dataclass(frozen=True)
class CosineLength:
    """A verdict's reward by length, along half a cosine (Yeo et al., 2025, arXiv:2502.03373).

    At length t up to L the reward is `end + (begin - end) (1 + cos(pi t / L)) / 2`, with (begin,
    end) = `right` where the verdict is a success and `wrong` elsewhere: short right answers and
    long wrong ones fare better. Beyond L it is `over`, and that is no success. A verdict of nan
    stays nan. The default values are this package's own.

    Attributes:
        verifier: says what is right.
        limit: the length L.
        right: rewards of a right answer of length 0, and of length L.
        wrong: rewards of a wrong answer of length 0, and of length L.
        over: the reward of what is longer.
        measure: the length of a text, in characters by default.

    Raises:
        UsageError: `limit` is below 1.
    """

    verifier: Verifier
    limit: int
    right: tuple[float, float] = (1.0, 0.5)
    wrong: tuple[float, float] = (-1.0, -0.5)
    over: float = -1.0
    measure: Measure = len

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"limit must be at least 1, got {self.limit}")

    def __call__(self, completion: str, reference: str) -> Score:
        """Grade `completion` against `reference`."""
        score = as_score(self.verifier(completion, reference))
        length = self.measure(completion)
        components = {**score.components, "length": float(length)}
        if math.isnan(score.value):
            return Score(score.value, score.success, components)
        if length > self.limit:
            return Score(self.over, False, components)
        begin, end = self.right if score.success else self.wrong
        value = end + (begin - end) * (1 + math.cos(math.pi * length / self.limit)) / 2
        return Score(value, score.success, components)
