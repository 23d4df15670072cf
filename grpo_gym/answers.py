"""What environments answer, checked and copied: they are somebody's code and may return anything."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_gym.spaces import is_message
from grpo_gym.types import Message, as_messages


class BadAnswer(Exception):
    """An environment returned what cannot be used; the message says what."""


@dataclass(frozen=True)
class Start:
    """What `reset` brought: the first messages, and the task's id if the environment names it.

    Attributes:
        tools: JSON schemas of the tools that are there now, where `info["tool_schemas"]` says.
    """

    messages: tuple[Message, ...]
    task_id: str | None
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Answer:
    """What `step` brought.

    Attributes:
        messages: the new ones.
        reward: finite, or nan where it cannot be scored.
        components: named parts of the reward.
        terminated: the task ended; an environment that says both is taken to mean this.
        truncation: the name of the limit that the environment says was hit.
        success: whether the task was solved, if the episode has ended and the environment says so.
        tools: as in `Start`.
    """

    messages: tuple[Message, ...]
    reward: float
    components: Mapping[str, float]
    terminated: bool
    truncation: str | None
    success: bool | None
    tools: tuple[dict[str, Any], ...] = ()


def read_reset(result: Any) -> Start:
    """Check what `reset` returned.

    Raises:
        BadAnswer: It is not (observation, info), of text.
    """
    observation, info = _parts("reset", result, ("observation", "info"))
    task_id = info.get("task_id")
    return Start(
        _messages("reset", observation), None if task_id is None else str(task_id), _tools(info)
    )


def read_step(result: Any) -> Answer:
    """Check what `step` returned.

    Raises:
        BadAnswer: It is not (observation, reward, terminated, truncated, info), of text.
    """
    names = ("observation", "reward", "terminated", "truncated", "info")
    observation, reward, terminated, truncated, info = _parts("step", result, names)
    ended, cut = _flag("terminated", terminated), _flag("truncated", truncated)
    success = info.get("success") if ended or cut else None
    components = info.get("reward_components") or {}
    if not isinstance(components, Mapping):
        raise BadAnswer(f"step gave the reward_components {_shown(components)}, not a dict")
    return Answer(
        messages=_messages("step", observation),
        reward=_number("reward", reward),
        components={str(name): _number(str(name), part) for name, part in components.items()},
        terminated=ended,
        truncation=str(info.get("truncation") or "environment") if cut and not ended else None,
        success=None if success is None else _flag("success", success),
        tools=_tools(info),
    )


def difference(first: Start, other: Start) -> str:
    """What two starts have unequal, as in "observations A and B"; shown from where they part."""
    if first.task_id != other.task_id:
        what, one, two = "task ids", repr(first.task_id), repr(other.task_id)
    elif first.messages != other.messages:
        what = "observations"
        one, two = (json.dumps(s.messages, ensure_ascii=False) for s in (first, other))
    else:
        what = "tools"
        one, two = (json.dumps(s.tools, ensure_ascii=False) for s in (first, other))
    alike = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    begin = max(0, alike - 40)
    return f"{what} {_excerpt(one, begin)} and {_excerpt(two, begin)}"


def _excerpt(text: str, begin: int) -> str:
    end = begin + 100
    return ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")


def _parts(call: str, result: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise BadAnswer(f"{call} returned {_shown(result)}, not ({', '.join(names)})")
    if not isinstance(result[-1], Mapping):
        raise BadAnswer(f"{call} gave the info {_shown(result[-1])}, not a dict")
    return tuple(result)


def _messages(call: str, observation: Any) -> tuple[Message, ...]:
    if isinstance(observation, str):
        return as_messages(str(_copied(observation)))
    if isinstance(observation, tuple | list) and all(map(is_message, observation)):
        return tuple(_copied(message) for message in observation)
    raise BadAnswer(
        f"{call} gave the observation {_shown(observation)}, neither a string nor a tuple of messages "
        "with role and content"
    )


def _tools(info: Mapping[Any, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(_copied(schema) for schema in info.get("tool_schemas", ()))


def _copied(value: Any) -> Any:
    """A deep copy of JSON data, in which no tokeniser chokes on a lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {str(_copied(key)): _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise BadAnswer(f"a message holds {_shown(value)}, which is no JSON value")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1):
        return bool(value)
    raise BadAnswer(f"step gave {name} {_shown(value)}, not True or False")


def _number(name: str, value: Any) -> float:
    try:
        number = float("inf") if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("inf")
    if math.isinf(number):
        raise BadAnswer(f"step gave {name} {_shown(value)}, not a finite number or nan")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
