"""Short functions with a bug: a task is a pure function of a random generator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from grpo_envs.code.function import Function
from grpo_envs.code.functions_of_lists import OF_LISTS
from grpo_envs.code.functions_of_values import OF_VALUES
from grpo_envs.code.problem import Problem, fenced

FUNCTIONS = OF_LISTS + OF_VALUES
HIDDEN = 6
DRAWS = 1000
PARAMETERS = {"K": (3, 6), "M": (6, 10)}
"""The least values, and those that are too great, of the constants that a function's source may name."""


@dataclass(frozen=True)
class Example:
    """A call and the right value."""

    arguments: tuple[Any, ...]
    value: Any

    def as_test(self, name: str) -> str:
        """The example as an assertion."""
        arguments = ", ".join(map(repr, self.arguments))
        return f"assert {name}({arguments}) == {self.value!r}"


def broken_function(rng: np.random.Generator) -> tuple[str, str, Mapping[str, Any]]:
    """A question with a function that has a bug, the right function, and the tests as metadata.

    The first test is public and shows the bug; the hidden ones show it too, or show that a new program does
    more than that test asks for.
    """
    function = FUNCTIONS[int(rng.integers(len(FUNCTIONS)))]
    old, new = function.bugs[int(rng.integers(len(function.bugs)))]
    constants = {name: str(rng.integers(*bounds)) for name, bounds in PARAMETERS.items()}
    right, wrong = (
        _with_constants(source, constants)
        for source in (function.source, function.source.replace(old, new, 1))
    )
    examples, telling = examples_of(function, right, wrong, rng)
    tests = tuple(example.as_test(function.name) for example in (telling, *examples))
    problem = Problem(tests=tests, entry_points=(function.name,), solution=right, public=1)
    asked = _with_constants(function.asked, constants)
    prompt = (
        f"This function has a bug. It should {asked}\n{fenced(wrong)}\nWrite it without the bug."
    )
    return prompt, right, {"problem": problem, "broken": wrong}


def examples_of(
    function: Function, right: str, wrong: str, rng: np.random.Generator
) -> tuple[list[Example], Example]:
    """Random examples, and one more that tells the two sources apart.

    Raises:
        ValueError: None of many does: the bug of this function is none.
    """
    good, bad = _callable(right, function.name), _callable(wrong, function.name)
    examples: list[Example] = []
    telling: Example | None = None
    for _ in range(DRAWS):
        if telling is not None and len(examples) == HIDDEN:
            break
        arguments = function.draw(rng)
        example = Example(arguments, good(*_copies(arguments)))
        if telling is None and outcome(bad, arguments) != (type(example.value), example.value):
            telling = example
        elif len(examples) < HIDDEN and example not in examples:
            examples.append(example)
    if telling is None:
        raise ValueError(f"{function.name}: no example shows this bug:\n{wrong}")
    return examples, telling


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[type, Any]:
    """The type and value of a result, or of the exception that came instead."""
    try:
        value = function(*_copies(arguments))
    except Exception as error:  # a bug may raise anything
        return type(error), str(error)
    return type(value), value


@cache
def _callable(source: str, name: str) -> Callable[..., Any]:
    """The function that our own source defines."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    function: Callable[..., Any] = scope[name]
    return function


def _copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with lists of their own."""
    return tuple([*item] if isinstance(item, list) else item for item in arguments)


def _with_constants(text: str, constants: Mapping[str, str]) -> str:
    for name, value in constants.items():
        text = text.replace(f"<{name}>", value)
    return text
