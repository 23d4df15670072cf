"""What all questions about a database share: the tools, the answer in a box, and how it is graded."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_envs.tools.sql_answers import as_text, is_right, write_answer
from grpo_envs.tools.sql_database import Database, Result, Row
from grpo_gym.env import check_count
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.tools import Call, ToolEnv, tool
from grpo_gym.types import Observation


class DatabaseEnv(ToolEnv):
    r"""A question about a database that is found out by looking at its schema and querying it.

    The answer is compared by value, however it was found. Queries can only read, and are bounded;
    see `grpo_envs.tools.sql_database.Database`.

    A subclass says how a task's database is opened. The metadata of a task hold "rows", the answer;
    "ordered", whether their order counts; and "query", which brings them, or "" if none is known.

    Args:
        max_rows: most rows that a query shows.
        **kwargs: as in `ToolEnv`.

    Raises:
        UsageError: `max_rows` below 1.
    """

    max_turns = 8
    call_seconds = math.inf  # the database stops a query by itself
    system_prompt = (
        "Answer the question about the SQLite database. Put the final answer in \\boxed{}: values of "
        "a row separated by commas, rows by semicolons, plain numbers."
    )

    def __init__(self, *, max_rows: int = 30, **kwargs: Any) -> None:
        check_count("max_rows", max_rows)
        self.max_rows = max_rows
        self._database: Database | None = None
        super().__init__(**kwargs)

    @abstractmethod
    def open(self, task: Task) -> Database:
        """Hook: the database of a task. It is closed when the next episode begins.

        Raises:
            KeyError: The task's metadata are of another kind.
        """

    @tool
    def schema(self) -> str:
        """Show the tables of the database."""
        return "\n".join(self._open().schema)

    @tool
    def query(self, sql: str) -> str:
        """Run one SELECT statement and show the rows it brings."""
        return _table(self._open().query(sql, self.max_rows))

    def observe(self, task: Task) -> Observation:
        """The question; the task's database is opened anew.

        Raises:
            UsageError: The task is not one of this environment.
        """
        self._let_go()
        try:
            task.metadata["rows"], task.metadata["ordered"], task.metadata["query"]
            self._database = self.open(task)
        except KeyError as error:
            raise UsageError(
                f"task {task.task_id!r} is none of {type(self).__name__}'s: leave tasks= away"
            ) from error
        return super().observe(task)

    def grade(self, task: Task, action: str) -> Score:
        """Score the boxed answer by value."""
        right = is_right(action, task.metadata["rows"], task.metadata["ordered"])
        return Score(float(right), right, {"correct": float(right)})

    def solution(self, task: Task) -> tuple[str, ...]:
        """The query that answers the question, where one is known, then what it brings."""
        return self._play(task, task.metadata["rows"])

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The query, then an answer in which one value or row is wrong."""
        return self._play(task, _spoiled(task.metadata["rows"], rng))

    def close(self) -> None:
        """Give the database back."""
        self._let_go()
        super().close()

    def _open(self) -> Database:
        if self._database is None:
            raise ValueError("there is no database yet")
        return self._database

    def _let_go(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _play(self, task: Task, rows: Sequence[Row]) -> tuple[str, ...]:
        query = task.metadata["query"]
        calls = (self.codec.render(Call("query", {"sql": query})),) if query else ()
        return (*calls, write_answer(rows))


def _table(result: Result) -> str:
    lines = [result.columns, *([as_text(value) for value in row] for row in result.rows)]
    if result.more:
        end = f"(the first {len(result.rows)} rows; there are more)"
    else:
        end = f"({len(result.rows)} row{'' if len(result.rows) == 1 else 's'})"
    return "\n".join([*(" | ".join(line) for line in lines), end])


def _spoiled(rows: Sequence[Row], rng: np.random.Generator) -> Sequence[Row]:
    """The rows with one missing, or with one value changed."""
    if len(rows) > 1 and rng.integers(2):
        return rows[:-1]
    index = int(rng.integers(len(rows)))
    *rest, last = rows[index]
    wrong = last + int(rng.integers(1, 9)) if isinstance(last, int | float) else f"{last!s} Junior"
    return (*rows[:index], (*rest, wrong), *rows[index + 1 :])
