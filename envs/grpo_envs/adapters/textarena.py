"""Games for one player of TextArena (PyPI `textarena`)."""

from collections.abc import Mapping
from typing import Any

from grpo_envs.adapters.foreign import Answer, ForeignEnv
from grpo_envs.adapters.requirements import load
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task


class TextArenaEnv(ForeignEnv):
    """A game for one player that TextArena registers, such as "GuessTheNumber-v0".

    TextArena seeds the global generator of `random`: it is lent to the game and put back. The player
    sees the game's new messages; what it said itself is not repeated to it.

    Args:
        env_id: as TextArena knows it; its wrappers are left out.
        env_kwargs: arguments of the game.
        **kwargs: as in `ForeignEnv`.

    Raises:
        UsageError: TextArena is not installed, or has no such game for one player.
    """

    def __init__(
        self, *, env_id: str, env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.env_id = env_id
        self.env_kwargs = dict(env_kwargs or {})
        super().__init__(**kwargs)
        with self._random.lent():
            self._library = load("textarena", "textarena")
        if env_id not in self._library.envs.registration.ENV_REGISTRY:
            raise UsageError(f"TextArena has no game {env_id!r}")

    def start(self, task: Task, seed: int) -> str:
        """Make and reset the game."""
        made = self._library.make(self.env_id, **self.env_kwargs)
        while isinstance(made, self._library.Wrapper):
            made = made.env
        self.inner = made
        self.inner.reset(num_players=1, seed=seed)
        if not isinstance(self.inner.state, self._library.SinglePlayerState):
            raise UsageError(f"TextArena's {self.env_id} is not a game for one player")
        return self._seen()

    def play(self, action: str) -> Answer:
        """One move; at the end the reward of the game."""
        done, _ = self.inner.step(action)
        if not done:
            return Answer(self._seen(), 0.0)
        rewards, game_info = self.inner.close()
        reward = float((rewards or {}).get(0, 0.0))
        limit = self.inner.state.max_turns
        invalid = bool(game_info[0].get("invalid_move"))
        at_limit = limit is not None and self.inner.state.turn >= limit
        cut = at_limit and not invalid and reward < self.win_reward
        return Answer(self._seen(), reward, True, cut, {"invalid_move": float(invalid)})

    def _seen(self) -> str:
        _, observation = self.inner.get_observation()
        said_by_player = self._library.ObservationType.PLAYER_ACTION
        return "\n".join(text for _, text, kind in observation if kind != said_by_player)

    def _name(self) -> str:
        return f"TextArena's {self.env_id}"
