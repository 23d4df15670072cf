"""Environments of skyrl-gym (PyPI `skyrl-gym`)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_envs.adapters.foreign import Answer, ForeignEnv
from grpo_envs.adapters.requirements import load
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task, jsonl_tasks
from grpo_gym.types import Message, Observation

Extras = Callable[[Task], Mapping[str, Any]]


def ground_truth(task: Task) -> dict[str, Any]:
    """The reference answer, where skyrl-gym's environments look for it, and the metadata."""
    truth = {"ground_truth": task.answer}
    return {"reward_spec": truth, "reward_model": truth, "extra_info": {}, **task.metadata}


class SkyRLEnv(ForeignEnv):
    """An environment that skyrl-gym registers, such as "gsm8k", over tasks of yours.

    skyrl-gym has no seeds and no tasks: they come from `tasks` or `path`. SkyRL counts any reward
    above 0 as a pass, so that a bonus for the format is one; here it takes `win_reward`.

    Args:
        env_id: as skyrl-gym knows it.
        path: a `.jsonl` file with the columns "prompt" and "answer", instead of `tasks`.
        env_kwargs: arguments of the environment besides `extras`, such as `env_config`.
        extras: from a task, what the environment gets as `extras`.
        **kwargs: as in `ForeignEnv`.

    Raises:
        UsageError: skyrl-gym is not installed, has no such environment, or there are no tasks.
    """

    def __init__(
        self,
        *,
        env_id: str,
        path: str | Path | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        extras: Extras = ground_truth,
        **kwargs: Any,
    ) -> None:
        self.env_id = env_id
        self.env_kwargs = dict(env_kwargs or {})
        self.extras = extras
        if kwargs.get("tasks") is None:
            if path is None:
                raise UsageError("skyrl-gym has no tasks of its own: pass tasks= or path=")
            kwargs["tasks"] = jsonl_tasks(path)
        super().__init__(**kwargs)
        with self._random.lent():
            self._library = load("skyrl_gym", "skyrl-gym")
        if env_id not in self._library.envs.registration.registry:
            raise UsageError(f"skyrl-gym has no environment {env_id!r}")

    def start(self, task: Task, seed: int) -> Observation:
        """Make the environment for the task and hand it the prompt."""
        arguments = {"env_config": {}} | self.env_kwargs | {"extras": dict(self.extras(task))}
        self.inner = self._library.make(self.env_id, **arguments)
        messages, _ = self.inner.init([{"role": "user", "content": task.prompt}])
        return _messages(messages)

    def play(self, action: str) -> Answer:
        """One step. An environment of several turns that ends at its limit without a win is cut."""
        said = self.inner.step(action)
        reward, done = float(said["reward"]), bool(said["done"])
        limit = self.inner.max_turns
        cut = done and reward < self.win_reward and limit > 1 and self.inner.turns >= limit
        return Answer(_messages(said["observations"]), reward, done, cut)

    def _name(self) -> str:
        return f"skyrl-gym's {self.env_id}"


def _messages(messages: Any) -> tuple[Message, ...]:
    return tuple(Message(role=str(m["role"]), content=str(m["content"])) for m in messages)
