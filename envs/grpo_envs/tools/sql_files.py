"""A user's own SQLite files: found inside one folder, opened so that nothing is ever written."""

import sqlite3
from pathlib import Path, PurePath
from typing import Any

from grpo_envs.tools.sql_database import FUNCTIONS, LIMITS, Database
from grpo_gym.errors import UsageError

# Real tables are wide and have long texts and dates.
_LIMITS = {
    **LIMITS,
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 2_000,
}
_FUNCTIONS = FUNCTIONS | {"date", "time", "datetime", "julianday", "strftime", "unixepoch"}


def find_database(folder: Path, name: str, where: str) -> Path:
    """The database of that name: a path in the folder, or a name as in Spider and BIRD.

    "shop" is `shop.sqlite`, `shop.db`, `shop/shop.sqlite` or `shop/shop.db`.

    Args:
        folder: outside which nothing is opened, not through `..` or a link either.
        name: as a row has it.
        where: the place of that row, for errors.

    Raises:
        UsageError: There is no such file, or it lies outside.
    """
    stem = PurePath(name).name
    names = [name, *(f"{name}{end}" for end in (".sqlite", ".db"))]
    names += [f"{name}/{stem}{end}" for end in (".sqlite", ".db")]
    for candidate in names if stem else ():
        path = _resolved(folder, candidate)
        if path is None:
            raise UsageError(f"{where}: {name!r:.200} cannot be the name of a file")
        if not path.is_relative_to(folder.resolve()):
            raise UsageError(f"{where}: the database {name!r:.200} is not inside {folder}")
        if path.is_file():
            return path
    raise UsageError(f"{where}: no database {name!r:.200} in {folder}")


def _resolved(folder: Path, name: str) -> Path | None:
    """Where a name in a folder leads; None if it can be no name: too long, a loop of links, ..."""
    try:
        path = (folder / name).resolve()
        path.is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return path


def open_database(path: Path, **bounds: Any) -> Database:
    """A database of a file, which is neither changed nor locked and must not change meanwhile.

    Dates are computed too, so a query that asks for the present day sees it.

    Args:
        path: the file.
        **bounds: as in `Database`: max_ops, max_seconds.

    Raises:
        UsageError: It is no SQLite database, or has changes that wait beside it.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise UsageError(
            f"{path}: changes wait in {log.name}; write them down first, with "
            "PRAGMA wal_checkpoint(TRUNCATE)"
        )
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        return Database(connection, functions=_FUNCTIONS, limits=_LIMITS, **bounds)
    except (sqlite3.Error, UnicodeError, MemoryError) as error:  # a schema may be any bytes
        reason = str(error) if isinstance(error, sqlite3.Error) else type(error).__name__
        raise UsageError(f"{path}: cannot be read as a SQLite database: {reason:.200}") from error
