"""Sampling with a vLLM server: token ids in, token ids and log-probs out, its weights after ours."""

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_gym.engines.base import (
    Engine,
    EngineFailure,
    Request,
    Sharing,
    check_ids,
    check_sequences,
    require_idle,
)
from grpo_gym.engines.http import HttpClient, ServerError
from grpo_gym.engines.lanes import check, unique_ids
from grpo_gym.engines.pulse import Pulse
from grpo_gym.engines.vllm_server_answers import completion, generation, scores, scoring
from grpo_gym.engines.vllm_server_control import Control, check_fits
from grpo_gym.engines.vllm_weights import Checkpoint
from grpo_gym.errors import UsageError
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    import torch

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable of the key that the server asks for; vLLM's own."""

_GENERATE = "/inference/v1/generate"
_MOMENT_S = 0.01
_SCORE_S = 600.0
_LOWEST_TEMPERATURE = 0.01
"""vLLM would raise a lower one to this without a word in the answer."""
_MISTAKES = (400, 401, 403, 404, 422)
"""Answers that say that something is wrong with what was asked, or by whom."""
_LONGEST_ANSWER = 256 * 2**20


@dataclass(frozen=True)
class _Flight:
    """A request in flight, its answer, and the index of the weights that were loaded when it began."""

    request: Request
    answer: Future[Any]
    loaded: int


class VLLMServerEngine(Engine):
    """A vLLM server that `grpo-gym serve` started, on this machine or one that shares a folder with it.

    Every request is on its own in flight. A request's seed decides its tokens. The server says which
    weights sampled each of them: others than were loaded here stop the run, so that a server that was
    started anew, or that somebody else loads weights into, is found out.

    Several processes may train on one server, each with a client of its own. All call `load` alike, while
    none has a request in flight: one client sends the weights, the others take note of their name.

    Args:
        url: of the server, such as http://127.0.0.1:8000.
        config: of the policy's model; the server's model must have the same shapes.
        dtype: that the server's weights must have; None: any.
        float32_head: whether the server must compute logits in float32.
        max_lanes: most requests in flight at once.
        timeout_s: seconds an answer may take; whether a silent server is still there, it is asked sooner.
        sharing: how this client goes with others; None: it is the only one.

    Raises:
        UsageError: The server cannot be reached, or is not what is needed.
    """

    def __init__(
        self,
        url: str,
        config: Any,
        *,
        dtype: str | None = None,
        float32_head: bool = False,
        max_lanes: int = 256,
        timeout_s: float = 3600.0,
        sharing: Sharing | None = None,
    ) -> None:
        self._client = HttpClient(
            url,
            key_env=KEY_VARIABLE,
            timeout_s=timeout_s,
            concurrency=max_lanes,
            max_bytes=_LONGEST_ANSWER,
        )
        # With connections of its own: what is said beside requests does not wait until one of them ends.
        self._beside = HttpClient(url, key_env=KEY_VARIABLE)
        self.version = 0
        self._control = Control(self._beside)
        self._pulse = Pulse(self._beside, "/health")
        self._flying: dict[int, _Flight] = {}
        sharing = sharing or Sharing(uuid.uuid4().hex, leads=True)
        self._session, self.leads = sharing.session, sharing.leads
        self._loaded: list[tuple[str, int]] = []
        try:
            server = self._control.describe()
            check_fits(server, config, dtype, float32_head)
            if self.leads:
                self._control.reset_scale()
            self._checkpoint = Checkpoint(config)
        except UsageError as error:
            self.close()
            raise ServerError(self._client.hide(str(error))) from None
        except BaseException:
            self.close()
            raise
        self.context_length, self._vocabulary = server.context_length, server.vocabulary
        self._folder = server.folder

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Engine.submit`. Either all requests are sent or none.

        Raises:
            UsageError: A request makes no sense.
        """
        unique_ids(requests, set(self._flying))
        for request in requests:
            check(request, self.context_length)
            check_ids(request.prompt_ids, self._vocabulary)
            if 0 < request.sampling.temperature < _LOWEST_TEMPERATURE:
                raise UsageError(
                    f"temperature is {request.sampling.temperature}, but must be 0 (greedy) or at least "
                    f"{_LOWEST_TEMPERATURE}"
                )
        if not self._flying:
            self._pulse.heard()
        for request in requests:
            body = generation(request, self.context_length, self._vocabulary)
            answer = self._client.start("POST", _GENERATE, body)
            self._flying[request.id] = _Flight(request, answer, max(0, len(self._loaded) - 1))

    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine.step`; waits for a moment while nothing has ended.

        Raises:
            ServerError: The server rejects a request.
            EngineFailure: The server fails, or answers nonsense. Every request is dropped.
        """
        try:
            wait([flight.answer for flight in self._flying.values()], _MOMENT_S, FIRST_COMPLETED)
            ended = [name for name, flight in self._flying.items() if flight.answer.done()]
            with self._failing():
                if ended or not self._flying:
                    self._pulse.heard()
                else:
                    self._pulse.check()
                return [(name, self._take(self._flying.pop(name))) for name in ended]
        except BaseException:
            self.abort()
            raise

    @property
    def busy(self) -> bool:
        """See `Engine.busy`."""
        return bool(self._flying)

    def abort(self) -> None:
        """See `Engine.abort`: connections are closed, and the server drops their requests."""
        for flight in self._flying.values():
            flight.answer.cancel()
        self._flying.clear()

    def load(self, state: Mapping[str, "torch.Tensor"], version: int) -> None:
        """See `Engine.load`. The server drops whatever was cached under the old weights.

        A client that does not lead only takes note of what the one that leads loads.

        Raises:
            UsageError: Names or shapes differ from the model's, or the server does not see the folder.
            EngineFailure: The server fails.
        """
        name = f"{self._session}-{len(self._loaded)}-version-{version}"
        if self.leads:
            weights = self._checkpoint.weights(state)
            with self._failing():
                self._control.load(weights, name, self._folder, keep=self.busy)
        self._loaded.append((name, version))
        self.version = version

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """See `Engine.score`; temperature 0 counts as 1, as for sampling.

        Raises:
            UsageError: Requests are in flight; or a sequence is longer than the context, or has ids
                beyond the vocabulary.
            EngineFailure: The server fails, or answers nonsense.
            RuntimeError: This client does not lead: the scale of all logits is not its to change.
        """
        if not self.leads:
            raise RuntimeError("of the clients that share a server only the one that leads scores")
        require_idle(len(self._flying), "scoring")
        check_sequences(sequences, self._vocabulary, self.context_length)
        # vLLM gives the log-probs of a prompt at temperature 1: all logits are scaled meanwhile.
        with self._failing(), self._control.scaled(1 / (temperature or 1.0)):
            futures = {
                i: self._client.start("POST", _GENERATE, scoring(sequence), timeout_s=_SCORE_S)
                for i, sequence in enumerate(sequences)
                if len(sequence) > 1
            }
            versions = dict(self._loaded[-1:])
            try:
                return [
                    scores(futures[i].result(), sequence, versions) if i in futures else np.empty(0)
                    for i, sequence in enumerate(sequences)
                ]
            finally:
                for future in futures.values():
                    future.cancel()

    def close(self) -> None:
        """Drop every request; the server goes on."""
        self.abort()
        self._client.close()
        self._beside.close()

    def _take(self, flight: "_Flight") -> Completion:
        """What the server answered, as a record."""
        request = flight.request
        limit = min(request.sampling.max_tokens, self.context_length - len(request.prompt_ids))
        versions = dict(self._loaded[flight.loaded :])
        return completion(flight.answer.result(), request, limit, self._vocabulary, versions)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """A server that was found fit fails: that is not the user's mistake, unless it says so."""
        try:
            yield
        except ServerError as error:
            if error.status in _MISTAKES:
                raise
            raise EngineFailure(self._client.hide(str(error))) from None
