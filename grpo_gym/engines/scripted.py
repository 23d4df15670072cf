"""A fake policy that says what it is told: to try an environment, and to test, without a model."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo_gym.engines.base import Engine, Request
from grpo_gym.engines.lanes import Lane, unique_ids
from grpo_gym.errors import UsageError
from grpo_gym.rendering import Renderer
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    import torch

Script = Sequence[str] | Callable[[tuple[int, ...], Request], str]
"""Texts, one per request in the order of submission, starting over at the end; or a function of the
prompt's ids and the request."""


class ScriptedEngine(Engine):
    """Speaks a script, one token per lane and step, each with the log-prob of a uniform policy.

    A completion is the text's tokens and the end-of-turn token, cut at `max_tokens`, at the context
    length, or after the token that completes a stop string. Nothing is random.

    Args:
        renderer: encodes the script and ends the turns.
        script: what to say.
        context_length: most tokens, prompt and completion together.
    """

    def __init__(self, renderer: Renderer, script: Script, context_length: int = 4096) -> None:
        if not callable(script) and not script:
            raise UsageError("the script is empty; give it at least one text")
        self.renderer = renderer
        self.context_length = context_length
        self.version = 0
        self.requests: list[Request] = []
        self._script = script
        self._lanes: dict[int, Lane] = {}
        self._pending: dict[int, list[int]] = {}
        self._logprob = -math.log(len(renderer.tokenizer))

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Engine.submit`; `requests` collects all that were ever submitted."""
        unique_ids(requests, set(self._lanes))
        lanes = [Lane(r, self.context_length, self.renderer.tokenizer) for r in requests]
        for lane in lanes:
            self._pending[lane.request.id] = self._speak(lane.request)
            self._lanes[lane.request.id] = lane
            self.requests.append(lane.request)

    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine.step`."""
        done = []
        for name, lane in list(self._lanes.items()):
            pending = self._pending[name]
            reason = lane.append(pending.pop(0), self._logprob)
            count = lane.request.sampling.top_logprobs
            lane.top.append((list(range(count)), [self._logprob] * count))
            if not pending:
                reason = reason or "stop"
            if reason:
                done.append((name, lane.completion(reason, self.version)))
                del self._lanes[name], self._pending[name]
        return done

    @property
    def busy(self) -> bool:
        """See `Engine.busy`."""
        return bool(self._lanes)

    def abort(self) -> None:
        """See `Engine.abort`."""
        self._lanes.clear()
        self._pending.clear()

    def load(self, state: Mapping[str, "torch.Tensor"], version: int) -> None:
        """Take the version; a script has no weights."""
        for lane in self._lanes.values():
            lane.mark(self.version)
        self.version = version

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """Log-probs of the uniform policy, whatever the temperature."""
        return [np.full(max(len(sequence) - 1, 0), self._logprob) for sequence in sequences]

    def _speak(self, request: Request) -> list[int]:
        if callable(self._script):
            text = self._script(request.prompt_ids, request)
        else:
            text = self._script[len(self.requests) % len(self._script)]
        ids = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        return [*ids, self.renderer.stop_token_ids[0]]
