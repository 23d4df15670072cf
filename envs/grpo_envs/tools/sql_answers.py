"""Final answers of database questions, compared by value."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from grpo_envs.tools.sql_database import Row, Value
from grpo_gym.verifiers.extract import last_box
from grpo_gym.verifiers.text import fold

LONGEST = 2_000
ROUNDING = 0.0051
"""Averages are asked for with two decimals; one that was not rounded is right as well. A number below
1 may be off by this share of it."""

_NUMBER = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})")
_CELL = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"[ \t]*|([^,;\n]*))([,;\n]|\Z)')
_NEEDS_QUOTES = re.compile(r'[,;\n"]|^\s|\s$')


def write_answer(rows: Sequence[Row]) -> str:
    """Rows as the model is asked to write them: columns by commas, rows by semicolons, in a box.

    A text with one of these in it stands in double quotes.
    """
    text = "; ".join(", ".join(map(_as_cell, row)) for row in rows)
    return f"\\boxed{{{text}}}"


def is_right(action: str, rows: Sequence[Row], ordered: bool) -> bool:
    """Whether the last box holds these rows: in this order, or in any order unless `ordered`.

    Whole numbers must be exact, others be right to two decimals; of text only the case, spaces and
    punctuation at the ends do not matter. Values of a single column may be separated by commas; a
    value may stand in double quotes.
    """
    box = last_box(action)
    if box is None or not 0 < len(box) <= LONGEST:
        return False
    columns = len(rows[0])
    given = [[text for text, _ in row] for row in _cells(box)]
    if columns == 1:
        given = [[value] for row in given for value in row]
    if len(given) != len(rows) or any(len(row) != columns for row in given):
        return False
    if ordered:
        return all(map(_same_row, given, rows))
    left = list(given)
    for row in rows:
        found = next((index for index, other in enumerate(left) if _same_row(other, row)), None)
        if found is None:
            return False
        del left[found]
    return True


def read_rows(text: str) -> tuple[Row, ...]:
    """The rows of an answer that is written as the model would, outside of a box."""
    return tuple(
        tuple(cell if quoted else _typed(cell) for cell, quoted in row) for row in _cells(text)
    )


def as_text(value: Value) -> str:
    """A value as a result table and an answer show it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value)


def _same_row(given: Sequence[str], row: Row) -> bool:
    return all(map(_same, given, row))


def _same(given: str, value: Value) -> bool:
    text = given.strip()
    if isinstance(value, int | float):
        if not _NUMBER.fullmatch(text):
            return False
        if isinstance(value, int):
            return Decimal(text) == value
        tolerance = ROUNDING * min(1.0, abs(value))
        return math.isclose(float(text), value, rel_tol=1e-9, abs_tol=tolerance)
    return fold(text) == fold(as_text(value))


def _cells(text: str) -> list[list[tuple[str, bool]]]:
    """The cells of each row, and whether they stood in double quotes."""
    rows: list[list[tuple[str, bool]]] = [[]]
    text, at = text.strip().rstrip(";"), 0
    while match := _CELL.match(text, at):
        quoted = match[1] is not None
        cell = match[1].replace('""', '"') if quoted else match[2].strip()
        rows[-1].append((cell, quoted))
        if not match[3]:
            break
        if match[3] != ",":
            rows.append([])
        at = match.end()
    return rows


def _as_cell(value: Value) -> str:
    text = as_text(value)
    if isinstance(value, str) and _NEEDS_QUOTES.search(text):
        quoted = text.replace('"', '""')
        return f'"{quoted}"'
    return text


def _typed(cell: str) -> Value:
    if not _NUMBER.fullmatch(cell):
        return cell
    return float(cell) if "." in cell else int(cell)
