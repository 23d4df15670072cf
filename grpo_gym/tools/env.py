"""`ToolEnv`: an episode in which the model may call tools before it answers."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_gym.env import Reply, TextEnv, check_count
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.tools.call import BadCall, Call, Codec
from grpo_gym.tools.codecs import make_codec
from grpo_gym.tools.deadline import Caller
from grpo_gym.tools.function import NOTHING, AnyTool, Tool
from grpo_gym.tools.hermes import HermesCodec
from grpo_gym.types import Message, Observation


class ToolEnv(TextEnv):
    """A text environment with tools: methods marked `@tool`, and those passed as `tools=`.

    An action with calls brings one message of role "tool" for each, in order; a call that is
    malformed, unclosed, unknown or wrongly typed is not run, and its message says why. An action
    without a call is the final answer, which `grade` scores. What a tool raises is told to the
    model.

    Tools run in a thread beside the one that steps the environment, always the same one until a
    call takes longer than `call_seconds`: it is then given up on, the model is told, and the
    episode goes on. Python cannot kill a thread, so what is given up on may still run in the
    background; untrusted code belongs into a process that can be killed. Without a limit tools run
    in the thread that steps the environment, as objects that are bound to it ask for.

    Args:
        tools: tools besides the methods.
        codec: the text format of calls, or its name: "hermes", "openai", "python", "code", "xml".
        max_calls: most calls that are run in one episode; later ones get an error message.
        max_output: most characters of one tool message.
        call_seconds: how long one call may take, `math.inf` for no limit; by default the class
            attribute.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: There is no tool, something is none, or two have the same name; an unknown codec; a
            limit that is not positive.
    """

    codec: Codec = HermesCodec()
    call_seconds: float = 30.0

    def __init__(
        self,
        *,
        tools: Sequence[AnyTool] = (),
        codec: str | Codec | None = None,
        max_calls: int = 16,
        max_output: int = 4096,
        call_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if codec is not None:
            self.codec = make_codec(codec)
        if call_seconds is not None:
            self.call_seconds = call_seconds
        if not self.call_seconds > 0:
            raise UsageError(f"call_seconds must be positive, got {self.call_seconds!r}")
        self.max_calls = max_calls
        self.max_output = max_output
        every = [*_own_tools(self), *_listed(tools)]
        self.tools: dict[str, AnyTool] = {tool.name: tool for tool in every}
        if not every or len(self.tools) < len(every):
            names = ", ".join(tool.name for tool in every) or "none"
            raise UsageError(f"{type(self).__name__} needs tools of different names, got {names}")
        check_count("max_calls", max_calls)
        check_count("max_output", max_output)
        self.calls = 0
        self._caller = Caller()

    def close(self) -> None:
        """Let the tools' thread end."""
        self._caller.close()
        super().close()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """Begin an episode, with no calls made; see `TextEnv.reset`.

        Raises:
            UsageError: As there, or `hidden` lacks what a tool must be passed.
        """
        self.calls = 0
        start = super().reset(seed=seed, options=options)
        for tool in self.tools.values():
            missing = [n for n, must in tool.hidden.items() if must and n not in self.hidden()]
            if missing:
                raise UsageError(
                    f"{type(self).__name__}.hidden() lacks {', '.join(missing)} of {tool.name}"
                )
        return start

    @abstractmethod
    def grade(self, task: Task, action: str) -> Score:
        """Hook: score the final answer, an action without a tool call. Must not raise."""

    def hidden(self) -> Mapping[str, Any]:
        """Hook: values of the tools' parameters that are marked `Hidden`, by name."""
        return NOTHING

    def observe(self, task: Task) -> Observation:
        """The system prompt with the tools, and the task's prompt."""
        prompt = "\n".join(filter(None, [self.system_prompt, self.describe_tools()]))
        return (
            Message(role="system", content=prompt),
            Message(role="user", content=task.prompt),
        )

    def describe_tools(self) -> str:
        """Hook: what the system message says of the tools; by default the codec's instructions."""
        return self.codec.instructions(tuple(self.tools.values()))

    def respond(self, task: Task, action: str) -> Score | Observation | Reply:
        """Run the calls of an action, or score it when it has none."""
        calls = self.codec.parse(action, self.max_calls + 1)
        if not calls:
            return self.grade(task, action)
        return tuple(self._run(call) for call in calls)

    def _run(self, call: Call | BadCall) -> Message:
        """The tool message that answers one call."""
        self.calls += 1
        if self.calls > self.max_calls:
            text = f"Error: no more than {self.max_calls} calls; give the final answer"
        elif isinstance(call, BadCall):
            text = f"Error: {call.reason}"
        elif call.name not in self.tools:
            text = f"Error: no tool of that name; there is {', '.join(self.tools)}"
        else:
            text, _ = self.tools[call.name].run(
                call.arguments,
                hidden=self.hidden(),
                seconds=None if math.isinf(self.call_seconds) else self.call_seconds,
                untyped=call.untyped,
                caller=self._caller,
            )
            return Message(role="tool", name=call.name, content=_cut(text, self.max_output))
        return Message(role="tool", content=_cut(text, self.max_output))


def _cut(text: str, limit: int) -> str:
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}... [{more} more characters]"


def _listed(tools: Sequence[AnyTool]) -> Sequence[AnyTool]:
    """The tools of `tools=`, which are to be a list."""
    listed = isinstance(tools, Sequence) and all(hasattr(tool, "schema") for tool in tools)
    if not listed:
        raise UsageError(f"tools is a list of functions marked @tool, not {tools!r:.100}")
    return tools


def _own_tools(env: ToolEnv) -> list[Tool]:
    """The methods marked `@tool`, base classes first, in the order of their definition."""
    names: dict[str, None] = {}
    for cls in reversed(type(env).__mro__):
        names |= {name: None for name, value in vars(cls).items() if isinstance(value, Tool)}
    return [getattr(env, name) for name in names]
