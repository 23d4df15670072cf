"""Calls as Python calls in a fenced block. Nothing is evaluated: the text is only parsed."""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_gym.errors import UsageError
from grpo_gym.tools.call import BadCall, Call
from grpo_gym.tools.function import AnyTool

_OPEN, _CLOSE = "```python\n", "\n```"
_LONGEST = 20_000
_RULE = "a call is written name(parameter=value), with literal values, one a line"


@dataclass(frozen=True)
class PythonCodec:
    """Calls such as `add(a=1, b=2)`, one a line, in a block fenced by three backticks and "python".

    Arguments are passed by name and are literals: strings, numbers, True, False, None, lists and
    dicts. A block that holds anything else is a bad call as a whole.
    """

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """The form of a block, and a signature with a description for each tool."""
        lines = "\n".join(f"{_signature(tool)}: {tool.description}" for tool in tools)
        return (
            f"To call tools, write a Python block of calls with literal arguments, one a line:\n"
            f"{_OPEN}NAME(PARAMETER=VALUE){_CLOSE}\nTools:\n{lines}"
        )

    def render(self, call: Call) -> str:
        """A block of one call."""
        if not all(name.isidentifier() for name in (call.name, *call.arguments)):
            raise UsageError(f"not a call that Python can write: {call.name!r}")
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        return f"{_OPEN}{call.name}({arguments}){_CLOSE}"

    def parse(self, text: str, limit: int = 16) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order. An unclosed block, cut off as it may be, is a bad one."""
        calls: list[Call | BadCall] = []
        at = text.find(_OPEN)
        while at >= 0 and len(calls) < limit:
            start = at + len(_OPEN)
            close = text.find(_CLOSE, start - 1)
            if close < 0:
                calls.append(BadCall("the block is not closed by ```"))
                break
            calls += _read(text[start:close])
            at = text.find(_OPEN, close + len(_CLOSE))
        return tuple(calls[:limit])


def _read(code: str) -> list[Call | BadCall]:
    if len(code) > _LONGEST:
        return [BadCall(f"a block has at most {_LONGEST} characters")]
    try:
        statements = ast.parse(code).body
        return [_as_call(statement) for statement in statements] or [BadCall(_RULE)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return [BadCall(f"{_RULE} ({reason or type(error).__name__})")]


def _as_call(statement: ast.stmt) -> Call:
    """A statement as a call. Raises `ValueError` when it is none, with the reason."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"line {statement.lineno} is no call")
    if call.args:
        raise ValueError("arguments are passed by name")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("arguments are passed by name, each once")
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(call.func.id, arguments)


def _literal(node: ast.expr) -> Any:
    """The JSON value that a literal stands for."""
    match node:
        case ast.Constant(value=None | bool() | str() | int() as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            math.isfinite(value) and not isinstance(value, bool)
        ):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_literal(key) if key is not None else None for key in keys]
            if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
                return dict(zip(names, map(_literal, values), strict=True))
    raise ValueError("values are literals, as in JSON")


def _signature(tool: AnyTool) -> str:
    parameters = tool.schema["function"]["parameters"]
    required = parameters.get("required", [])
    parts = [
        f"{name}: {rule.get('type', 'any')}" + ("" if name in required else f" = {_default(rule)}")
        for name, rule in parameters["properties"].items()
    ]
    return f"{tool.name}({', '.join(parts)})"


def _default(rule: dict[str, Any]) -> str:
    return repr(rule["default"]) if "default" in rule else "..."
