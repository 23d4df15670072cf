"""`ToolEnv`: an episode in which the model may call tools before it answers."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from grpo_gym.env import Reply, TextEnv, check_count
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.tools.codec import BadCall, Call, Codec, HermesCodec
from grpo_gym.tools.function import Tool
from grpo_gym.types import Message, Observation


class ToolEnv(TextEnv):
    """A text environment with tools: methods marked `@tool`, and those passed as `tools=`.

    An action with calls brings one message of role "tool" for each, in order; a call that is
    malformed, unclosed, unknown or wrongly typed is not run, and its message says why. An action
    without a call is the final answer, which `grade` scores. What a tool raises is told to the
    model.

    Args:
        tools: tools besides the methods.
        codec: the text format of calls.
        max_calls: most calls that are run in one episode; later ones get an error message.
        max_output: most characters of one tool message.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: Two tools have the same name, or there is none.
    """

    codec: Codec = HermesCodec()

    def __init__(
        self,
        *,
        tools: Sequence[Tool] = (),
        codec: Codec | None = None,
        max_calls: int = 16,
        max_output: int = 4096,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if codec is not None:
            self.codec = codec
        self.max_calls = max_calls
        self.max_output = max_output
        every = [*_own_tools(self), *tools]
        self.tools = {tool.name: tool for tool in every}
        if not every or len(self.tools) < len(every):
            names = ", ".join(tool.name for tool in every) or "none"
            raise UsageError(f"{type(self).__name__} needs tools of different names, got {names}")
        check_count("max_calls", max_calls)
        check_count("max_output", max_output)
        self.calls = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """Begin an episode, with no calls made; see `TextEnv.reset`."""
        self.calls = 0
        return super().reset(seed=seed, options=options)

    @abstractmethod
    def grade(self, task: Task, action: str) -> Score:
        """Hook: score the final answer, an action without a tool call. Must not raise."""

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
            text, _ = self.tools[call.name].run(call.arguments)
            if len(text) > self.max_output:
                text = (
                    f"{text[: self.max_output]}... [{len(text) - self.max_output} more characters]"
                )
            return Message(role="tool", name=call.name, content=text)
        return Message(role="tool", content=text)


def _own_tools(env: ToolEnv) -> list[Tool]:
    """The methods marked `@tool`, base classes first, in the order of their definition."""
    names: dict[str, None] = {}
    for cls in reversed(type(env).__mro__):
        names |= {name: None for name, value in vars(cls).items() if isinstance(value, Tool)}
    return [getattr(env, name) for name in names]
