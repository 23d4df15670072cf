"""Grading where the answer is a number that the model must have worked out."""

import re

from grpo_gym.rewards import Score
from grpo_gym.verifiers.extract import extract_answer
from grpo_gym.verifiers.math import verify_math

_GROUPING = re.compile(r"(?<=\d)(?:,|\{,\}|\\[,;:! ]|[\s'’])+(?=\d{3}(?!\d))")
_NUMERAL = re.compile(r"\d+(?:\.\d+)?")
_LEFT_TO_DO = re.compile(r"[!√∛²³^]|\\(?:sqrt|sum|prod|binom|log|ln|exp)")


def verify_number(completion: str, reference: str) -> Score:
    r"""As `verify_math`, but the answer must be worked out.

    To a verifier of meaning `\boxed{8 + 8}` is as good as `\boxed{16}`, and copying the question
    would win. Here an answer holds one numeral (two where the reference is a fraction) and no
    operation that is left to do.
    """
    score = verify_math(completion, reference)
    if score.success and not is_worked_out(extract_answer(completion) or "", reference):
        return Score(0.0, False, {**score.components, "correct": 0.0})
    return score


def is_worked_out(answer: str, reference: str) -> bool:
    """Whether an answer leaves no arithmetic to its reader."""
    numerals = _NUMERAL.findall(_GROUPING.sub("", answer))
    allowed = 2 if "/" in reference else 1
    return len(numerals) <= allowed and not _LEFT_TO_DO.search(answer)
