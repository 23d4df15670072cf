"""The math verifier: the answer a completion commits to, compared with a reference."""

from grpo_gym.rewards import Score
from grpo_gym.verifiers.extract import extract_answer
from grpo_gym.verifiers.normalise import MAX_LENGTH, join_commas, normalise
from grpo_gym.verifiers.quantity import same_quantity, split_quantity
from grpo_gym.verifiers.workers import WorkerDied, shared_pool

WORKER = "grpo_gym.verifiers.worker"


def verdict(correct: bool, answered: bool, timed_out: bool = False) -> Score:
    """A score of 1 or 0, with how it came about."""
    return Score(
        float(correct),
        correct,
        {"correct": float(correct), "answered": float(answered), "timed_out": float(timed_out)},
    )


def fast_verdict(answer: str, reference: str) -> bool | None:
    """Whether two normalised answers are equal where no parser is needed to be certain; else None."""
    if answer == reference:
        return True
    if len(answer) > MAX_LENGTH or len(reference) > MAX_LENGTH:
        return False
    left, right = (split_quantity(join_commas(text)) for text in (answer, reference))
    return same_quantity(left, right)


def verify_math(
    completion: str, reference: str, *, deadline_s: float = 2.0, require_boxed: bool = False
) -> Score:
    r"""Grade a completion against a reference answer, by mathematical meaning.

    Plain numbers are compared exactly in this process, in microseconds. Everything else goes to a warm
    worker process that runs math-verify; an answer that takes longer than the deadline there is wrong.

    Args:
        completion: what the model wrote. The last `\boxed{}` is its answer; without one, what follows
            the last `####`, "answer is" or "answer:".
        reference: the right answer, bare or as a solution that ends in one of these marks.
        deadline_s: seconds a worker may spend on the comparison.
        require_boxed: accept an answer in a box only.

    Returns:
        Value 1.0 or 0.0. Components, each 0 or 1: `correct`; `answered`, an answer was found;
        `timed_out`, the deadline passed. The value is nan, and nothing is correct, only where the
        comparison could not be run at all.
    """
    answer = extract_answer(completion, require_boxed)
    if answer is None or not (answer := normalise(answer)):
        return verdict(False, answered=False)
    marked = extract_answer(reference)
    gold = normalise(reference if marked is None else marked)
    fast = fast_verdict(answer, gold)
    if fast is not None:
        return verdict(fast, answered=True)
    request = {"answer": answer, "reference": gold, "seconds": deadline_s}
    try:
        reply = shared_pool(WORKER).call(request, deadline_s)
    except WorkerDied:
        return Score(float("nan"), False, {"correct": 0.0, "answered": 1.0, "timed_out": 0.0})
    if reply is None:
        return verdict(False, answered=True, timed_out=True)
    return verdict(bool(reply["equal"]), answered=True)
