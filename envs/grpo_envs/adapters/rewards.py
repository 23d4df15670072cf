"""Our environments as data sets and reward functions for other trainers.

TRL calls `f(prompts, completions, **columns)`, verl `f(data_source, solution_str, ground_truth, ...)`,
verifiers a method of its `Task` with `task` and `trace`. All of them keep the tasks in a data set of their
own and score what is already written, so an environment of one turn fits; `trl.py` is for those of several.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.types import Message, as_messages

Make = Callable[[], gymnasium.Env[Any, Any]]
Said = str | Sequence[Mapping[str, Any]]


def rows(make: Make, seeds: Iterable[int], split: str | None = None) -> list[dict[str, Any]]:
    """The tasks that seeds draw, one row each, with the columns that the three trainers ask for.

    Every row has "prompt" (messages) and "task_id" for TRL; "data_source", "reward_model" and
    "extra_info" for verl; verifiers' `TaskData` takes the first two as `prompt` and `id`. A task that is
    drawn twice is there once.

    Args:
        make: builds the environment.
        seeds: each draws a task.
        split: the split to draw from; None for the environment's default.
    """
    env = make()
    options = {} if split is None else {"split": split}
    found: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        observation, info = env.reset(seed=seed, options=options)
        task_id = task_id_of(info)
        found[task_id] = {
            "prompt": [dict(message) for message in as_messages(observation)],
            "task_id": task_id,
            "data_source": _name(env),
            "reward_model": {"style": "rule", "ground_truth": task_id},
            "extra_info": {"task_id": task_id},
        }
    env.close()
    return list(found.values())


def trl_reward(make: Make) -> Callable[..., list[float | None]]:
    """A reward function for TRL's `GRPOTrainer`, over a data set of `rows`.

    A completion that cannot be scored (nan) gets None, which TRL leaves out.

    Args:
        make: builds the environment, one whose episodes take one turn.
    """
    judge = Judge(make)

    def reward(completions: Sequence[Said], task_id: Sequence[str], **_: Any) -> list[float | None]:
        values = [judge(*pair).value for pair in zip(task_id, completions, strict=True)]
        return [None if math.isnan(value) else value for value in values]

    reward.__name__ = judge.name
    return reward


def verl_reward(make: Make) -> Callable[..., dict[str, float]]:
    """A `compute_score` for verl, over a data set of `rows`: name it in a file of your own.

    It returns "score", "acc" (1 for a success) and "unscored". verl has no way to leave a rollout out, so
    what cannot be scored has the score 0 there, and "unscored" is 1. The components of a reward are left
    out, as verl wants the same keys for every rollout.

    Args:
        make: builds the environment, one whose episodes take one turn.
    """
    judge = Judge(make)

    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
    ) -> dict[str, float]:
        score = judge(ground_truth, solution_str)
        unscored = math.isnan(score.value)
        return {
            "score": 0.0 if unscored else score.value,
            "acc": float(score.success),
            "unscored": float(unscored),
        }

    return compute_score


def verifiers_reward(make: Make) -> Callable[..., Awaitable[float]]:
    """A reward method for a `Task` of verifiers (0.4 and later), over tasks with the ids of `rows`.

    ```python
    class Sums(vf.Task):
        solved = vf.reward(verifiers_reward(lambda: make("grpo_gym/Arithmetic-v0")))

    tasks = [Sums(vf.TaskData(id=row["task_id"], prompt=row["prompt"])) for row in rows(...)]
    ```

    Args:
        make: builds the environment, one whose episodes take one turn.
    """
    judge = Judge(make)

    async def reward(self: Any, task: Any, trace: Any) -> float:
        score = await asyncio.to_thread(judge, task.id, trace.last_reply)
        return score.value

    reward.__name__ = judge.name
    return reward


class Judge:
    """Scores completions by playing one turn of the task that they answer. Threads may call at once.

    Args:
        make: builds the environment; each thread gets one.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._local = threading.local()
        env = self._env()
        self.name = _name(env).replace("/", "_").replace("-", "_")

    def __call__(self, task_id: str, completion: Any) -> Score:
        """The verdict on a completion: a string, or messages whose last one counts.

        Raises:
            UsageError: An unknown task, or the episode goes on after one turn.
        """
        env = self._env()
        env.reset(options={"task_id": task_id})
        _, reward, terminated, truncated, info = env.step(text_of(completion))
        if not terminated and not truncated:
            raise UsageError(
                f"{self.name} takes several turns: a reward function sees one; use trl_environment"
            )
        return Score(float(reward), info.get("success", False), info.get("reward_components", {}))

    def _env(self) -> gymnasium.Env[Any, Any]:
        if not hasattr(self._local, "env"):
            self._local.env = self._make()
        env: gymnasium.Env[Any, Any] = self._local.env
        return env


def text_of(completion: Any) -> str:
    """The text of a completion, whichever way a trainer gives it."""
    if isinstance(completion, str):
        return completion
    if not completion:
        return ""
    last = completion[-1]
    content = last.get("content") if isinstance(last, Mapping) else getattr(last, "content", None)
    return content if isinstance(content, str) else ""


def joined(messages: Sequence[Message]) -> str:
    """Messages as one text."""
    return "\n\n".join(message["content"] for message in messages)


def task_id_of(info: Mapping[str, Any]) -> str:
    """The id of the task in play. Raises `UsageError` when the environment does not tell it."""
    task_id = info.get("task_id")
    if not isinstance(task_id, str):
        raise UsageError(
            "the environment's reset gives no info['task_id'], so no row can name a task"
        )
    return task_id


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
