"""Any data set of programming problems with tests: assertions, or inputs and outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_envs.code.base import CodeEnv
from grpo_envs.code.problem import Problem
from grpo_envs.code.shapes import COLUMNS, SHAPES, Columns, Parsed
from grpo_envs.rows import Row
from grpo_gym.env import check_count
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task


class CodeDatasetEnv(CodeEnv):
    """Programming problems from a file or data set of one of five shapes.

    - "asserts": "prompt" and "tests" (one text or a list), and if there are any "setup", "entry_point" and
      "solution".
    - "stdio": "prompt", "inputs" and "outputs" (lists of texts), and if there is any "solution".
    - "apps": "question", "input_output" (a JSON text with inputs, outputs and perhaps fn_name),
      "starter_code" and "solutions", as in APPS and TACO.
    - "code_contests": "description", "public_tests", "private_tests", "generated_tests" and "solutions".
    - "live_code_bench": "question_content", "public_test_cases", "private_test_cases", "starter_code" and
      "metadata". The compressed form of the private tests is read, and nothing in it is run.

    A program for inputs and outputs reads stdin and prints; one for a named function defines it, or a class
    `Solution` with a method of that name; the names of `typing` and `collections` are there for the latter
    two. Rows without tests, or whose right outputs are all empty, are left out.

    Args:
        shape: one of the five.
        columns: other names of columns, as in {"prompt": "problem"}; the keys are those of `COLUMNS`.
            "a.b.0" looks inside.
        shown: how many tests the question shows, where they are assertions.
        max_tests: most tests of a task, the first ones; by default all.
        **kwargs: as in `CodeEnv`: path, dataset, config, split, ...

    Raises:
        UsageError: As in `load_tasks`; an unknown shape or column.
    """

    def __init__(
        self,
        *,
        shape: str = "asserts",
        columns: Mapping[str, str] | None = None,
        shown: int = 1,
        max_tests: int | None = None,
        **kwargs: Any,
    ) -> None:
        if shape not in SHAPES:
            raise UsageError(f"no shape {shape!r}; there is {', '.join(SHAPES)}")
        if max_tests is not None:
            check_count("max_tests", max_tests)
        if not isinstance(shown, int) or shown < 0:
            raise UsageError(f"shown must be a whole number of at least 0, got {shown!r}")
        super().__init__(Build(shape, named(shape, columns), shown, max_tests), **kwargs)


def named(shape: str, columns: Mapping[str, str] | None) -> Columns:
    """The columns of a shape, with those that the user named otherwise.

    Raises:
        UsageError: The map has a key that the shape does not have, or is no map.
    """
    if not isinstance(columns or {}, Mapping):
        raise UsageError(f"columns is a map from names such as prompt to columns, not {columns!r}")
    known, given = COLUMNS[shape], dict(columns or {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(f"columns of {shape} are {', '.join(known)}, not {', '.join(unknown)}")
    return tuple((known | given).items())


@dataclass(frozen=True)
class Build:
    """Makes a task of a row; its fields are the arguments of `CodeDatasetEnv`."""

    shape: str
    columns: Columns
    shown: int
    max_tests: int | None

    def __call__(self, row: Row) -> Task | None:
        """The task; None if it has no tests. Raises `UsageError` where the row has another shape."""
        parsed = SHAPES[self.shape](row, dict(self.columns))
        problem = parsed.problem
        problem = replace(
            problem,
            tests=problem.tests[: self.max_tests],
            cases=problem.cases[: self.max_tests],
            public=min(self.shown, len(problem.tests)),
        )
        printed = any(case.stdout.strip() for case in problem.cases)  # else an empty program wins
        if not parsed.prompt.strip() or not (problem.tests or printed):
            return None
        return Task(
            row.task_id, asked(parsed, problem), problem.solution, row.split, {"problem": problem}
        )


def asked(parsed: Parsed, problem: Problem) -> str:
    """The question, what the program should look like, and the tests that are shown."""
    parts = [parsed.prompt.strip()]
    if parsed.starter.strip():
        parts.append(f"Begin with\n```python\n{parsed.starter.strip()}\n```")
    elif problem.cases:
        parts.append("The program reads its input from stdin and prints its output.")
    elif parsed.function:
        parts.append(f"Name the function {parsed.function}.")
    if problem.public:
        shown = "\n".join(parsed.shown[: problem.public] or problem.tests[: problem.public])
        parts.append(f"It must pass tests such as\n{shown}")
    return "\n\n".join(parts)
