"""Questions about a user's own SQLite databases, from a file or data set."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_envs.rows import Row, load_tasks
from grpo_envs.tools.sql_answers import LONGEST, as_text, is_right, read_rows, write_answer
from grpo_envs.tools.sql_base import DatabaseEnv
from grpo_envs.tools.sql_database import Database, Value
from grpo_envs.tools.sql_database import Row as Record
from grpo_envs.tools.sql_files import find_database, open_database
from grpo_gym.env import check_count
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task

COLUMNS = {
    "question": "question",
    "database": "database",
    "query": "query",
    "answer": "answer",
    "hint": "hint",
    "ordered": "ordered",
}
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|[()]|\border\s+by\b""", re.IGNORECASE)


class Unanswerable(Exception):
    """A row whose answer cannot be graded; the message says why."""


class SQLDatasetEnv(DatabaseEnv):
    r"""Questions about your own databases, each with the query that answers it or the answer itself.

    A row has a "question", a "database" (a file in the folder `databases`, or a name such as "shop"
    for `shop/shop.sqlite`), and a "query" or an "answer". The query is run once, when the
    environment is made, and what it brings is the answer. An answer is a number, a text as the
    model is asked to write it, or a list of rows. A "hint" is shown below the question. The order
    of rows counts where the query has an ORDER BY of its own, or where "ordered" says so.

    Files are opened read-only and unlocked, and must not change in the meantime. Spider has
    `columns={"database": "db_id"}`; BIRD, with its evidence,
    `columns={"database": "db_id", "query": "SQL", "hint": "evidence"}`.

    Args:
        path: a `.jsonl` or `.parquet` file, or a folder with one for each split.
        dataset: id of a data set on the Hugging Face hub, instead of `path`.
        config: its configuration.
        split: the split that `reset` draws from, and that the rows of a single file belong to.
        databases: the folder of the databases, outside which none is opened; by default that of
            `path`.
        columns: other names of columns; the keys are those of `COLUMNS`.
        skip_unanswerable: leave rows out whose query fails or brings nothing, more than
            `max_answer_rows`, or what cannot be written as an answer; they are refused otherwise.
        max_answer_rows: most rows of an answer.
        max_ops: most instructions of SQLite in one query.
        max_seconds: most seconds of one query.
        **kwargs: as in `DatabaseEnv`.

    Raises:
        UsageError: As in `load_tasks` and `DatabaseEnv`; a row that is malformed or cannot be
            answered; a database that is missing, broken or outside its folder.
    """

    system_prompt = (
        f"{DatabaseEnv.system_prompt} A text that holds a comma, a semicolon or a quotation mark "
        "stands in double quotes."
    )

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str | None = None,
        split: str = "train",
        databases: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        skip_unanswerable: bool = False,
        max_answer_rows: int = 20,
        max_ops: int = 30_000_000,
        max_seconds: float = 5.0,
        **kwargs: Any,
    ) -> None:
        check_count("max_answer_rows", max_answer_rows)
        check_count("max_ops", max_ops)
        if not 0 < max_seconds < math.inf:
            raise UsageError(f"max_seconds must be positive and finite, got {max_seconds!r}")
        self.bounds = {"max_ops": max_ops, "max_seconds": max_seconds}
        if kwargs.get("tasks") is None:
            build = Build(
                folder=_folder(databases, path),
                columns=_named(columns),
                skip_unanswerable=skip_unanswerable,
                max_rows=max_answer_rows,
                max_ops=max_ops,
                max_seconds=max_seconds,
            )
            kwargs["tasks"] = load_tasks(
                build, path=path, dataset=dataset, config=config, split=split
            )
        super().__init__(split=split, **kwargs)

    def open(self, task: Task) -> Database:
        """The file of the task's database."""
        return open_database(Path(task.metadata["database"]), **self.bounds)


@dataclass(frozen=True)
class Build:
    """Makes a task of a row; its fields are arguments of `SQLDatasetEnv`."""

    folder: Path
    columns: tuple[tuple[str, str], ...]
    skip_unanswerable: bool
    max_rows: int
    max_ops: int
    max_seconds: float

    def __call__(self, row: Row) -> Task | None:
        """The task; None if it is left out.

        Raises:
            UsageError: As in `SQLDatasetEnv`.
        """
        names = dict(self.columns)
        question = row.text(names["question"]).strip()
        path = find_database(self.folder, row.text(names["database"]), row.where)
        query = (_optional(row, names["query"], str) or "").strip().rstrip(";")
        ordered = _optional(row, names["ordered"], bool)
        if ordered is None:
            ordered = is_ordered(query)
        try:
            rows = self._queried(path, query) if query else _written(row, names["answer"])
            self._check(question, rows, ordered)
        except Unanswerable as error:
            if self.skip_unanswerable:
                return None
            raise UsageError(
                f"{row.where}: {error}; skip_unanswerable=True leaves such rows out"
            ) from error
        hint = (_optional(row, names["hint"], str) or "").strip()
        return Task(
            row.task_id,
            f"{question}\n{hint}".strip(),
            "; ".join(", ".join(map(as_text, record)) for record in rows),
            row.split,
            {"database": str(path), "query": query, "rows": rows, "ordered": ordered},
        )

    def _queried(self, path: Path, query: str) -> tuple[Record, ...]:
        database = open_database(path, max_ops=self.max_ops, max_seconds=self.max_seconds)
        try:
            result = database.query(query, self.max_rows)
        except ValueError as error:
            raise Unanswerable(f"the query fails: {error}") from error
        finally:
            database.close()
        if result.more:
            raise Unanswerable(f"the query brings more than {self.max_rows} rows")
        return result.rows

    def _check(self, question: str, rows: tuple[Record, ...], ordered: bool) -> None:
        if not question:
            raise Unanswerable("there is no question")
        if not rows:
            raise Unanswerable("there is no row in the answer")
        if len(rows) > self.max_rows:
            raise Unanswerable(f"the answer has more than {self.max_rows} rows")
        answer = write_answer(rows)
        if not is_right(answer, rows, ordered):
            raise Unanswerable(
                f"the answer cannot be written in a box of {LONGEST} characters, or not be read "
                f"again: {answer[:80]}"
            )


def is_ordered(query: str) -> bool:
    """Whether a query orders its rows: ORDER BY outside of brackets and of quotation marks."""
    depth = 0
    for token in _TOKEN.finditer(query):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and token[0][0] in "oO":
            return True
    return False


def _folder(databases: str | Path | None, path: str | Path | None) -> Path:
    """The folder of the databases. Raises `UsageError` when there is none."""
    if databases is None and path is None:
        raise UsageError("give databases=, the folder of the databases")
    folder = Path(databases if databases is not None else path or "")
    if databases is None and not folder.is_dir():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"databases: there is no folder {folder}")
    return folder.resolve()


def _named(columns: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if not isinstance(columns or {}, Mapping):
        raise UsageError(f"columns is a map from names such as query to columns, not {columns!r}")
    given = dict(columns or {})
    unknown = sorted(set(given) - set(COLUMNS))
    if unknown:
        raise UsageError(f"columns maps {', '.join(COLUMNS)}, not {', '.join(unknown)}")
    return tuple((COLUMNS | given).items())


def _optional(row: Row, column: str, kind: type) -> Any:
    """What stands in a column that may be absent or empty; None if so.

    Raises:
        UsageError: It is of another type.
    """
    value = row.values.get(column)
    if value is not None and not isinstance(value, kind):
        raise UsageError(
            f"{row.where}: column {column!r} must be {kind.__name__}, not {type(value).__name__}"
        )
    return value


def _written(row: Row, column: str) -> tuple[Record, ...]:
    """The rows of an answer that is given as it is.

    Raises:
        UsageError: There is neither a query nor an answer, or the answer is of no known form.
        Unanswerable: Its rows have different lengths.
    """
    answer = row.values.get(column)
    if answer is None:
        raise UsageError(f"{row.where}: there is no query, and no column {column!r} either")
    rows = read_rows(answer) if isinstance(answer, str) else _listed(answer)
    if rows is None:
        raise UsageError(
            f"{row.where}: column {column!r} must be a number, a text or a list of rows, "
            f"not {answer!r:.100}"
        )
    if len({len(record) for record in rows}) > 1:
        raise Unanswerable("the rows of the answer have different lengths")
    return rows


def _listed(answer: object) -> tuple[Record, ...] | None:
    rows = answer if isinstance(answer, list | tuple) else [answer]
    records = tuple(tuple(row) if isinstance(row, list | tuple) else (row,) for row in rows)
    whole = all(record and all(map(_is_value, record)) for record in records)
    return records if whole else None


def _is_value(value: object) -> bool:
    return isinstance(value, Value) and not isinstance(value, bool)
