"""Options that are chosen by name."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from grpo_gym.errors import UsageError

Value = TypeVar("Value")


def choose(option: str, name: str, choices: Mapping[str, Value]) -> Value:
    """The value called `name`.

    Raises:
        UsageError: There is none of that name.
    """
    one_of(option, name, choices)
    return choices[name]


def one_of(option: str, name: object, names: Collection[object]) -> None:
    """Refuse a name that is not among `names`.

    Raises:
        UsageError: It is not.
    """
    if name not in names:
        raise UsageError(
            f"{option}={name!r} is not an option; use one of {', '.join(map(repr, names))}"
        )


def at_least(option: str, value: float, smallest: float) -> None:
    """Refuse a number below `smallest`, or one that is no number.

    Raises:
        UsageError: It is.
    """
    if not value >= smallest:
        raise UsageError(f"{option}={value} is out of range; give at least {smallest}")
