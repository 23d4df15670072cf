"""Calls as XML tags with plain text inside, the form of Qwen3-Coder."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_gym.errors import UsageError
from grpo_gym.tools.call import BadCall, Call, schemas
from grpo_gym.tools.function import AnyTool

_OPEN, _CLOSE = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"[^\s<>=]{1,200}")
_FORM = f"{_OPEN}NAME>\n{_PARAMETER}PARAMETER>\nVALUE\n{_PARAMETER_END}\n{_CLOSE}"


@dataclass(frozen=True)
class XMLCodec:
    """`<function=NAME>`, then `<parameter=NAME>VALUE</parameter>` for each argument, `</function>`.

    A value is text as it stands, a line break next to either tag aside, and the tool's types say
    what it means: for a parameter that may be a string it is one, for others it is read as JSON.
    The `<tool_call>` tags that such models write around a call are ignored.
    """

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """The form of a call, and one JSON schema a line."""
        return f"To call a tool, write\n{_FORM}\nTools:\n{schemas(tools)}"

    def render(self, call: Call) -> str:
        """A call in its tags."""
        texts = {name: _as_text(value) for name, value in call.arguments.items()}
        names = all(_NAME.fullmatch(name) for name in (call.name, *texts))
        if not names or any(_PARAMETER_END in text for text in texts.values()):
            raise UsageError(f"not a call that tags can write: {call.name!r}")
        body = "".join(
            f"{_PARAMETER}{name}>\n{text}\n{_PARAMETER_END}\n" for name, text in texts.items()
        )
        return f"{_OPEN}{call.name}>\n{body}{_CLOSE}"

    def parse(self, text: str, limit: int = 16) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order. An unclosed one, cut off as it may be, is a bad one."""
        calls: list[Call | BadCall] = []
        at = text.find(_OPEN)
        while at >= 0 and len(calls) < limit:
            call, end = _read(text, at + len(_OPEN))
            calls.append(call)
            at = text.find(_OPEN, end)
        return tuple(calls)


def _read(text: str, start: int) -> tuple[Call | BadCall, int]:
    """One call whose name begins at `start`, and where to look for the next."""
    name, at = _read_name(text, start)
    arguments: dict[str, str] = {}
    while name is not None:
        while text[at : at + 1].isspace():
            at += 1
        if text.startswith(_CLOSE, at):
            return Call(name, arguments, untyped=True), at + len(_CLOSE)
        if not text.startswith(_PARAMETER, at):
            break
        key, at = _read_name(text, at + len(_PARAMETER))
        end = text.find(_PARAMETER_END, at)
        if key is None or end < 0 or key in arguments:
            break
        arguments[key] = text[at:end].removeprefix("\n").removesuffix("\n")
        at = end + len(_PARAMETER_END)
    if text.find(_CLOSE, at) < 0:
        return BadCall(f"the call is not closed by {_CLOSE}"), len(text)
    return BadCall(f"a call is written {_FORM}"), at


def _read_name(text: str, start: int) -> tuple[str | None, int]:
    """A name and the bracket after it; None where there is none."""
    name = _NAME.match(text, start)
    if name is None or not text.startswith(">", name.end()):
        return None, start
    return name[0], name.end() + 1


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
