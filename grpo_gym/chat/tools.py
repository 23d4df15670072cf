"""Native tool calls, and environments that read them.

An action is text. Calls that came in the API's own form are its last line, in the form of
`grpo_gym.tools.OpenAICodec`; an environment of tools reads that line besides the text format that it
teaches in its prompt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from grpo_gym.chat.answer import NativeCall
from grpo_gym.tools import BadCall, Call, Codec, OpenAICodec, ToolEnv
from grpo_gym.tools.function import AnyTool

_START = '{"tool_calls": ['


def write_action(content: str, calls: Sequence[NativeCall]) -> str:
    """The action of a turn: its text, then a line with the calls that came with it."""
    if not calls:
        return content
    body = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    line = json.dumps({"tool_calls": body}, ensure_ascii=False)
    return f"{content}\n{line}" if content else line


@dataclass(frozen=True)
class NativeCodec:
    """Calls in the line that `write_action` writes; in actions without it, those of another format."""

    text: Codec

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """Those of the text format: what the model is told does not depend on the endpoint."""
        return self.text.instructions(tools)

    def render(self, call: Call) -> str:
        """A call in the text format."""
        return self.text.render(call)

    def parse(self, text: str, limit: int) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order."""
        line = text.rpartition("\n")[2]
        if line.startswith(_START):
            return OpenAICodec().parse(line, limit)
        return self.text.parse(text, limit)


class NativeTools(gymnasium.Wrapper[Any, str, Any, str]):
    """Has an environment of tools read native calls, and tell in its infos which tools there are."""

    def __init__(self, env: gymnasium.Env[Any, str], tool_env: ToolEnv) -> None:
        super().__init__(env)
        self._tool_env = tool_env
        tool_env.codec = NativeCodec(tool_env.codec)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**kwargs)
        return observation, self._told(info)

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._told(info)

    def _told(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {**info, "tool_schemas": [tool.schema for tool in self._tool_env.tools.values()]}


def with_native_tools(env: gymnasium.Env[Any, str]) -> gymnasium.Env[Any, str]:
    """The environment, wrapped if it has tools."""
    inner = env.unwrapped
    return NativeTools(env, inner) if isinstance(inner, ToolEnv) else env
