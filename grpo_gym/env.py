"""`TextEnv`: a Gymnasium environment of text, whose author writes two hooks."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.spaces import Messages, Text, is_message
from grpo_gym.tasks import Task, TaskSource, check_source
from grpo_gym.types import Message, Observation


@dataclass(frozen=True)
class Reply:
    """An observation that carries a reward; the episode goes on."""

    observation: Observation
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)

    @classmethod
    def scored(cls, observation: Observation, score: Score) -> "Reply":
        """An observation with the verdict on this turn, as a rubric for each turn gives it."""
        return cls(observation, score.value, dict(score.components))


class TextEnv(gymnasium.Env[Observation, str], ABC):
    """A task in text: the observations are chat messages, the actions are the assistant's text.

    A subclass says where its tasks come from (`default_tasks`, or `tasks=`) and writes two hooks:
    `observe`, what the model sees first, and `respond`, what an action brings. `solution` gives the
    winning actions, so that the contract in `grpo_gym.testing` can prove that they win.

    State of one episode may live in attributes of `self`, when `observe` sets them anew: it is
    called once at each reset. `self.task` is the task in play, `self.turn` counts the actions taken
    and `self.conversation` holds every message so far. Draw random numbers from `self.np_random`
    only.

    Args:
        tasks: where tasks come from; by default `default_tasks()`.
        split: the split that `reset` draws from.
        max_turns: most actions in one episode; the limit truncates. By default the class attribute.
        system_prompt: first message of each episode. By default the class attribute; "" for none.
        render_mode: "ansi" or None; `render` returns the conversation as text either way.

    Raises:
        UsageError: There are no tasks, an unknown split or `render_mode`, or `max_turns` below 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    max_turns: int = 8
    system_prompt: str = ""
    max_reward: ClassVar[float] = 1.0
    """The sum of rewards that the solution earns."""

    def __init__(
        self,
        *,
        tasks: TaskSource | None = None,
        split: str = "train",
        max_turns: int | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Messages()
        self.action_space = Text()
        self.tasks = check_source(self.default_tasks() if tasks is None else tasks)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UsageError(f'render_mode is "ansi" or None, not {render_mode!r}')
        self.tasks.task_ids(split)  # raises on an unknown split
        self.split = split
        if max_turns is not None:
            self.max_turns = max_turns
        if system_prompt is not None:
            self.system_prompt = system_prompt
        check_count("max_turns", self.max_turns)
        self.render_mode = render_mode
        self.task: Task | None = None
        self.turn = 0
        self.conversation: list[Message] = []
        self._over = True

    def default_tasks(self) -> TaskSource:
        """Hook: the tasks, when none are given."""
        raise UsageError(f"{type(self).__name__} has no tasks of its own: pass tasks=")

    def observe(self, task: Task) -> Observation:
        """Hook: the first observation; by default the system prompt and the task's prompt."""
        user: Message = {"role": "user", "content": task.prompt}
        if not self.system_prompt:
            return (user,)
        return ({"role": "system", "content": self.system_prompt}, user)

    @abstractmethod
    def respond(self, task: Task, action: str) -> Score | Observation | Reply:
        """Hook: what an action brings. A `Score` ends the episode; anything else goes on.

        `action` may be any text at all: this must not raise.
        """

    def solution(self, task: Task) -> tuple[str, ...]:
        """Hook: the actions that solve the task, one per turn; by default the reference answer.

        A task that no play is sure to win has none: (). The contract then leaves this clause out.
        """
        return (task.answer,)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Hook: plausible actions in the right format that fail, one per turn; () for none."""
        return ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds `self.np_random`, which alone decides which task is drawn.
            options: "task_id" plays that task; "split" draws from that split instead of the
                default.

        Returns:
            The first messages, and an info with "task_id".

        Raises:
            UsageError: An unknown option, task or split.
        """
        if seed is not None:
            super().reset(seed=seed)
        if options:
            self.task = self._choose(options)
        else:
            self.task = self.tasks.draw(self.np_random, self.split)
        self.turn = 0
        self.conversation = []
        self._over = False
        return self._say(self.observe(self.task)), {"task_id": self.task.task_id}

    def step(self, action: str) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """Take one action, any text.

        Returns:
            The new messages, the reward (nan where it cannot be scored), terminated, truncated, and
            an info with "task_id" and "reward_components"; "success" when the episode ends;
            "truncation", the name of the limit, when it was cut.

        Raises:
            ResetNeeded: The episode has ended, or has not begun.
            UsageError: The action is not a string, or `respond` returned something it must not.
        """
        if self.task is None or self._over:
            raise ResetNeeded("there is no episode to step: call reset() first")
        if not isinstance(action, str):
            raise UsageError(f"an action is a string, got {type(action).__name__}")
        answer = self.respond(self.task, action)
        self.turn += 1
        self.conversation.append({"role": "assistant", "content": action})
        info: dict[str, Any] = {"task_id": self.task.task_id}
        if isinstance(answer, Score):
            self._over = True
            info["reward_components"] = dict(answer.components)
            info["success"] = answer.success
            return (), answer.value, True, False, info
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        observation = self._say(reply.observation)
        info["reward_components"] = {name: float(part) for name, part in reply.components.items()}
        if self.turn >= self.max_turns:
            self._over = True
            info |= {"success": False, "truncation": "max_turns"}
        return observation, float(reply.reward), False, self._over, info

    def render(self) -> str:
        """The conversation so far, as text."""
        return "\n".join(f"[{m['role']}] {m['content']}" for m in self.conversation)

    def _choose(self, options: dict[str, Any]) -> Task:
        if not isinstance(options, dict):
            raise UsageError(f"the options of reset are a dict, not {options!r:.100}")
        unknown = sorted(set(options) - {"task_id", "split"}, key=str)
        if unknown:
            raise UsageError(
                f"reset knows the options task_id and split, not {', '.join(map(str, unknown))}"
            )
        task_id, split = options.get("task_id"), options.get("split")
        if task_id is None:
            return self.tasks.draw(self.np_random, self.split if split is None else split)
        if not isinstance(task_id, str):
            raise UsageError(f"the option task_id is a string, got {task_id!r}")
        task = self.tasks.get(task_id)
        if split is not None and task.split != split:
            raise UsageError(f"task {task_id!r} is of split {task.split!r}, not {split!r}")
        return task

    def _say(self, observation: Observation) -> tuple[Message, ...]:
        """Record an observation; return copies that nobody else holds."""
        if isinstance(observation, str):
            observation = ({"role": "user", "content": observation},)
        elif not isinstance(observation, tuple):
            raise UsageError(
                f"{type(self).__name__}: an observation is a string or a tuple of messages, "
                f"got {type(observation).__name__}"
            )
        messages = tuple([_clean(message) for message in observation])
        self.conversation += [m.copy() if len(m) == 2 else copy.deepcopy(m) for m in messages]
        return messages


def check_count(name: str, value: object) -> None:
    """Raise `UsageError` unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")


def _clean(message: Message) -> Message:
    """A copy of a message in which no tokeniser chokes on a lone surrogate."""
    if type(message) is dict and len(message) == 2:  # most messages, and in half the time
        role, content = message.get("role"), message.get("content")
        if type(role) is str and type(content) is str and content.isascii():
            return {"role": role, "content": content}
    if not is_message(message):
        raise UsageError(f"not a message with role and content: {message!r:.200}")
    content = message["content"].encode("utf-8", "replace").decode("utf-8")
    return {**copy.deepcopy(message), "content": content}
