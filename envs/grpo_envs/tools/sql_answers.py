"""Final answers of database questions, compared by value."""

import math
import re
from collections.abc import Sequence

from grpo_envs.tools.sql_database import Row, Value
from grpo_gym.verifiers.extract import last_box
from grpo_gym.verifiers.text import fold

LONGEST = 2_000
ROUNDING = 0.0051
"""Averages are asked for with two decimals; one that was not rounded is right as well."""

_NUMBER = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})")


def write_answer(rows: Sequence[Row]) -> str:
    """Rows as the model is asked to write them: columns by commas, rows by semicolons, in a box."""
    text = "; ".join(", ".join(map(as_text, row)) for row in rows)
    return f"\\boxed{{{text}}}"


def is_right(action: str, rows: Sequence[Row], ordered: bool) -> bool:
    """Whether the last box holds these rows: in this order, or in any order unless `ordered`.

    Whole numbers must be exact, others be right to two decimals; of text only the case, spaces and
    punctuation at the ends do not matter. Values of a single column may be separated by commas.
    """
    box = last_box(action)
    if box is None or not 0 < len(box) <= LONGEST:
        return False
    columns = len(rows[0])
    given = [part.split(",") for part in re.split(r"[;\n]", box.strip().rstrip(";"))]
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
            return float(text) == value
        return math.isclose(float(text), value, rel_tol=1e-9, abs_tol=ROUNDING)
    return fold(text) == fold(as_text(value))
