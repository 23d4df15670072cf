"""MBPP: short functions from a sentence and an example (Austin et al., 2021, arXiv:2108.07732)."""

from dataclasses import dataclass
from typing import Any

from grpo_envs.code.base import CodeEnv, unix_lines
from grpo_envs.code.problem import Problem, names_under_test
from grpo_envs.code.sources import check_tests
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task

SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601)}
"""Which task ids belong to which split, as published; the rest is for training."""


class MBPPEnv(CodeEnv):
    """A function from a sentence and its first tests.

    Rows have the published form: "task_id", "text" (or "prompt"), "code", "test_list", and if there is any
    "test_setup_code" (or "test_imports"). Where the ids are numbers, they decide the split, as in the
    paper: 1 to 10 "prompt", 11 to 510 "test", 511 to 600 "validation", the rest "train".

    Args:
        shown: how many of the tests the question shows. The paper shows all.
        seconds: time for one program and its tests; one of the published programs takes five.
        **kwargs: as in `CodeEnv`: path, dataset, config, split, ...

    Raises:
        UsageError: As in `load_tasks`; a missing column.
    """

    def __init__(self, *, shown: int = 1, seconds: float = 10.0, **kwargs: Any) -> None:
        super().__init__(MBPP(shown), seconds=seconds, **kwargs)


@dataclass(frozen=True)
class MBPP:
    """Makes a task of a published row.

    Attributes:
        shown: how many of the tests the question shows.
    """

    shown: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.shown, int) or self.shown < 0:
            raise UsageError(f"shown must be a whole number of at least 0, got {self.shown!r}")

    def __call__(self, row: Row) -> Task:
        """The task. Raises `UsageError` on a missing column, or without tests."""
        solution = unix_lines(row.text("code"))
        tests = texts(row, "test_list")
        if not tests:
            raise UsageError(f"{row.where}: there are no tests in test_list")
        imports = texts(row, "test_imports") if "test_imports" in row.values else ()
        setup = (
            row.text("test_setup_code") if "test_setup_code" in row.values else "\n".join(imports)
        )
        setup = unix_lines(setup)
        check_tests(setup, tests, row.where)
        problem = Problem(
            tests=tests,
            setup=setup,
            entry_points=names_under_test(solution, tests),
            solution=solution,
            public=min(self.shown, len(tests)),
        )
        number = row.text("task_id")
        split = published_split(int(number)) if number.isdecimal() else row.split
        asked = row.text("text" if "text" in row.values else "prompt").strip()
        return Task(
            f"MBPP/{number}", question(asked, problem), solution, split, {"problem": problem}
        )


def question(asked: str, problem: Problem) -> str:
    """What is asked, and the tests that may be seen."""
    if not problem.public:
        return asked
    tests = "\n".join(problem.tests[: problem.public])
    return f"{asked}\nIt must pass tests such as\n{tests}"


def published_split(number: int) -> str:
    """The split of a task id."""
    return next((split for split, ids in SPLITS.items() if number in ids), "train")


def texts(row: Row, column: str) -> tuple[str, ...]:
    """The list of texts in a column; one text counts as a list of one.

    Raises:
        UsageError: There is no such column, or something else is in it.
    """
    value = row.value(column)
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{row.where}: column {column!r} must be a list of texts")
    return tuple(unix_lines(item) for item in items if item.strip())
