"""The shapes in which tests of programs are published, read from rows of untrusted data."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_envs.code.base import unix_lines
from grpo_envs.code.packed import unpacked
from grpo_envs.code.problem import Problem, names_under_test
from grpo_envs.code.sources import check_tests
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.verifiers.code import Case

Columns = tuple[tuple[str, str], ...]
Names = Mapping[str, str]

PYTHON_3 = 3
"""The number of the language in CodeContests."""

COLUMNS: dict[str, dict[str, str]] = {
    "asserts": {
        "prompt": "prompt",
        "tests": "tests",
        "setup": "setup",
        "entry_point": "entry_point",
        "solution": "solution",
    },
    "stdio": {
        "prompt": "prompt",
        "inputs": "inputs",
        "outputs": "outputs",
        "solution": "solution",
    },
    "apps": {
        "prompt": "question",
        "tests": "input_output",
        "starter": "starter_code",
        "solution": "solutions",
    },
    "code_contests": {
        "prompt": "description",
        "public": "public_tests",
        "private": "private_tests",
        "generated": "generated_tests",
        "solution": "solutions",
    },
    "live_code_bench": {
        "prompt": "question_content",
        "public": "public_test_cases",
        "private": "private_test_cases",
        "starter": "starter_code",
        "metadata": "metadata",
    },
}
"""For each shape, the names of its columns."""

# Values cross as JSON in these data sets, so that a tuple is as good as a list.
_AS_JSON = """inf, nan = float("inf"), float("nan")
def as_json(value):
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value
"""


# What programs for sites with named functions take for granted. Nothing that could be the answer itself,
# as the names of `math` could.
_BEFORE = """from typing import *
from collections import *
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
"""


@dataclass(frozen=True)
class Parsed:
    """A row that was understood.

    Attributes:
        prompt: the question.
        problem: the tests.
        starter: how the program should begin; "" for anyhow.
        function: name of the function that is asked for, "" for none.
        shown: the tests in a form to show; () where they are it already.
    """

    prompt: str
    problem: Problem
    starter: str = ""
    function: str = ""
    shown: tuple[str, ...] = ()


def asserts(row: Row, names: Names) -> Parsed:
    """Assertions as they stand."""
    solution = unix_lines(_optional(row, names["solution"]))
    tests = tuple(unix_lines(test) for test in _texts(row, names["tests"]) if test.strip())
    function = _optional(row, names["entry_point"]).strip()
    entry_points = (function,) if function else names_under_test(solution, tests)
    setup = unix_lines(_optional(row, names["setup"]))
    if tests:
        check_tests(setup, tests, row.where)
    problem = Problem(tests=tests, setup=setup, entry_points=entry_points, solution=solution)
    return Parsed(row.text(names["prompt"]), problem, function=function)


def stdio(row: Row, names: Names) -> Parsed:
    """Lists of inputs and outputs."""
    cases = _cases(_texts(row, names["inputs"]), _texts(row, names["outputs"]), row)
    solution = unix_lines(_optional(row, names["solution"]))
    return Parsed(row.text(names["prompt"]), Problem(cases=cases, solution=solution))


def apps(row: Row, names: Names) -> Parsed:
    """APPS: a JSON text with inputs and outputs, of a program or of calls of `fn_name`."""
    prompt, starter = row.text(names["prompt"]), _optional(row, names["starter"])
    tests = _json(row, names["tests"]) or {}
    if not isinstance(tests, dict):
        raise _unlike(row, names["tests"], "an object with inputs and outputs")
    solutions = _json(row, names["solution"]) if _or_none(row, names["solution"]) else []
    listed = solutions if isinstance(solutions, list) else []
    solution = next((unix_lines(source) for source in listed if isinstance(source, str)), "")
    inputs, outputs = tests.get("inputs") or [], tests.get("outputs") or []
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _unlike(row, names["tests"], "lists of inputs and outputs")
    function = tests.get("fn_name")
    if not function:
        cases = _cases([_lines(part) for part in inputs], [_lines(part) for part in outputs], row)
        return Parsed(prompt, Problem(cases=cases, solution=solution), starter)
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise _unlike(row, names["tests"], "a list of arguments for each call")
    # An output may stand in a list of its own, in this data set.
    calls = [
        (arguments, [right, right[0]] if isinstance(right, list) and right else [right])
        for arguments, right in zip(inputs, outputs, strict=False)
    ]
    return _of_calls(prompt, starter, _identifier(row, function), calls, solution)


def code_contests(row: Row, names: Names) -> Parsed:
    """CodeContests: three objects with the lists input and output."""
    cases: list[Case] = []
    for part in ("public", "private", "generated"):
        tests = _or_none(row, names[part])
        if tests is not None and not isinstance(tests, Mapping):
            raise _unlike(row, names[part], "an object with input and output")
        if tests:
            cases += _cases(tests.get("input") or [], tests.get("output") or [], row)
    listed = _or_none(row, names["solution"])
    solution = ""
    if isinstance(listed, Mapping):
        pairs = zip(listed.get("language") or [], listed.get("solution") or [], strict=False)
        solution = next((str(s) for language, s in pairs if language == PYTHON_3), "")
    problem = Problem(cases=tuple(cases), solution=unix_lines(solution))
    return Parsed(row.text(names["prompt"]), problem)


def live_code_bench(row: Row, names: Names) -> Parsed:
    """LiveCodeBench: lists of tests, each with input, output and testtype; the private ones compressed."""
    prompt, starter = row.text(names["prompt"]), _optional(row, names["starter"])
    tests: list[Any] = []
    for part in ("public", "private"):
        if _or_none(row, names[part]) is not None:
            found = _json(row, names[part], unpack=True)
            if not isinstance(found, list):
                raise _unlike(row, names[part], "a list of tests")
            tests += found
    if not all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests):
        raise _unlike(row, names["public"], "tests with input and output")
    metadata = _json(row, names["metadata"]) if _or_none(row, names["metadata"]) else {}
    function = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not function:
        cases = _cases([t["input"] for t in tests], [t["output"] for t in tests], row)
        return Parsed(prompt, Problem(cases=cases), starter)
    try:
        calls = [
            (
                [json.loads(line) for line in test["input"].split("\n") if line.strip()],
                [json.loads(test["output"])],
            )
            for test in tests
        ]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _unlike(row, names["public"], f"arguments as JSON, one a line ({error})") from error
    return _of_calls(prompt, starter, _identifier(row, function), calls)


SHAPES: dict[str, Callable[[Row, Names], Parsed]] = {
    "asserts": asserts,
    "stdio": stdio,
    "apps": apps,
    "code_contests": code_contests,
    "live_code_bench": live_code_bench,
}


def _of_calls(
    prompt: str,
    starter: str,
    function: str,
    calls: Iterable[tuple[list[Any], list[Any]]],
    solution: str = "",
) -> Parsed:
    """Calls of a function, or of a method of `Solution`, each with the values that are right."""
    tests, shown = [], []
    for arguments, right in calls:
        call = f"{function}({', '.join(map(repr, arguments))})"
        shown.append(f"{call} == {right[0]!r}")
        value = f"as_json({call})"
        tests.append(
            f"assert {value} == {right[0]!r}" if len(right) == 1 else f"assert {value} in {right!r}"
        )
    after = (
        f"if hasattr(globals().get('Solution'), {function!r}):\n"
        f"    {function} = getattr(Solution(), {function!r})"
    )
    problem = Problem(
        tests=tuple(tests),
        setup=_AS_JSON,
        entry_points=(function,),
        before=_BEFORE,
        after=after,
        solution=solution,
    )
    return Parsed(prompt, problem, starter, function, tuple(shown))


def _cases(inputs: Sequence[Any], outputs: Sequence[Any], row: Row) -> tuple[Case, ...]:
    pairs = list(zip(inputs, outputs, strict=False))
    texts = all(isinstance(text, str) for pair in pairs for text in pair)
    if len(inputs) != len(outputs) or not texts:
        raise UsageError(f"{row.where}: inputs and outputs must be as many texts each")
    return tuple(Case(stdin, stdout) for stdin, stdout in pairs)


def _lines(part: Any) -> Any:
    """A list of lines as one text; anything else as it is."""
    return "\n".join(map(str, part)) if isinstance(part, list) else part


def _texts(row: Row, column: str) -> list[str]:
    value = row.value(column)
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise _unlike(row, column, "a list of texts")
    return list(items)


def _optional(row: Row, column: str) -> str:
    """The text of a column that need not be there."""
    value = _or_none(row, column)
    return "" if value is None else row.text(column)


def _or_none(row: Row, column: str) -> Any:
    """What stands in a column, None if there is no such column."""
    try:
        return row.value(column)
    except UsageError:
        return None


def _identifier(row: Row, name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{row.where}: the function's name {str(name)[:80]!r} is no name")
    return name


def _json(row: Row, column: str, *, unpack: bool = False) -> Any:
    """The value of a column, read as JSON where it is a text; with `unpack`, also where it is compressed."""
    value = row.value(column)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "null")
    except (ValueError, RecursionError) as error:
        packed = unpacked(value) if unpack else None
        if packed is None:
            raise _unlike(row, column, f"JSON ({error})") from error
    try:
        return json.loads(packed)
    except (ValueError, RecursionError) as error:
        raise _unlike(row, column, f"JSON ({error})") from error


def _unlike(row: Row, column: str, wanted: str) -> UsageError:
    return UsageError(f"{row.where}: column {column!r} must be {wanted}")
