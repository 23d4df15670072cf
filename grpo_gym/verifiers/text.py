"""Verifiers of plain text: exact, normalised, or by a regular expression."""

import logging
import math
import re
import unicodedata

from grpo_gym.rewards import Score
from grpo_gym.verifiers.workers import CannotStart, WorkerDied, shared_pool

logger = logging.getLogger(__name__)

WORKER = "grpo_gym.verifiers.worker"
PUNCTUATION = ".,;:!?\"'`*()[]{} "


def verdict(correct: float, timed_out: bool = False) -> Score:
    """A score of 1, 0 or nan."""
    solved = correct == 1.0
    return Score(correct, solved, {"correct": float(solved), "timed_out": float(timed_out)})


def fold(text: str) -> str:
    """Text without case, unicode variants, runs of spaces, and punctuation at its ends."""
    words = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return words.strip(PUNCTUATION)


def verify_exact(completion: str, reference: str) -> Score:
    """Whether the completion is the reference, spaces at the ends apart."""
    return verdict(float(completion.strip() == reference.strip()))


def verify_text(completion: str, reference: str) -> Score:
    """Whether the completion is the reference, apart from case, spacing and punctuation at the ends.

    A completion without a word is wrong, unless the reference has none either and is the same text.
    """
    wanted = fold(reference)
    if not wanted:
        return verify_exact(completion, reference)
    return verdict(float(fold(completion) == wanted))


def verify_regex(completion: str, reference: str, *, deadline_s: float = 1.0) -> Score:
    """Whether a regular expression matches somewhere in the completion.

    The search runs in a worker process, since a pattern may take exponential time on some texts.

    Args:
        completion: what the model wrote.
        reference: the pattern, in the syntax of `re`.
        deadline_s: seconds that the search may take; a longer one is lost.

    Returns:
        Value 1.0 or 0.0; nan if the pattern is not a regular expression, or no worker can be started.
    """
    try:
        re.compile(reference)
    except (re.error, RecursionError, OverflowError) as error:
        logger.error("the reference %r is no regular expression: %s", reference[:100], error)
        return verdict(math.nan)
    request = {"kind": "regex", "pattern": reference, "text": completion, "seconds": deadline_s}
    try:
        reply = shared_pool(WORKER).call(request, deadline_s)
    except CannotStart as error:
        logger.error("%s", error)
        return verdict(math.nan)
    except WorkerDied:
        reply = None
    if reply is None:
        return verdict(0.0, timed_out=True)
    return verdict(float(reply["verdict"]))
