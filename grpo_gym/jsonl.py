"""Reading JSON lines, and lists in JSON, with errors that say where."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_gym.errors import UsageError


def read_jsonl(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its line number; blank lines are skipped.

    Raises:
        UsageError: The file is missing, empty or not UTF-8; or a line is not a JSON object.
    """
    rows = []
    for number, content in enumerate(_text(path).split("\n"), start=1):
        if content.strip():
            rows.append((number, _object(content, f"{path}:{number}")))
    if not rows:
        raise UsageError(f"{path}: the file is empty")
    return rows


def read_json_list(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON file that holds a list of them, each with its number, from 1.

    Raises:
        UsageError: The file is missing, empty or not UTF-8; or it holds anything else.
    """
    text = _text(path)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: a .json file must hold a list of objects; one a line is .jsonl")
    if not rows:
        raise UsageError(f"{path}: the file is empty")
    return list(enumerate(rows, start=1))


def _text(path: str | Path) -> str:
    path = Path(path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{str(path)!r} cannot be the name of a file") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text") from error


def stamp(path: str | Path) -> tuple[int, int] | None:
    """When a file was changed, and its size: a key to cache its reading by; None if missing."""
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):  # or a name that no file can have
        return None
    return stat.st_mtime_ns, stat.st_size


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a line must be a JSON object, not {type(row).__name__}")
    return row


def check_columns(row: Mapping[str, Any], columns: Sequence[str], where: str) -> None:
    """Raise `UsageError`, beginning with `where`, unless the row has text in these columns."""
    for column in columns:
        if column not in row:
            there = ", ".join(row) or "none"
            raise UsageError(f"{where}: no column {column!r}; the columns are {there}")
        if not isinstance(row[column], str):
            kind = type(row[column]).__name__
            raise UsageError(f"{where}: column {column!r} must be text, not {kind}")
