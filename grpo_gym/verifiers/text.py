"""Verifiers of plain text: exact, normalised, or by a regular expression."""

import unicodedata

from grpo_gym.rewards import Score


def verdict(correct: bool) -> Score:
    """A score of 1 or 0."""
    return Score(float(correct), correct, {"correct": float(correct)})


def fold(text: str) -> str:
    """Text without case, unicode variants, surrounding punctuation and runs of spaces."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(".,;:!?\"'` ")


def verify_exact(completion: str, reference: str) -> Score:
    """Whether the completion is the reference, spaces at its ends apart."""
    return verdict(completion.strip() == reference.strip())


def verify_text(completion: str, reference: str) -> Score:
    """Whether the completion is the reference, apart from case, spacing and punctuation at its ends.

    An empty completion, or one of punctuation only, is wrong unless the reference is too.
    """
    return verdict(fold(completion) == fold(reference))
