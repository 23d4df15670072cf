"""Groups of rollouts with an endpoint: what has been paid for is kept, whatever stops the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from grpo_gym.answers import Start
from grpo_gym.chat.engine import ChatEngine
from grpo_gym.chat.lane import ChatLane, Tools
from grpo_gym.chat.tools import with_native_tools
from grpo_gym.collector import INTERRUPTED, BaseCollector, CollectorOptions
from grpo_gym.engines.base import Sampling
from grpo_gym.episode import Episode
from grpo_gym.errors import UsageError
from grpo_gym.types import Group


class ChatCollector(BaseCollector):
    """Plays groups of rollouts with a policy that is asked in messages and says text.

    Args:
        make_env: builds an environment.
        engine: the endpoint.
        sampling: how tokens are drawn.
        options: how rollouts are collected.
    """

    culprits = "failing environments or requests"

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        engine: ChatEngine,
        sampling: Sampling,
        options: CollectorOptions,
    ) -> None:
        make = (lambda: with_native_tools(make_env())) if engine.native_tools else make_env
        super().__init__(make, engine, sampling, options)
        self._endpoint = engine

    def cost(self) -> str | None:
        """The tokens that were used, in a line; None where nothing was answered."""
        return self._endpoint.cost() if self._endpoint.answered else None

    def _new_lane(self, seed: tuple[int, ...]) -> Episode:
        return ChatLane(
            self._sampling, self._options.rollout_tokens, seed, self._endpoint.native_tools
        )

    def _render(self, start: Start) -> Tools:
        return start.tools

    def _check(self, groups: Sequence[Group]) -> None:
        if groups and not self._endpoint.answered:
            raise UsageError(
                f"{self._endpoint.url}: no conversation fits the model's context with --max-tokens "
                f"{self._sampling.max_tokens}: use a model with a longer context, or fewer tokens"
            )

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, KeyboardInterrupt):
            return self._endpoint.with_cost(INTERRUPTED)
        return super()._reason(error) or self._endpoint.with_cost(str(error))
