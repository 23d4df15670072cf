"""Games of other libraries as text environments, with what is wrong with them mended at the border."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_envs.adapters.containment import PrivateRandom
from grpo_gym.env import Reply, TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.types import Message, Observation


@dataclass(frozen=True)
class Answer:
    """What a game says to an action.

    Attributes:
        observation: what the player sees.
        reward: of this action.
        ended: the game is over.
        cut: it is over because a limit was hit.
        components: other numbers worth logging.
    """

    observation: Observation
    reward: float
    ended: bool = False
    cut: bool = False
    components: dict[str, float] = field(default_factory=dict)


class ForeignEnv(TextEnv):
    """A game of another library.

    The game is built anew for each episode and draws from generators of its own, so that episodes do
    not disturb each other and a task is a pure function of its seed. An episode ends or is cut, never
    both. A game that raises on an action has lost: reward 0 and the component `game_failed`.

    Args:
        win_reward: a game that ends, other than by a limit, with at least this reward in its last step
            is a success.
        **kwargs: as in `TextEnv`; 200 turns by default, besides the game's own limit.
    """

    max_turns = 200

    def __init__(self, *, win_reward: float = 1.0, **kwargs: Any) -> None:
        self.win_reward = win_reward
        self._random = PrivateRandom()
        self._cut = False
        super().__init__(**kwargs)

    @abstractmethod
    def start(self, task: Task, seed: int) -> Observation:
        """Hook: build the game and begin; what the player sees first."""

    @abstractmethod
    def play(self, action: str) -> Answer:
        """Hook: one action, any text. It may raise."""

    def default_tasks(self) -> TaskSource:
        """Endless seeds of the game."""
        return ProceduralTasks(lambda rng: ("", "", {"seed": int(rng.integers(2**31))}))

    def observe(self, task: Task) -> Observation:
        """What the game says first, after the system prompt if there is one."""
        self._cut = False
        seed = int(task.metadata.get("seed", 0))
        self._random.seed(seed)
        try:
            with self._random.lent():
                seen = self.start(task, seed)
        except UsageError:
            raise
        except Exception as error:  # somebody's game may raise anything
            raise UsageError(f"{self._name()} cannot begin: {_told(error)}") from error
        if not self.system_prompt:
            return seen
        rest = (Message(role="user", content=seen),) if isinstance(seen, str) else seen
        return (Message(role="system", content=self.system_prompt), *rest)

    def respond(self, task: Task, action: str) -> Score | Reply:
        """Pass the action on; resolve how the episode ends."""
        try:
            with self._random.lent():
                answer = self.play(action)
        except Exception:  # any text may make a game of somebody else's raise
            return Score(0.0, False, {"game_failed": 1.0})
        reward = float(np.nan_to_num(answer.reward, nan=0.0, posinf=0.0, neginf=0.0))
        if answer.ended and not answer.cut:
            return Score(reward, reward >= self.win_reward, answer.components)
        self._cut = answer.cut
        return Reply(answer.observation, reward, answer.components)

    def step(self, action: str) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """As in `TextEnv`; the episode is also cut when the game cuts it."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self._cut and not truncated:
            self._over = truncated = True
            info |= {"success": False, "truncation": "game"}
        return observation, reward, terminated, truncated, info

    def solution(self, task: Task) -> tuple[str, ...]:
        """None is known."""
        return ()

    def _name(self) -> str:
        return type(self).__name__


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
