"""Any Gymnasium environment with discrete actions as a conversation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Discrete

from grpo_envs.games.gym_games import Game, wording
from grpo_envs.games.inner import build, resolve
from grpo_envs.games.moves import BadMove, read_move
from grpo_envs.games.planning import Step, shortest_path
from grpo_gym.env import Reply, TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.types import Message, Observation


class GymToTextEnv(TextEnv):
    r"""Each action names one move of a Gymnasium environment; the answer says what is seen then.

    FrozenLake, Taxi, Blackjack and MiniGrid are told in words; of others the observation is given as
    JSON and the actions as numbers, unless `describe` and `actions` say better. A move is given by its
    name or number, alone or in one `\boxed{}`. Anything else takes a turn and moves nothing.

    The task is the inner environment's seed. FrozenLake gets a new map with each seed, of `size` in
    `env_kwargs` (by default 4), and is not slippery unless `env_kwargs` says so.

    Args:
        env_id: id of the environment; without a version, the newest.
        env_kwargs: arguments of the environment.
        rules: what the player reads first.
        actions: names of the actions, in the order of their numbers.
        describe: from the inner environment and its observation, what the player sees.
        win_reward: the episode is a success when its last step ends it with at least this reward.
        rewards: "success" pays 1 for a success and 0 otherwise; "env" pays what the inner environment
            pays. Its reward is the component `env_reward` in any case.
        **kwargs: as in `TextEnv`; 30 turns by default. They are the only limit: the time limit that
            the inner environment is registered with does not apply.

    Raises:
        UsageError: An environment that there is not, that cannot be made, or whose actions are not
            discrete; the wrong number of names.
    """

    max_turns = 30
    system_prompt = "Answer each time with one move, in \\boxed{}."

    def __init__(
        self,
        *,
        env_id: str = "FrozenLake",
        env_kwargs: Mapping[str, Any] | None = None,
        rules: str | None = None,
        actions: Sequence[str] | None = None,
        describe: Callable[[Game, Any], str] | None = None,
        win_reward: float | None = None,
        rewards: Literal["success", "env"] = "success",
        **kwargs: Any,
    ) -> None:
        if rewards not in ("success", "env"):
            raise UsageError(f"rewards is 'success' or 'env', not {rewards!r}")
        if not isinstance(env_kwargs or {}, Mapping):
            raise UsageError(f"env_kwargs is a map of arguments, not {env_kwargs!r}")
        if actions is not None and not all(isinstance(name, str) for name in actions):
            raise UsageError(f"actions is a list of names, not {actions!r}")
        if win_reward is not None and not -math.inf < win_reward < math.inf:
            raise UsageError(f"win_reward must be finite, got {win_reward!r}")
        self.env_id = resolve(env_id)
        self.env_kwargs = dict(env_kwargs or {})
        told = wording(self.env_id)
        self.wording = replace(
            told,
            rules=told.rules if rules is None else lambda options: rules,
            describe=describe or told.describe,
            win_reward=told.win_reward if win_reward is None else win_reward,
        )
        self.rewards = rewards
        self._cut = False
        self._options = self._options_of(seed=0)
        self.inner = build(self.env_id, self._options)
        space = self.inner.action_space
        if not isinstance(space, Discrete):
            raise UsageError(f"{self.env_id} has the actions {space}, which are not discrete")
        self._first = int(space.start)
        numbers = range(self._first, self._first + int(space.n))
        self.actions = tuple(actions or told.actions or map(str, numbers))
        if len({name.casefold() for name in self.actions}) != len(numbers):
            raise UsageError(
                f"{self.env_id} has {len(numbers)} actions, so as many different names are needed, "
                f"got {', '.join(self.actions)}"
            )
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless seeds of the inner environment."""
        return ProceduralTasks(self._problem)

    def observe(self, task: Task) -> Observation:
        """The rules, the moves, and what is seen first."""
        self._cut = False
        seed = self._seed(task)
        options = self._options_of(seed)
        if options != self._options:
            self.inner.close()
            self.inner, self._options = build(self.env_id, options), options
        observation, _ = self.inner.reset(seed=seed)
        if self.rewards == "env":
            plan = self._plan_from(self.inner)
            best = sum(step.reward for step in plan) if plan else self.wording.win_reward
            self.max_reward = best  # type: ignore[misc]
        seen = self.wording.describe(self.inner, observation)
        user = Message(role="user", content=f"{task.prompt}\n\n{seen}")
        if not self.system_prompt:
            return (user,)
        return (Message(role="system", content=self.system_prompt), user)

    def respond(self, task: Task, action: str) -> Score | Reply | str:
        """Make the move, and say what is seen then."""
        try:
            number = self._read(action)
        except BadMove as reason:
            return str(reason)
        observation, paid, terminated, truncated, _ = self.inner.step(number)
        reward, parts = float(paid), {"env_reward": float(paid)}
        if terminated:
            won = reward >= self.wording.win_reward
            return Score(reward if self.rewards == "env" else float(won), won, parts)
        self._cut = bool(truncated)
        seen = self.wording.describe(self.inner, observation)
        return Reply(seen, reward if self.rewards == "env" else 0.0, parts)

    def step(self, action: str) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """As in `TextEnv`; the episode is also cut when the inner environment cuts it."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self._cut and not truncated:
            self._over = truncated = True
            info |= {"success": False, "truncation": "inner"}
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the inner environment as well."""
        self.inner.close()
        super().close()

    def solution(self, task: Task) -> tuple[str, ...]:
        """A shortest win where the inner environment has a table without chance; otherwise none."""
        return tuple(self._boxed(step.action) for step in self._plan(task))

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The solution with another last move, one that does not win."""
        plan = self._plan(task)
        if not plan:
            return ()
        others = [action for action in range(len(self.actions)) if action not in plan[-1].winning]
        right = [self._boxed(step.action) for step in plan[:-1]]
        return (*right, self._boxed(int(rng.choice(others)))) if others else ()

    def _boxed(self, action: int) -> str:
        return f"\\boxed{{{self.actions[action]}}}"

    def _plan(self, task: Task) -> tuple[Step, ...]:
        seed = self._seed(task)
        game = build(self.env_id, self._options_of(seed))
        game.reset(seed=seed)
        plan = self._plan_from(game)
        game.close()
        return plan

    def _plan_from(self, game: Game) -> tuple[Step, ...]:
        """A shortest win from where the game stands, by its table, as the toy texts have one."""
        table, start = (getattr(game.unwrapped, name, None) for name in ("P", "s"))
        if not isinstance(table, Mapping) or start is None:
            return ()
        return shortest_path(table, int(start), self.wording.win_reward) or ()

    def _read(self, action: str) -> int:
        move = read_move(action).casefold()
        for index, name in enumerate(self.actions):
            if move in (name.casefold(), str(index + self._first)):
                return index + self._first
        raise BadMove(f"There is no such move. The moves are {', '.join(self.actions)}.")

    def _problem(self, rng: np.random.Generator) -> tuple[str, str, dict[str, Any]]:
        seed = int(rng.integers(2**31))
        prompt = f"{self.wording.rules(self._options_of(seed))}\nThe moves are {', '.join(self.actions)}."
        return prompt, "", {"seed": seed}

    def _options_of(self, seed: int) -> dict[str, Any]:
        return self.wording.options(dict(self.env_kwargs), seed)

    def _seed(self, task: Task) -> int:
        seed = task.metadata.get("seed")
        if not isinstance(seed, int):
            raise UsageError(f"task {task.task_id!r} has no whole number as its metadata 'seed'")
        return seed
