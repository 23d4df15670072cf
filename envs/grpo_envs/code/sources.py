"""Whether the tests of a row are Python, and can fail."""

import ast
import re
import warnings
from collections.abc import Iterable

from grpo_gym.errors import UsageError

_CAN_FAIL = re.compile(r"\b(?:assert|raise|unittest|doctest|testing)")


def check_tests(setup: str, tests: Iterable[str], where: str) -> None:
    """Refuse tests that no program passes, and tests that every program passes.

    Raises:
        UsageError: Something is no Python, or nothing in it asserts or raises anything.
    """
    sources = [setup, *tests]
    for source in sources:
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
            raise UsageError(
                f"{where}: a test is not Python ({reason}): {_shown(source)}"
            ) from error
    if not any(map(_CAN_FAIL.search, sources)):
        raise UsageError(f"{where}: the tests assert nothing: {_shown(sources[-1])}")


def _shown(source: str) -> str:
    return repr(source.strip()[:80])
