"""Environments in which any model has something to gain: letters are rewarded, one or several turns."""

from typing import Any

from grpo_gym import ProceduralTasks, Reply, Score, Task, TextEnv


def _share(text: str, letter: str) -> float:
    return text.count(letter) / max(len(text), 1)


class Letters(TextEnv):
    """Say as much of a letter as you can."""

    max_turns = 1

    def default_tasks(self) -> ProceduralTasks:
        return ProceduralTasks(lambda rng: ("Say it.", str(rng.choice(list("etaoin")))))

    def respond(self, task: Task, action: str) -> Score | Reply | str:
        value = _share(action, str(task.answer))
        return Score(value=value, success=value > 0.1)


class Talk(Letters):
    """The same over two turns."""

    max_turns = 2

    def respond(self, task: Task, action: str) -> Score | Reply | str:
        return super().respond(task, action) if self.turn else "And once more."


class Silent(Letters):
    """An environment that does not say what success is."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        del info["success"]
        return observation, reward, terminated, truncated, info
