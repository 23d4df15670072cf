"""Grading where the model must have worked the answer out, not copied it from the question."""

import re

from grpo_gym.rewards import Score
from grpo_gym.verifiers.extract import extract_answer, last_box
from grpo_gym.verifiers.math import verify_math
from grpo_gym.verifiers.normalise import MAX_LENGTH, normalise

_GROUPING = re.compile(r"(?<=\d)(?:,|\{,\}|\\[,;:! ]|[\s'’])+(?=\d{3}(?!\d))")
_NUMERAL = re.compile(r"\d+(?:\.\d+)?")
_LEFT_TO_DO = re.compile(r"[!√∛²³^]|\\(?:sqrt|sum|prod|binom|log|ln|exp)")
_NUMBER = re.compile(r"-? ?\d+(?:\.\d+)?(?: ?/ ?\d+)?")
_FRACTION = re.compile(r"(-?) ?\\[dt]?frac ?\{ ?(-?\d+) ?\} ?\{ ?(\d+) ?\}")
_DRESSING = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:! ]|[\s{}$~]")
_OPERATION = re.compile(r"[-+*/^=!(]|\\")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PLAIN_BOX = re.compile(rf"\\boxed\{{({_INTEGER.pattern})\}}[^\\]{{0,1000}}\Z")

MOST_WORDS = 6


def verify_number(completion: str, reference: str) -> Score:
    r"""As `verify_math`, but the answer must be worked out.

    To a verifier of meaning `\boxed{8 + 8}` is as good as `\boxed{16}`, and copying the question
    would win. Here an answer holds one numeral (two where the reference is no whole number) and no
    operation that is left to do.
    """
    plain = _PLAIN_BOX.search(completion)
    if plain and _INTEGER.fullmatch(reference):  # most verdicts: no need to look further
        right = int(plain[1]) == int(reference)
        correct = 1.0 if right else 0.0
        return Score(correct, right, {"correct": correct, "answered": 1.0, "timed_out": 0.0})
    score = verify_math(completion, reference)
    if score.success and not is_worked_out(extract_answer(completion) or "", reference):
        return _refused(score)
    return score


def is_worked_out(answer: str, reference: str) -> bool:
    """Whether an answer leaves no arithmetic to its reader."""
    numerals = _NUMERAL.findall(_GROUPING.sub("", answer))
    allowed = 2 if "/" in reference or "." in reference else 1
    return len(numerals) <= allowed and not _LEFT_TO_DO.search(answer)


def verify_answer(completion: str, reference: str, question: str) -> Score:
    """As `verify_number` where the reference is a number, else as `verify_math`.

    A formula that stands in the question and is not the reference as written is no answer: a
    question such as "Factor x^2 - 1" would be answered by its own words.
    """
    number = as_number(reference)
    verify = verify_math if number is None else verify_number
    score = verify(completion, number or reference)
    if score.success and is_copied(extract_answer(completion) or "", reference, question):
        return _refused(score)
    return score


def as_number(text: str) -> str | None:
    """A plain number or fraction, LaTeX undone, as in "-3/4"; None for anything else."""
    plain = _FRACTION.sub(r"\1\2/\3", normalise(text).strip())
    return plain if _NUMBER.fullmatch(plain) else None


def is_copied(answer: str, reference: str, question: str) -> bool:
    """Whether a formula is taken from the question, and is not the reference as written."""
    bare, number = _bare(answer), as_number(answer)
    as_written = bare == _bare(reference) or (number and number == as_number(reference))
    return bool(_OPERATION.search(bare)) and not as_written and bare in _bare(question)


def is_answerable(answer: str) -> bool:
    """Whether an answer can be graded: there is one, it fits in a box, and it is no prose."""
    words = _WORD.findall(_COMMAND.sub(" ", answer))
    return (
        len(answer) <= MAX_LENGTH
        and len(words) <= MOST_WORDS
        and last_box(f"\\boxed{{{answer}}}") == answer
        and bool(normalise(answer))
    )


def near(answer: str) -> str:
    """An answer that is one off."""
    number = as_number(answer)
    if number is None:
        return "0" if "infty" in answer else f"{answer} + 1"
    whole, slash, denominator = number.replace(" ", "").partition("/")
    if "." in whole:
        return f"{whole}1"
    return f"{int(whole) + 1}{slash}{denominator}"


def _bare(text: str) -> str:
    return _DRESSING.sub("", text).replace("dfrac", "frac").replace("tfrac", "frac")


def _refused(score: Score) -> Score:
    return Score(0.0, False, {**score.components, "correct": 0.0})
