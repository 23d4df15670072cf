"""A request in flight: what was sampled so far, and when it ends."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.errors import UsageError
from grpo_gym.types import Completion, FinishReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOWEST_TEMPERATURE = 1e-4
_BLOCK = 64


class Lane:
    """One request and the tokens sampled for it.

    Args:
        request: what to sample.
        context_length: most tokens, prompt and completion together.
        tokenizer: decodes, for stop strings; without one there may be none.

    Attributes:
        token_ids: sampled so far.
        logprobs: of each.
        versions: of the tokens sampled before weights came, if some did.
        limit: most tokens that this lane may sample.
    """

    def __init__(
        self,
        request: Request,
        context_length: int,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> None:
        check(request, context_length)
        if request.sampling.stop and tokenizer is None:
            raise UsageError("stop strings need a tokenizer: pass one to the engine")
        self.request = request
        self.limit = min(request.sampling.max_tokens, context_length - len(request.prompt_ids))
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.top: list[tuple[list[int], list[float]]] = []
        self._tokenizer = tokenizer
        seed = np.random.SeedSequence(request.seed % 2**128)
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._uniforms: list[float] = []
        self._stop_ids = frozenset(request.sampling.stop_token_ids)
        # A stop string of n characters has at most 4n bytes, so at most 4n tokens that show.
        self._window = 4 * max(map(len, request.sampling.stop), default=0) + 4

    @property
    def context(self) -> tuple[int, ...]:
        """The prompt and what was sampled so far."""
        return (*self.request.prompt_ids, *self.token_ids)

    def uniform(self) -> float:
        """The next token's random number in [0, 1); the seed and the token's index decide it."""
        if not self._uniforms:
            self._uniforms = self._generator.random(_BLOCK, np.float32)[::-1].tolist()
        return self._uniforms.pop()

    def append(self, token_id: int, logprob: float) -> FinishReason | None:
        """Take one more token; say why the lane ends with it, if it does."""
        self.token_ids.append(token_id)
        self.logprobs.append(min(logprob, 0.0))
        if token_id in self._stop_ids:
            return "stop"
        if self.request.sampling.stop and self._completes_stop_string():
            return "stop"
        return "length" if len(self.token_ids) >= self.limit else None

    def mark(self, version: int) -> None:
        """Remember the version that sampled the tokens since the last mark: others will do the next."""
        self.versions += [version] * (len(self.token_ids) - len(self.versions))

    def completion(self, reason: FinishReason, version: int) -> Completion:
        """The lane's tokens as a record; `version` sampled the last of them."""
        mixed = bool(self.versions)
        self.mark(version)
        top = self.request.sampling.top_logprobs
        return Completion(
            token_ids=np.array(self.token_ids, np.int64),
            logprobs=np.array(self.logprobs),
            finish_reason=reason,
            version=version,
            versions=np.array(self.versions) if mixed else None,
            top_ids=np.array([ids for ids, _ in self.top]) if top else None,
            top_logprobs=np.array([values for _, values in self.top]) if top else None,
        )

    def _completes_stop_string(self) -> bool:
        if self._tokenizer is None:
            return False
        tail = self.token_ids[-self._window :]
        text = str(self._tokenizer.decode(tail, clean_up_tokenization_spaces=False))
        return any(string in text for string in self.request.sampling.stop)


def check(request: Request, context_length: int) -> None:
    """Raise a `UsageError` unless the request can be sampled within `context_length` tokens."""
    length = len(request.prompt_ids)
    if length == 0:
        raise UsageError(f"request {request.id} has an empty prompt; give it at least one token")
    if length >= context_length:
        raise UsageError(
            f"request {request.id}: a prompt of {length} tokens leaves no room for a completion "
            f"within the context length of {context_length}; shorten the prompt"
        )
    check_sampling(request.sampling)


def check_sampling(sampling: Sampling) -> None:
    """Raise a `UsageError` that names the field of `sampling` that makes no sense."""
    problems = {
        "temperature": not math.isfinite(sampling.temperature)
        or (sampling.temperature != 0 and sampling.temperature < LOWEST_TEMPERATURE),
        "top_p": not 0 < sampling.top_p <= 1,
        "top_k": sampling.top_k < 0,
        "min_p": not 0 <= sampling.min_p <= 1,
        "max_tokens": sampling.max_tokens < 1,
        "stop": "" in sampling.stop,
        "top_logprobs": sampling.top_logprobs < 0,
    }
    allowed = {
        "temperature": f"0 (greedy) or at least {LOWEST_TEMPERATURE}",
        "top_p": "above 0 and at most 1",
        "top_k": "0 (off) or more",
        "min_p": "between 0 and 1",
        "max_tokens": "at least 1",
        "stop": "strings that are not empty",
        "top_logprobs": "0 (off) or more",
    }
    for name, wrong in problems.items():
        if wrong:
            raise UsageError(
                f"sampling: {name} is {getattr(sampling, name)!r}; it must be {allowed[name]}"
            )


def unique_ids(requests: Sequence[Request], taken: set[int]) -> None:
    """Raise a `UsageError` if two requests in flight would share an id."""
    seen = set(taken)
    for request in requests:
        if request.id in seen:
            raise UsageError(f"request id {request.id} is in flight already; give each its own")
        seen.add(request.id)
