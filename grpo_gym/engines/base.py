"""What every engine offers: token ids in, token ids and log-probs out, one step at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from grpo_gym.errors import UsageError
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: logits are divided by it; 0 means greedy (log-probs are then those at 1).
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many of the most probable tokens; 0 keeps all.
        min_p: keep tokens at least this share as probable as the most probable one; 0 keeps all.
        max_tokens: most tokens to sample in one turn.
        stop: strings that end a turn; the tokens up to and including the one that completes it are kept.
        stop_token_ids: tokens that end a turn; the sampled one is kept.
        top_logprobs: report this many most probable tokens at each position.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0

    @property
    def full_support(self) -> bool:
        """Whether every token keeps a chance of being drawn."""
        return self.top_p >= 1 and self.top_k == 0 and self.min_p <= 0 and self.temperature > 0


@dataclass(frozen=True)
class Request:
    """One completion to sample: `id` names it in the answer, `seed` alone decides its random draws."""

    id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int


class EngineFailure(RuntimeError):
    """The engine failed, or does not do what it should: the run cannot go on."""


class EngineStopped(Exception):
    """A policy that cannot go on, and why; what was played to its end is kept."""


@dataclass(frozen=True)
class Sharing:
    """How the clients of one server go together, when several processes sample from it.

    Attributes:
        session: what all of them call themselves; the server's weights are named after it.
        leads: whether this client loads weights and asks for scores; one of them does.
    """

    session: str
    leads: bool


@dataclass(frozen=True)
class Lost:
    """A request that brought nothing.

    Attributes:
        reason: why.
        limit: the limit that was hit, where it was one: the rollout is then truncated, not lost.
    """

    reason: str
    limit: str | None = None


Asked = TypeVar("Asked")
Said = TypeVar("Said")


class Speaker(ABC, Generic[Asked, Said]):
    """Says the next thing in many conversations at once, each on its own."""

    @abstractmethod
    def submit(self, requests: Sequence[Asked]) -> None:
        """Add requests to those in flight."""

    @abstractmethod
    def step(self) -> list[tuple[int, Said]]:
        """Go on for a moment; return what has been said since, with the ids of the requests.

        Raises:
            EngineStopped: It cannot go on.
        """

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a request is in flight."""

    @abstractmethod
    def abort(self) -> None:
        """Drop every request in flight."""

    def close(self) -> None:
        """Free what it holds. The default holds nothing."""
        return


class Engine(Speaker[Request, Completion]):
    """A policy that samples. Requests join the running batch when they are submitted, and leave it alone.

    Attributes:
        version: version of the policy's weights; every completion carries it.
        context_length: most tokens, prompt and completion together, that one request may have.
        leads: whether it can be asked for scores; of the clients that share a server, one can.
    """

    version: int = 0
    context_length: int
    leads: bool = True

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Add requests to the running batch.

        Raises:
            ValueError: A prompt is empty, or leaves no room for one token within `context_length`.
        """

    @abstractmethod
    def step(self) -> list[tuple[int, Completion]]:
        """Advance every request by about one token; return those that ended, with their ids."""

    @abstractmethod
    def load(self, state: Mapping[str, "torch.Tensor"], version: int) -> None:
        """Take the learner's weights, under the names of the model's `state_dict`.

        Requests in flight go on with them. Their tokens so far keep their version and log-probs; from the
        next step on all is computed with the new weights, those tokens' keys and values too.
        """

    @abstractmethod
    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """Log-prob of each token but the first of each sequence: arrays of length len(sequence) - 1."""

    def sleep(self) -> None:
        """Leave the device's memory to the trainer until the next `load`. The default holds on to it."""
        return

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Complete every prompt; the answers are in the order of the prompts."""
        self.submit(
            [
                Request(i, tuple(prompt), replace(sampling), seed)
                for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            ]
        )
        done: dict[int, Completion] = {}
        while self.busy:
            done.update(self.step())
        return [done[i] for i in range(len(prompts))]


def check_ids(token_ids: Sequence[int], vocabulary: int) -> None:
    """Refuse token ids that a model with so many of them does not have.

    Raises:
        UsageError: One is negative or too large.
    """
    if len(token_ids) and (min(token_ids) < 0 or max(token_ids) >= vocabulary):
        raise UsageError(
            f"token ids {min(token_ids)} to {max(token_ids)} do not fit the model's vocabulary of "
            f"{vocabulary}; use the model's own tokenizer"
        )


def check_sequences(
    sequences: Sequence[Sequence[int]], vocabulary: int, context_length: int
) -> None:
    """Refuse sequences that a model cannot score.

    Raises:
        UsageError: One has ids that the model does not have, or is longer than its context.
    """
    for sequence in sequences:
        check_ids(sequence, vocabulary)
        if len(sequence) > context_length:
            raise UsageError(
                f"a sequence of {len(sequence)} tokens is longer than the context length of {context_length}"
            )


def require_idle(running: int, what: str) -> None:
    """Refuse what cannot be done beside requests in flight.

    Raises:
        UsageError: Some are.
    """
    if running:
        raise UsageError(f"{running} requests are in flight; finish or abort them before {what}")
