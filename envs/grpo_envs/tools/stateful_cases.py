"""The multi-turn cases of the Berkeley Function Calling Leaderboard, from the package `bfcl-eval`.

Patil et al., "The Berkeley Function Calling Leaderboard: From Tool Use to Agentic Evaluation of
Large Language Models", ICML 2025. The package holds the cases and the back ends; nothing of it is
copied here.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task

INSTALL = "pip install --no-deps bfcl-eval"
"""With its dependencies it would pin dozens of packages, and these cases need none of them."""

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
TEST_EVERY = 5


@dataclass(frozen=True)
class TruthCall:
    """A call of the published solution."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A conversation with a user who wants things done.

    Attributes:
        case_id: as in "multi_turn_base_0".
        category: one of `CATEGORIES`.
        requests: what the user says, turn by turn; "" in a turn that only brings new tools.
        truth: the calls of the published solution, turn by turn.
        classes: names of the back ends.
        config: the state that each back end begins with.
        late: names of the tools that are only there from a turn on, by that turn.
        excluded: names of the tools that are not there at all.
    """

    case_id: str
    category: str
    requests: tuple[str, ...]
    truth: tuple[tuple[TruthCall, ...], ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    late: Mapping[int, tuple[str, ...]]
    excluded: tuple[str, ...]

    @property
    def is_solvable(self) -> bool:
        """Whether the published solution gets by with the tools that are there.

        One case in the package of 2026 does not: multi_turn_miss_func_49 takes the result of "tail"
        two requests before that tool comes.
        """
        return not any(
            call.name in names
            for late, names in self.late.items()
            for turn in self.truth[:late]
            for call in turn
        )


def read_package(name: str) -> str:
    """A text file of the package. Raises `UsageError` when it is not there."""
    try:
        return (files("bfcl_eval") / "data" / name).read_text(encoding="utf-8")
    except (ImportError, OSError) as error:
        raise UsageError(f"StatefulTools needs the data of bfcl-eval: {INSTALL}") from error


@cache
def load_tasks(categories: Sequence[str]) -> ListTasks:
    """The cases of some categories as tasks, with the case as metadata.

    Every fifth case belongs to the split "test", the others to "train"; the categories are variants
    of the same conversations, and the variants of one are all in the same split.

    Raises:
        UsageError: `bfcl-eval` is not installed, or an unknown category.
    """
    unknown = [name for name in categories if name not in CATEGORIES]
    if unknown or not categories:
        raise UsageError(
            f"categories are some of {', '.join(CATEGORIES)}; got {', '.join(unknown) or 'none'}"
        )
    return ListTasks([_task(case) for name in categories for case in load_cases(name)])


def _task(case: Case) -> Task:
    number = int(case.case_id.rpartition("_")[2])
    split = "test" if number % TEST_EVERY == TEST_EVERY - 1 else "train"
    answer = "\n".join(call.name for turn in case.truth for call in turn)
    return Task(case.case_id, case.requests[0], answer, split, {"case": case})


@cache
def load_cases(category: str) -> tuple[Case, ...]:
    """The cases of a category, in the order of the file."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    truths = {row["id"]: row["ground_truth"] for row in _rows(f"possible_answer/{name}")}
    return tuple(_case(row, truths[row["id"]], category) for row in _rows(name))


def _rows(name: str) -> Iterator[dict[str, Any]]:
    for line in read_package(name).splitlines():
        if line.strip():
            yield json.loads(line)


def _case(row: dict[str, Any], truth: list[list[str]], category: str) -> Case:
    return Case(
        case_id=row["id"],
        category=category,
        requests=tuple("\n".join(m["content"] for m in turn) for turn in row["question"]),
        truth=tuple(tuple(map(read_call, turn)) for turn in truth),
        classes=tuple(row["involved_classes"]),
        config=row["initial_config"],
        late={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
        excluded=tuple(row.get("excluded_function", ())),
    )


def read_call(text: str) -> TruthCall:
    """A call written as Python, with literal values; it is only parsed.

    Raises:
        UsageError: It is none.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("no call")
        args = tuple(ast.literal_eval(value) for value in node.args)
        if any(item.arg is None for item in node.keywords):
            raise ValueError("unpacking")
        kwargs = {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"bfcl-eval: not a call with literal values: {text!r:.200}") from error
    return TruthCall(node.func.id, args, kwargs)
