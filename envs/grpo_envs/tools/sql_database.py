"""A SQLite database on which anybody's query may be run: read-only, and bounded."""

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

Value = str | int | float | bytes | None
Row = tuple[Value, ...]

_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_RECURSIVE,
}
_NAMES = """
abs avg cast ceil ceiling coalesce concat concat_ws count cume_dist dense_rank first_value floor
glob group_concat ifnull iif instr lag last_value lead length like likelihood likely lower ltrim
max min mod nth_value ntile nullif percent_rank pow power rank replace round row_number rtrim
sign sqrt string_agg substr substring sum total trim typeof unicode unlikely upper
"""
FUNCTIONS = frozenset(_NAMES.split())
LIMITS: Mapping[int, int] = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 16,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_OPS_BETWEEN_CHECKS = 100
_TABLES = """
SELECT sql FROM sqlite_master
WHERE type IN ('table', 'view') AND sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
"""


@dataclass(frozen=True)
class Result:
    """What a query brought.

    Attributes:
        columns: their names.
        rows: the first rows, `max_rows` at most.
        more: whether there were further rows.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: bool


class Database:
    """Tables that can be read, but not changed.

    A query may do nothing but select: SQLite's authorizer turns down every other action (writes,
    ATTACH, PRAGMA, transactions) and every function that is not on a short list, so nothing
    that loads code, draws random numbers, reads the clock or makes large values.

    Work is bounded by the number of SQLite's own instructions, so that what a query brings does not
    depend on how busy the machine is; a limit in seconds stands behind it. Values are bounded too.

    May be used from any thread; queries wait for each other.

    Args:
        connection: made with `check_same_thread=False`; it belongs to this object from now on.
        functions: what a query may call.
        limits: SQLite's own limits, by their number.
        max_ops: most instructions of one query.
        max_seconds: most seconds of one query.

    Attributes:
        schema: the CREATE statements of its tables and views.

    Raises:
        sqlite3.Error: It is no database, or its schema cannot be read.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        functions: frozenset[str] = FUNCTIONS,
        limits: Mapping[int, int] = LIMITS,
        max_ops: int = 3_000_000,
        max_seconds: float = 2.0,
    ) -> None:
        self._lock = threading.Lock()
        self._work = _Work(max_ops, max_seconds)
        self._connection = connection
        self._close = weakref.finalize(self, connection.close)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_progress_handler(self._work.is_too_much, _OPS_BETWEEN_CHECKS)
        # SQLite reads the schema now, before queries become short.
        self.schema = tuple(sql for (sql,) in connection.execute(_TABLES))
        for limit, value in limits.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(partial(_authorize, functions))

    def query(self, sql: str, max_rows: int) -> Result:
        """Run one SELECT statement.

        Args:
            sql: any text.
            max_rows: most rows that are fetched.

        Raises:
            ValueError: It is no such statement, may not be run, or is too much work. The message is
                for whoever wrote it.
        """
        with self._lock:
            self._work.begin()
            try:
                with closing(self._connection.cursor()) as cursor:
                    cursor.execute(sql)
                    if cursor.description is None:
                        raise ValueError("there is no SELECT in it")
                    rows = cursor.fetchmany(max_rows + 1)
                    columns = tuple(str(column[0]) for column in cursor.description)
            except (sqlite3.Error, sqlite3.Warning, UnicodeError, MemoryError) as error:
                raise ValueError(_reason(error)) from error
        return Result(columns, tuple(rows[:max_rows]), len(rows) > max_rows)

    def close(self) -> None:
        """Give the memory back; it is given back with the object at the latest."""
        with self._lock:
            self._close()


class _Work:
    """Counts the work of one query at a time."""

    def __init__(self, max_ops: int, max_seconds: float) -> None:
        self._max_ops = max_ops
        self._max_seconds = max_seconds
        self.begin()

    def begin(self) -> None:
        self._ops_left = self._max_ops
        self._deadline = time.monotonic() + self._max_seconds

    def is_too_much(self) -> bool:
        self._ops_left -= _OPS_BETWEEN_CHECKS
        return self._ops_left < 0 or time.monotonic() > self._deadline


def in_memory(
    schema: Sequence[str], rows: Iterable[tuple[str, Sequence[Row]]], **bounds: Any
) -> Database:
    """A database that is made on the spot.

    Args:
        schema: one CREATE TABLE statement a table.
        rows: the rows of each table, by its name.
        **bounds: as in `Database`.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    for statement in schema:
        connection.execute(statement)
    for table, values in rows:
        marks = ", ".join("?" * len(values[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.execute("COMMIT")
    return Database(connection, **bounds)


def _authorize(
    functions: frozenset[str],
    action: int,
    first: str | None,
    second: str | None,
    database: str | None,
    trigger: str | None,
) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if second in functions else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ACTIONS else sqlite3.SQLITE_DENY


def _reason(error: Exception) -> str:
    text = str(error)
    if text == "interrupted":
        return "the query is too much work"
    if text == "not authorized":
        return "only SELECT is allowed"
    return text or type(error).__name__
