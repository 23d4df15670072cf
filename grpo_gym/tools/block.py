"""A block of text as the one argument of the one tool: code for an interpreter, a search query."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_gym.errors import UsageError
from grpo_gym.tools.call import BadCall, Call
from grpo_gym.tools.function import AnyTool


@dataclass(frozen=True)
class BlockCodec:
    """The text between two marks is one argument of one tool.

    As it is, a fenced Python block is run by the tool `python(code)`, as in tool-integrated
    reasoning. With `BlockCodec("search", "query", "<search>", "</search>")`, a tag is a search.

    Attributes:
        tool: name of the tool.
        argument: name of its parameter, of type str.
        opening: what begins a block.
        closing: what ends it.
    """

    tool: str = "python"
    argument: str = "code"
    opening: str = "```python\n"
    closing: str = "\n```"

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """The form of a block, and what the tool does with it.

        Raises:
            UsageError: There is no tool of that name.
        """
        description = {tool.name: tool.description for tool in tools}.get(self.tool)
        if description is None:
            raise UsageError(f"this codec calls the tool {self.tool!r}, which is not there")
        block = f"{self.opening}{self.argument.upper()}{self.closing}"
        return f"To call the tool {self.tool}, write\n{block}\n{self.tool}: {description}"

    def render(self, call: Call) -> str:
        """A call as a block."""
        text = call.arguments.get(self.argument)
        whole = call.name == self.tool and set(call.arguments) == {self.argument}
        if not whole or not isinstance(text, str) or self.closing in text + self.closing[:-1]:
            raise UsageError(f"not a call that a block can write: {call.name!r}")
        return f"{self.opening}{text}{self.closing}"

    def parse(self, text: str, limit: int = 16) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order. An unclosed block, cut off as it may be, is a bad one."""
        calls: list[Call | BadCall] = []
        at = text.find(self.opening)
        while at >= 0 and len(calls) < limit:
            start = at + len(self.opening)
            end = text.find(self.closing, start)
            if end < 0:
                mark = self.closing.strip() or "its end"
                calls.append(BadCall(f"the block is not closed by {mark}"))
                break
            calls.append(Call(self.tool, {self.argument: text[start:end]}))
            at = text.find(self.opening, end + len(self.closing))
        return tuple(calls)
