"""OpenEnv environments (PyPI `openenv`), in this process or behind a client."""

from collections.abc import Callable, Mapping
from typing import Any

from grpo_envs.adapters.foreign import Answer, ForeignEnv
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task


class OpenEnvEnv(ForeignEnv):
    """An OpenEnv `Environment`, or a synchronous client of a server that runs one.

    Both have `reset(seed=...)` and `step(action)`; the first returns observations that carry `reward`
    and `done`, the second results that carry an observation besides. OpenEnv says neither what text is
    an action nor what of an observation is text: tell so by `to_action` and `to_text`.

    An environment in this process gets the global generators lent, as in `ForeignEnv`. A server's are
    its own: it must keep to the seed itself.

    Args:
        make_inner: builds the environment or the connected client; called for each episode.
        to_action: from the model's text, an action; it may raise, then the model is told why.
        to_text: from an observation, what the model sees.
        **kwargs: as in `ForeignEnv`.

    Raises:
        UsageError: What `make_inner` builds has no `reset` and `step`.
    """

    def __init__(
        self,
        *,
        make_inner: Callable[[], Any],
        to_action: Callable[[str], Any],
        to_text: Callable[[Any], str],
        **kwargs: Any,
    ) -> None:
        self.make_inner, self.to_action, self.to_text = make_inner, to_action, to_text
        self.inner: Any = None
        super().__init__(**kwargs)

    def start(self, task: Task, seed: int) -> str:
        """Build it anew and reset it with the task's seed."""
        self._close_inner()
        self.inner = self.make_inner()
        if not all(callable(getattr(self.inner, name, None)) for name in ("reset", "step")):
            raise UsageError(f"a {type(self.inner).__name__} has no reset and step")
        return self._text(self.inner.reset(seed=seed))

    def play(self, action: str) -> Answer:
        """One step; an action that cannot be read takes a turn and changes nothing."""
        try:
            read = self.to_action(action)
        except Exception as error:  # a reader may raise on any text
            return Answer(f"Not an action: {error}", 0.0, components={"unread": 1.0})
        said = self.inner.step(read)
        reward = 0.0 if said.reward is None else float(said.reward)
        metadata = getattr(said, "metadata", None)
        cut = isinstance(metadata, Mapping) and bool(metadata.get("truncated"))
        return Answer(self._text(said), reward, bool(said.done), cut and reward < self.win_reward)

    def close(self) -> None:
        """Close the environment or client as well."""
        self._close_inner()
        super().close()

    def _close_inner(self) -> None:
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()
        self.inner = None

    def _text(self, said: Any) -> str:
        # A client's result holds the observation; an environment returns the observation itself.
        return str(self.to_text(getattr(said, "observation", said)))
