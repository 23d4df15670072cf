"""GSM8K: grade-school word problems (Cobbe et al., 2021, arXiv:2110.14168)."""

import re
from typing import Any

import numpy as np

from grpo_envs.math.dataset import ProblemEnv
from grpo_envs.math.grading import verify_number
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task

_NOTE = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(
    r"(?P<sign>[-−]?)\s*[$€£¥]?\s*"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+|/[0-9]+)?)"
    r"(?P<unit>\s+[^\W\d]+(?:[ /][^\W\d]+)*)?\.?"
)


class GSM8KEnv(ProblemEnv):
    """One word problem, one answer in a box.

    Rows have "question" and "answer", the answer ending in "#### 18".

    Args:
        config: the configuration of the data set on the hub.
        **kwargs: as in `ProblemEnv`: path, dataset, split, and those of `TextEnv`.

    Raises:
        UsageError: As in `load_tasks`; a missing column, or an answer without "####".
    """

    def __init__(self, *, config: str | None = "main", **kwargs: Any) -> None:
        super().__init__(_task, config=config, **kwargs)

    def respond(self, task: Task, action: str) -> Score:
        """Score the boxed number."""
        return verify_number(action, task.answer)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The published reasoning, and an answer with one digit too many."""
        return (self._boxed(task, f"{task.answer}{rng.integers(1, 10)}"),)


def parse_answer(answer: str) -> tuple[str, str]:
    """Reasoning and final answer of a published solution.

    The final answer follows the last "####". Of a number the thousands separators, currency signs
    and units are taken off; anything else stays as it is.

    Raises:
        ValueError: There is no "####", or nothing after it.
    """
    reasoning, mark, final = answer.rpartition("####")
    final = final.strip()
    if not mark or not final:
        raise ValueError("the answer must end in '#### ' and the final answer")
    number = _NUMBER.fullmatch(final)
    if number:
        final = ("-" if number["sign"] else "") + number["number"].replace(",", "")
    return _NOTE.sub("", reasoning).strip(), final


def _task(row: Row) -> Task:
    answer = row.text("answer")
    try:
        reasoning, final = parse_answer(answer)
    except ValueError as error:
        raise UsageError(f"{row.where}: {error}") from error
    return Task(row.task_id, row.text("question"), final, row.split, {"reasoning": reasoning})
