"""The math verifier: the answer a completion commits to, compared with a reference."""

import logging
import math
import re

from grpo_gym.rewards import Score
from grpo_gym.verifiers.extract import extract_answer
from grpo_gym.verifiers.normalise import MAX_LENGTH, join_commas, normalise, same_text
from grpo_gym.verifiers.quantity import same_quantity, split_quantity
from grpo_gym.verifiers.workers import CannotStart, WorkerDied, shared_pool

logger = logging.getLogger(__name__)

WORKER = "grpo_gym.verifiers.worker"
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def verdict(correct: float, answered: bool, timed_out: bool = False) -> Score:
    """A score of 1, 0 or nan, with how it came about."""
    return Score(
        correct,
        correct == 1.0,
        {
            "correct": float(correct == 1.0),
            "answered": float(answered),
            "timed_out": float(timed_out),
        },
    )


def fast_verdict(answer: str, reference: str) -> bool | None:
    """Whether two normalised answers are equal, where that is certain without a parser; else None."""
    if same_text(answer, reference):
        return True
    left, right = (split_quantity(join_commas(text)) for text in (answer, reference))
    return same_quantity(left, right)


def verify_math(
    completion: str, reference: str, *, deadline_s: float = 2.0, require_boxed: bool = False
) -> Score:
    r"""Grade a completion against a reference answer, by mathematical meaning.

    Numbers, units included, are compared exactly and in this process, in microseconds. Everything
    else goes to a warm worker process: expressions are equal when their values are, at several points
    and to forty digits; structures are compared part by part; and math-verify judges sums, integrals
    and the like. A comparison that takes longer than the deadline is lost. Threads may call at once.

    Args:
        completion: what the model wrote. The last `\boxed{}` is its answer; without one, what follows
            the last `####`, "answer is" or "answer:". Of a long text the end is read.
        reference: the right answer, bare or as a solution that ends in one of these marks.
        deadline_s: seconds a worker may spend on the comparison.
        require_boxed: accept an answer in a box only.

    Returns:
        Value 1.0 or 0.0. Components, each 0 or 1: `correct`; `answered`, an answer was found;
        `timed_out`, the comparison passed its deadline or its limit of memory. The value is nan only
        where no worker process can be started at all.
    """
    answer = extract_answer(completion, require_boxed)
    if answer is not None and _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(reference):
        return verdict(float(int(answer) == int(reference)), answered=True)
    if answer is None or not (found := normalise(answer)):
        return verdict(0.0, answered=False)
    marked = extract_answer(reference)
    wanted = normalise(reference if marked is None else marked)
    if not wanted or max(map(len, (answer, found, wanted))) > MAX_LENGTH:
        return verdict(0.0, answered=True)
    fast = fast_verdict(found, wanted)
    if fast is not None:
        return verdict(float(fast), answered=True)
    request = {"kind": "math", "answer": found, "reference": wanted, "seconds": deadline_s}
    try:
        reply = shared_pool(WORKER).call(request, deadline_s)
    except CannotStart as error:
        logger.error("%s", error)
        return verdict(math.nan, answered=True)
    except WorkerDied:
        reply = None
    if reply is None:
        return verdict(0.0, answered=True, timed_out=True)
    return verdict(float(reply["verdict"]), answered=True)
