"""Questions about a SQLite database, answered by queries."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_envs.math.arithmetic import check_level
from grpo_envs.tools.sql_answers import as_text, is_right, write_answer
from grpo_envs.tools.sql_database import Database, Result, Row
from grpo_envs.tools.sql_questions import Question, draw_question
from grpo_envs.tools.sql_schemas import WORLDS, World
from grpo_gym.env import check_count
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.tools import Call, ToolEnv, tool
from grpo_gym.types import Observation

MOST_ROWS = 8
_MAX_SEED = 2**31
_EASY: tuple[Row, ...] = ((1,), (2,), (3,))


class SQLEnv(ToolEnv):
    r"""A question about a database that is found out by looking at its schema and querying it.

    Each task has a database of its own: one of five worlds, filled at random from the task. The
    answer is compared by value, however it was found. Queries can only read, and are bounded; see
    `grpo_envs.tools.sql_database.Database`.

    Args:
        level: difficulty, 1 to 5: filters; order and aggregates; joins; groups; subqueries.
        max_rows: most rows that a query shows.
        **kwargs: as in `ToolEnv`.

    Raises:
        UsageError: No such level, or `max_rows` below 1.
    """

    max_turns = 8
    call_seconds = math.inf  # the database stops a query by itself
    system_prompt = (
        "Answer the question about the SQLite database. Put the final answer in \\boxed{}: values of "
        "a row separated by commas, rows by semicolons, plain numbers."
    )

    def __init__(self, *, level: int = 1, max_rows: int = 30, **kwargs: Any) -> None:
        self.level = check_level(level)
        check_count("max_rows", max_rows)
        self.max_rows = max_rows
        self._database: Database | None = None
        super().__init__(**kwargs)

    @tool
    def schema(self) -> str:
        """Show the tables of the database."""
        return "\n".join(_world(self.task).schema) if self.task else ""

    @tool
    def query(self, sql: str) -> str:
        """Run one SELECT statement and show the rows it brings."""
        if self._database is None:
            raise ValueError("there is no database yet")
        return _table(self._database.query(sql, self.max_rows))

    def default_tasks(self) -> TaskSource:
        """Endless questions of this level, each with a database of its own."""
        return ProceduralTasks(lambda rng: _problem(rng, self.level))

    def observe(self, task: Task) -> Observation:
        """The question; the task's database is set up anew.

        Raises:
            UsageError: The task is not one of this environment.
        """
        if not task.metadata.keys() >= {"world", "seed", "query", "rows", "ordered"}:
            raise UsageError(f"task {task.task_id!r} is none of SQLEnv's: leave tasks= away")
        self.close()
        self._database = _open(_world(task), task.metadata["seed"])
        return super().observe(task)

    def grade(self, task: Task, action: str) -> Score:
        """Score the boxed answer by value."""
        right = is_right(action, task.metadata["rows"], task.metadata["ordered"])
        return Score(float(right), right, {"correct": float(right)})

    def solution(self, task: Task) -> tuple[str, ...]:
        """The query that answers the question, then what it brings."""
        return self._play(task, task.metadata["rows"])

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The query, then an answer in which one value or row is wrong."""
        return self._play(task, _spoiled(task.metadata["rows"], rng))

    def close(self) -> None:
        """Give the database back."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _play(self, task: Task, rows: Sequence[Row]) -> tuple[str, ...]:
        call = Call("query", {"sql": task.metadata["query"]})
        return self.codec.render(call), write_answer(rows)


def _problem(rng: np.random.Generator, level: int) -> tuple[str, str, dict[str, Any]]:
    """A question that its database answers with some rows, but not many."""
    while True:
        number, seed = int(rng.integers(len(WORLDS))), int(rng.integers(_MAX_SEED))
        world = WORLDS[number]
        database = _open(world, seed)
        for _ in range(8):
            question = draw_question(world, level, rng)
            rows = _answer(database, question)
            if rows:
                database.close()
                return (
                    question.text,
                    "; ".join(", ".join(map(as_text, row)) for row in rows),
                    {
                        "world": number,
                        "seed": seed,
                        "query": question.query,
                        "ordered": question.ordered,
                        "rows": rows,
                    },
                )
        database.close()


def _answer(database: Database, question: Question) -> tuple[Row, ...]:
    """The rows that answer a question; none where they are too many, or all too easy to guess."""
    result = database.query(question.query, MOST_ROWS)
    empty = any(value in (None, 0) for row in result.rows for value in row)
    easy = len(result.rows) == 1 and result.rows[0] in _EASY
    return () if result.more or empty or easy else result.rows


def _open(world: World, seed: int) -> Database:
    return Database(world.schema, world.rows(seed))


def _world(task: Task) -> World:
    return WORLDS[int(task.metadata["world"])]


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
