"""Values as data: what crosses between a program and its judge is rebuilt from builtin types alone.

So an object with a tampered `__eq__` never reaches a comparison. A value that is no data stays where it
is, and a handle to it crosses instead.
"""

import datetime
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

DEEPEST = 150
EXACT = 1 << 53


class NotPlain(Exception):
    """The value is not data."""


def encode(value: Any, handle: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """The value in JSON's terms: None, a bool, number or text as itself, the rest as [tag, content].

    A subclass of a builtin counts as the builtin: a named tuple is a tuple, a Counter a dict.

    Args:
        value: what to encode.
        handle: gives the content of an "r" for a value that is no data.
        depth: how deep this value lies in the one that is sent.

    Raises:
        NotPlain: The value, or one in it, is no data and there is no `handle`, or it is too deep.
    """
    if depth > DEEPEST:
        raise NotPlain("too deep")

    def inner(part: Any) -> Any:
        return encode(part, handle, depth + 1)

    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        value = int(value)
        return value if -EXACT < value < EXACT else ["i", hex(value)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, complex):
        return ["c", [value.real, value.imag]]
    if isinstance(value, (bytes, bytearray)):
        return ["b" if isinstance(value, bytes) else "ba", value.hex()]
    for kind, tag in SEQUENCES.items():
        if isinstance(value, kind):
            return [tag, [inner(part) for part in value]]
    if isinstance(value, dict):
        return ["d", [[inner(key), inner(part)] for key, part in value.items()]]
    if isinstance(value, type) and value in TYPES.values():
        return ["ty", value.__name__]
    if isinstance(value, range):
        return ["ra", [inner(part) for part in (value.start, value.stop, value.step)]]
    for kind, tag in AS_TEXT.items():
        if type(value) is kind:
            return [tag, value.isoformat() if hasattr(value, "isoformat") else str(value)]
    if handle is None:
        raise NotPlain(type(value).__name__)
    return ["r", handle(value)]


def decode(data: Any, handle: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """The value that was encoded, of builtin types whatever the sender wrote.

    Raises:
        NotPlain: This is nothing that `encode` gives.
    """
    if depth > DEEPEST:
        raise NotPlain("too deep")

    def inner(part: Any) -> Any:
        return decode(part, handle, depth + 1)

    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], str):
        raise NotPlain("no value")
    tag, content = data
    try:
        if tag in BUILD:
            return BUILD[tag](inner(part) for part in content)
        if tag == "d":
            return {inner(key): inner(part) for key, part in content}
        if tag == "ra":
            return range(*(inner(part) for part in content))
        if tag == "i":
            return int(content, 16)
        if tag == "c":
            return complex(*content)
        if tag == "b":
            return bytes.fromhex(content)
        if tag == "ba":
            return bytearray.fromhex(content)
        if tag == "ty":
            return TYPES[content]
        if tag in READ:
            return READ[tag](content)
        if tag == "r" and handle is not None:
            return handle(content)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise NotPlain(f"no {tag}: {error}") from error
    raise NotPlain(f"no value of kind {tag[:10]!r}")


SEQUENCES: dict[Any, str] = {
    list: "l",
    tuple: "t",
    set: "s",
    frozenset: "z",
    deque: "q",
    type({}.keys()): "l",
    type({}.values()): "l",
    type({}.items()): "l",
}
BUILD: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset, "q": deque}
AS_TEXT: dict[Any, str] = {
    Decimal: "D",
    Fraction: "F",
    datetime.datetime: "dt",
    datetime.date: "da",
    datetime.time: "ti",
}
TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        list,
        tuple,
        dict,
        set,
        frozenset,
        type(None),
    )
}
READ: dict[str, Any] = {
    "D": Decimal,
    "F": Fraction,
    "dt": datetime.datetime.fromisoformat,
    "da": datetime.date.fromisoformat,
    "ti": datetime.time.fromisoformat,
}
