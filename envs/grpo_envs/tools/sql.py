"""Questions about a SQLite database, answered by queries."""

from typing import Any

import numpy as np

from grpo_envs.math.arithmetic import check_level
from grpo_envs.tools.sql_answers import as_text
from grpo_envs.tools.sql_base import DatabaseEnv
from grpo_envs.tools.sql_database import Database, Row, in_memory
from grpo_envs.tools.sql_questions import Question, draw_question
from grpo_envs.tools.sql_schemas import WORLDS, World
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource

MOST_ROWS = 8
_MAX_SEED = 2**31
_EASY: tuple[Row, ...] = ((1,), (2,), (3,))


class SQLEnv(DatabaseEnv):
    r"""A question about a database made for it: one of five worlds, filled at random from the task.

    Args:
        level: difficulty, 1 to 5: filters; order and aggregates; joins; groups; subqueries.
        **kwargs: as in `DatabaseEnv`.

    Raises:
        UsageError: No such level, or as in `DatabaseEnv`.
    """

    def __init__(self, *, level: int = 1, **kwargs: Any) -> None:
        self.level = check_level(level)
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless questions of this level, each with a database of its own."""
        return ProceduralTasks(lambda rng: _problem(rng, self.level))

    def open(self, task: Task) -> Database:
        """The task's world, filled from its seed."""
        return _open(WORLDS[int(task.metadata["world"])], task.metadata["seed"])


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
    return in_memory(world.schema, world.rows(seed))
