"""Whether a function takes what it is to be given: judged by its signature, before it is called."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from grpo_gym.errors import UsageError


def check_arguments(
    what: str, function: Callable[..., Any], kwargs: Mapping[str, Any], extra: Iterable[str] = ()
) -> None:
    """Refuse arguments that a function or class does not take, or that its annotations rule out.

    Args:
        what: the function, for the message.
        function: it is not called.
        kwargs: names and values.
        extra: further names that are taken.

    Raises:
        UsageError: A name that is not taken (those that are taken are named), or a value of another kind.
    """
    accepted = _accepted(function)
    if accepted is None:
        return
    unknown = sorted(set(kwargs) - {*accepted, *extra})
    if unknown:
        takes = ", ".join(accepted) or "none"
        raise UsageError(f"{what} has no argument {', '.join(unknown)}; it takes {takes}")
    for name in kwargs.keys() & accepted.keys():
        _check_value(f"{what}: {name}", accepted[name], kwargs[name])


def _accepted(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The arguments that a function or class takes; None when it takes any.

    A constructor that hands its `**kwargs` on takes what the next constructor takes.
    """
    chain: list[Callable[..., Any]] = [function]
    if isinstance(function, type):
        chain = [vars(cls)["__init__"] for cls in function.__mro__ if "__init__" in vars(cls)]
    found: dict[str, inspect.Parameter] = {}
    for link in chain:
        try:
            parameters = inspect.signature(link).parameters
        except ValueError:  # written in C, without a signature
            return None
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items():
            if parameter.kind in by_name and name != "self":
                found.setdefault(name, parameter)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            return found
    return None


@dataclass(frozen=True)
class _Kind:
    """A kind of values: what it is called, and which belong to it."""

    name: str
    holds: Callable[[Any], bool]


def _is_path(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and "\0" not in value)


# A bool is an int to Python, and a text a sequence; to a person they are not.
_KINDS: Mapping[Any, _Kind] = {
    str: _Kind("text", lambda value: isinstance(value, str)),
    Path: _Kind("a path", _is_path),
    bool: _Kind("true or false", lambda value: isinstance(value, bool)),
    int: _Kind(
        "a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)
    ),
    float: _Kind("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    NoneType: _Kind("none", lambda value: value is None),
    Sequence: _Kind(
        "a list", lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes)
    ),
    Mapping: _Kind("a table", lambda value: isinstance(value, Mapping)),
    Callable: _Kind("a function", callable),
}


def _kind(annotation: Any) -> _Kind | None:
    """The kind that an annotation names; None where nothing is known of it."""
    kind = _KINDS.get(get_origin(annotation) or annotation)
    items = _KINDS.get(get_args(annotation)[0]) if get_origin(annotation) is Sequence else None
    if kind is None or items is None:
        return kind
    whole, item = kind, items
    return _Kind(
        f"a list of {item.name}", lambda value: whole.holds(value) and all(map(item.holds, value))
    )


def _check_value(what: str, parameter: inspect.Parameter, value: object) -> None:
    """Raise `UsageError` if a simple annotation, as `int | None`, says that this is no such value."""
    annotation = parameter.annotation
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if Path in parts:
        parts = tuple(part for part in parts if part is not str)
    kinds = [kind for kind in map(_kind, parts) if kind is not None]
    if len(kinds) < len(parts) or (value is None and parameter.default is None):
        return
    if not any(kind.holds(value) for kind in kinds):
        raise UsageError(
            f"{what} must be {' or '.join(kind.name for kind in kinds)}, not {value!r:.100}"
        )
