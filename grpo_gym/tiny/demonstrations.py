"""Conversations that show how an environment is played, most of them with a wrong answer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_gym.env import TextEnv
from grpo_gym.registry import make
from grpo_gym.rendering import Renderer
from grpo_gym.types import Message, as_messages


@dataclass(frozen=True)
class Part:
    """One environment of the mixture.

    Attributes:
        env: id of the environment.
        share: share of the demonstrations.
        mistakes: share of its demonstrations that end in a wrong answer.
        kwargs: arguments of the environment.
    """

    env: str
    share: float
    mistakes: float
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mixture:
    """What the tiny policy is shown."""

    parts: tuple[Part, ...] = (
        Part("grpo_gym/Arithmetic-v0", 0.45, 0.65, {"level": 1}),
        Part("grpo_gym/Arithmetic-v0", 0.15, 0.65, {"level": 2}),
        Part("grpo_gym/Calculator-v0", 0.25, 0.65, {"level": 1}),
        Part("grpo_gym/Copy-v0", 0.15, 0.65),
    )


@dataclass(frozen=True)
class Demonstration:
    """A conversation: the prompt, then an action and the observation after it, and so on."""

    prompt: tuple[Message, ...]
    turns: tuple[tuple[str, tuple[Message, ...]], ...]


def demonstrations(part: Part, seed: int) -> Iterator[Demonstration]:
    """An endless stream of demonstrations of one environment, by its `solution` and `mistakes`."""
    env = make(part.env, **part.kwargs)
    game = env.unwrapped
    assert isinstance(game, TextEnv)
    rng = np.random.default_rng(seed)
    while True:
        prompt, _ = env.reset(seed=int(rng.integers(2**31)))
        assert game.task is not None
        wrong = rng.random() < part.mistakes
        actions = game.mistakes(game.task, rng) if wrong else game.solution(game.task)
        turns = []
        for action in actions[:-1]:
            observation, *_ = env.step(action)
            turns.append((action, as_messages(observation)))
        yield Demonstration(as_messages(prompt), (*turns, (actions[-1], ())))


class Encoder:
    """Renders demonstrations exactly as the collector renders rollouts; remembers what it has seen."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: dict[str, tuple[list[int], list[bool]]] = {}

    def __call__(self, demonstration: Demonstration) -> tuple[list[int], list[bool]]:
        """Token ids of a demonstration, and which of them the policy is to say."""
        key = repr(demonstration)
        if key not in self._known:
            self._known[key] = self._encode(demonstration)
        return self._known[key]

    def _encode(self, demonstration: Demonstration) -> tuple[list[int], list[bool]]:
        ids = self._renderer.prompt(demonstration.prompt)
        said = [False] * len(ids)
        for action, observation in demonstration.turns:
            spoken = self._renderer.tokenizer.encode(action, add_special_tokens=False)
            spoken = [*spoken, self._renderer.stop_token_ids[0]]
            heard = self._renderer.extend(spoken, observation) if observation else []
            ids = [*ids, *spoken, *heard]
            said += [True] * len(spoken) + [False] * len(heard)
        return ids, said
