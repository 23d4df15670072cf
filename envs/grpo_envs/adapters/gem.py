"""Environments of GEM (PyPI `gem-llm`)."""

from collections.abc import Mapping
from typing import Any

from grpo_envs.adapters.foreign import Answer, ForeignEnv
from grpo_envs.adapters.requirements import load
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task


class GemEnv(ForeignEnv):
    """An environment that GEM registers, such as "game:GuessTheNumber-v0-easy".

    GEM seeds the global generators: they are lent to it and put back. It sets both flags at once: the
    episode is then cut, when the game's own limit of turns is reached; otherwise it has ended.

    Args:
        env_id: as GEM knows it.
        env_kwargs: arguments of that environment.
        **kwargs: as in `ForeignEnv`.

    Raises:
        UsageError: GEM is not installed, or has no such environment.
    """

    def __init__(
        self, *, env_id: str, env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.env_id = env_id
        self.env_kwargs = dict(env_kwargs or {})
        super().__init__(**kwargs)
        with self._random.lent():  # importing it, too, draws from them
            registration = load("gem.envs.registration", "gem-llm")
            load("gem.envs", "gem-llm")
        if env_id not in registration.ENV_REGISTRY:
            raise UsageError(f"GEM has no environment {env_id!r}")
        self._make = registration.make

    def start(self, task: Task, seed: int) -> str:
        """Make and reset the environment."""
        self.inner = self._make(self.env_id, **self.env_kwargs)
        observation, _ = self.inner.reset(seed=seed)
        return str(observation)

    def play(self, action: str) -> Answer:
        """One step."""
        observation, reward, terminated, truncated, info = self.inner.step(action)
        limit = getattr(self.inner.unwrapped, "max_turns", None)
        at_limit = limit is not None and self.turn + 1 >= limit
        won = float(reward) >= self.win_reward
        cut = bool(truncated) and (not terminated or (at_limit and not won))
        seen = f"{observation}\n{info.get('suffix', '')}".rstrip()
        return Answer(seen, float(reward), bool(terminated or truncated), cut)

    def _name(self) -> str:
        return f"GEM's {self.env_id}"
