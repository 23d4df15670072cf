"""Sampling with vLLM in this process: token ids in, token ids and log-probs out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch

from grpo_gym.engines.base import Engine, Request, check_ids, check_sequences, require_idle
from grpo_gym.engines.lanes import check, unique_ids
from grpo_gym.engines.vllm_records import completion, sampling_params, scores, scoring_params
from grpo_gym.engines.vllm_start import start
from grpo_gym.engines.vllm_weights import Checkpoint, scale_logits, take_weights
from grpo_gym.engines.vllm_world import OwnWorld
from grpo_gym.errors import UsageError
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

_MEMORY = ("weights", "kv_cache")
"""The parts of the device's memory that sleep, by vLLM's names."""

_OPEN: "WeakSet[VLLMEngine]" = WeakSet()
"""The engine of this process, if there is one: what vLLM ends with an engine, others would need."""


class VLLMEngine(Engine):
    """vLLM's engine, stepped by hand: lanes join the running batch one by one, and leave it so.

    Equal beginnings of prompts are encoded once (prefix caching), the G copies of a task among them.
    A request's tokens are decided by its seed; its log-probs, up to the rounding of sums of floats,
    are those of the distribution really sampled from.

    vLLM holds weights of its own: `load` copies the learner's into them, in place. On the CPU build,
    and there alone, every line of this was run. On a GPU it takes torch's current one, so that of
    several processes that train together each samples on its own.

    Args:
        model: folder of a transformers model with its tokenizer, or a Hugging Face id.
        dtype: of vLLM's weights.
        context_length: most tokens of prompt and completion; None: what the model takes.
        max_lanes: most requests that run at once; the others wait their turn.
        arguments: further fields of vLLM's `EngineArgs`, such as `gpu_memory_utilization`.

    Raises:
        UsageError: vLLM is missing, or refuses the model or an argument; or this process has an engine
            that is not closed.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        context_length: int | None = None,
        max_lanes: int = 256,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if _OPEN:
            raise UsageError(
                "this process has a vLLM engine already, and vLLM works with one at a time: close() it, or "
                "start another as a server with grpo-gym serve"
            )
        self._world = OwnWorld()
        with self._world.starting():
            self._engine = start(
                model,
                dtype=dtype,
                context_length=context_length,
                max_lanes=max_lanes,
                arguments=arguments or {},
            )
        config = self._engine.model_config
        self.version = 0
        self.context_length = int(config.max_model_len)
        self._vocabulary = int(config.get_vocab_size())
        self._checkpoint = Checkpoint(config.hf_config)
        self._running: dict[int, Request] = {}
        self._asleep: list[str] = []
        _OPEN.add(self)

    @property
    def version(self) -> int:
        """See `Engine`; vLLM labels every token with it."""
        return int(self._engine.get_weight_version())

    @version.setter
    def version(self, version: int) -> None:
        self._engine.set_weight_version(str(version))

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Engine.submit`. Either all requests are taken or none.

        Raises:
            UsageError: A request makes no sense, or vLLM rejects it.
        """
        unique_ids(requests, set(self._running))
        for request in requests:
            check(request, self.context_length)
            check_ids(request.prompt_ids, self._vocabulary)
        self._require_awake()
        from vllm.exceptions import VLLMClientError

        added: list[str] = []
        try:
            for request, params in [(r, self._params(r)) for r in requests]:
                self._add(str(request.id), request.prompt_ids, params)
                added.append(str(request.id))
        except (ValueError, VLLMClientError) as error:
            self._engine.abort_request(added)
            line = " ".join(str(error).split())
            raise UsageError(f"vLLM rejects a request: {line}") from error
        self._running |= {request.id: request for request in requests}

    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine.step`.

        Raises:
            RuntimeError: vLLM lost a request, or ended it for another reason than a stop or a limit.
                Whatever vLLM itself raises goes on to the caller. Every request is dropped.
        """
        try:
            if self._running and not self._engine.has_unfinished_requests():
                raise RuntimeError(f"vLLM lost {len(self._running)} requests")
            return [self._take(output) for output in self._finished()]
        except BaseException:
            with suppress(Exception):  # what broke it says more
                self.abort()
            raise

    @property
    def busy(self) -> bool:
        """See `Engine.busy`."""
        return bool(self._running)

    def abort(self) -> None:
        """See `Engine.abort`."""
        names = [str(name) for name in self._running]
        self._running.clear()
        if names:
            self._engine.abort_request(names)

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """See `Engine.load`. Whatever was cached under the old weights is dropped.

        Raises:
            UsageError: Names or shapes differ from the model's.
            RuntimeError: vLLM did not drop its cache.
        """
        weights = self._checkpoint.weights(state)
        self._wake("weights")
        self._engine.collective_rpc(take_weights, args=(weights,))
        self._wake("kv_cache")  # after the weights, which may need room of their own on their way
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM kept a cache of the old weights: some request still holds it")
        self.version = version

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """See `Engine.score`; temperature 0 counts as 1, as for sampling.

        Raises:
            UsageError: Requests are in flight; or a sequence is longer than the context, or has ids
                beyond the vocabulary.
        """
        require_idle(len(self._running), "scoring")
        check_sequences(sequences, self._vocabulary, self.context_length)
        self._require_awake()
        found = [np.empty(0) for _ in sequences]
        # vLLM gives the log-probs of a prompt at temperature 1: all logits are scaled meanwhile.
        self._engine.apply_model(scale_logits(1 / (temperature or 1.0)))
        try:
            for i, sequence in enumerate(sequences):
                if len(sequence) > 1:
                    # The last token would not fit into a prompt of the context's length.
                    *prompt, last = map(int, sequence)
                    self._add(str(i), prompt, scoring_params(last))
            while self._engine.has_unfinished_requests():
                for output in self._finished():
                    i = int(output.request_id)
                    found[i] = scores(output, int(sequences[i][-1]))
        finally:
            self._engine.abort_request([str(i) for i in range(len(sequences))])
            self._engine.apply_model(scale_logits(temperature or 1.0))
        return found

    def sleep(self) -> None:
        """See `Engine.sleep`: the device's memory is freed, and `load` must come next; not on the CPU."""
        require_idle(len(self._running), "sleeping")
        if self._engine.model_config.enable_sleep_mode and not self._asleep:
            self._engine.sleep(level=2)  # the weights are not kept: others come
            self._asleep = list(_MEMORY)

    def close(self) -> None:
        """Drop every request and free the model."""
        self.abort()
        _OPEN.discard(self)
        with self._world.ending():
            self._engine.engine_core.shutdown()

    def _wake(self, part: str) -> None:
        """Undo `sleep` for a part of the memory; without effect if it is awake."""
        if part in self._asleep:
            torch.cuda.empty_cache()  # what the trainer has let go of, and torch still holds
            self._engine.wake_up([part])
            self._asleep.remove(part)

    def _require_awake(self) -> None:
        if self._asleep:
            raise RuntimeError("the engine slept and has no weights: load some before it is used")

    def _add(self, name: str, prompt_ids: Sequence[int], params: "SamplingParams") -> None:
        self._engine.add_request(name, {"prompt_token_ids": list(prompt_ids)}, params)

    def _finished(self) -> list["RequestOutput"]:
        """Advance vLLM by a step; the requests that ended with it."""
        # The CPU build draws from the global generator too, and throws it away.
        with torch.random.fork_rng(devices=[]):
            return [output for output in self._engine.step() if output.finished]

    def _params(self, request: Request) -> "SamplingParams":
        room = self.context_length - len(request.prompt_ids)
        return sampling_params(request, room, self._vocabulary)

    def _take(self, output: "RequestOutput") -> tuple[int, Completion]:
        """A finished request as a record."""
        request = self._running.pop(int(output.request_id))
        return request.id, completion(output.outputs[0], request.sampling.top_logprobs)
