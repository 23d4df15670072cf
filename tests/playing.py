"""Small environments, and a collector around a scripted policy: what the tests of collecting share."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import gymnasium

from grpo_gym.collector import Collector, CollectorOptions
from grpo_gym.curriculum import TaskSpec
from grpo_gym.engines.base import Engine, Sampling
from grpo_gym.engines.scripted import Script, ScriptedEngine
from grpo_gym.rendering import Renderer
from tests.models import tiny_tokenizer

Step = tuple[Any, ...]
END: Step = ("", 1.0, True, False, {"success": True})


class Fake(gymnasium.Env[Any, Any]):
    """An environment of two functions; each gets the environment, whose `seen` are the actions."""

    def __init__(
        self,
        step: Callable[["Fake", str], Any] = lambda env, action: END,
        start: Callable[["Fake"], Any] = lambda env: ("question", {}),
    ) -> None:
        self.seen: list[str] = []
        self.seed = 0
        self.options: Any = None
        self.closed = False
        self._step = step
        self._start = start

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen, self.seed, self.options = [], seed or 0, options
        return self._start(self)

    def step(self, action: str) -> Any:
        self.seen.append(action)
        return self._step(self, action)

    def close(self) -> None:
        self.closed = True


def goes_on(text: Any = "more") -> Step:
    """A step after which the episode goes on."""
    return (text, 0.0, False, False, {})


def turns(count: int, text: Any = "more") -> Callable[[Fake, str], Step]:
    """Steps of an episode that ends with its `count`-th action."""
    return lambda env, action: END if len(env.seen) >= count else goes_on(text)


@cache
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer())


def encode(text: str) -> list[int]:
    return list(renderer().tokenizer.encode(text, add_special_tokens=False))


def specs(count: int, options: dict[str, Any] | None = None) -> list[TaskSpec]:
    """Tasks 0, 1, ... with the seeds 100, 101, ..."""
    return [TaskSpec(index, 100 + index, options) for index in range(count)]


def scripted(script: Script = ("a",), context: int = 4096) -> ScriptedEngine:
    return ScriptedEngine(renderer(), script, context)


def collector(
    make: Callable[[], Any] = Fake,
    engine: Engine | None = None,
    *,
    copies: int = 1,
    max_tokens: int = 64,
    top_logprobs: int = 0,
    temperature: float = 1.0,
    **options: Any,
) -> Collector:
    """A collector; `options` are those of `CollectorOptions`."""
    stops = renderer().stop_token_ids
    sampling = Sampling(
        temperature=temperature,
        max_tokens=max_tokens,
        stop_token_ids=stops,
        top_logprobs=top_logprobs,
    )
    settings = CollectorOptions(group_size=copies, **options)
    return Collector(make, engine or scripted(), renderer(), sampling, settings)


def texts(ids: Sequence[int]) -> str:
    return str(renderer().tokenizer.decode(list(ids)))
