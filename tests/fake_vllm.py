"""A stand-in for vLLM's server: it answers as the real one does, from a model's scores of nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel

from grpo_gym.engines.vllm_server_worker import PROTOCOL, shapes
from tests.loopback import Asked, Reply

GENERATE = "/inference/v1/generate"
TOKEN = 5
"""The only token that it ever samples."""


class FakeVLLM:
    """What a test may look at, and change.

    Attributes:
        calls: path of every request, the method's name with it for those to workers.
        bodies: body of every request for tokens.
        loaded: the weights that were loaded last.
        weights: their name.
        said: what it says of itself.
        change: changes the answer to a request for tokens.
        instead: path, or method of workers, to what is answered in place of the usual.
    """

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.loaded: dict[str, Any] = {}
        self.weights = "default"
        self.folder = folder
        self.said: dict[str, Any] = {
            "protocol": PROTOCOL,
            "folder": str(folder),
            "context_length": 64,
            "vocabulary": model.config.vocab_size,
            "dtype": "float32",
            "head_dtype": "float32",
            "logprobs_mode": "processed_logprobs",
            "model": shapes(model.config),
        }
        self.change: Callable[[Any], Any] = lambda answer: answer
        self.instead: dict[str, Reply | None] = {}

    def __call__(self, asked: Asked) -> Reply | None:
        """Answer a request."""
        name = asked.path
        if name == "/collective_rpc":
            name = asked.body["method"]
        self.headers.append(asked.headers)
        self.calls.append(name)
        if name in self.instead:
            return self.instead[name]
        return Reply(
            self.change(self._generate(asked.body))
            if name == GENERATE
            else self._do(name, asked.body)
        )

    def _do(self, name: str, body: Any) -> Any:
        if name == "grpo_gym_describe":
            return {"results": [self.said]}
        if name == "grpo_gym_load":
            (file,) = body["args"]
            self.loaded = load_file(self.folder / file)
            return {"results": [{"loaded": file}]}
        if name == "grpo_gym_scale_logits":
            return {"results": [None]}
        if name == "/update_weight_version":
            self.weights = body["new_version"]
        return {"success": True}

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        params = body["sampling_params"]
        count = params["max_tokens"]
        reason = "length"
        if TOKEN in params.get("stop_token_ids", ()):
            count, reason = 1, "stop"
        listed = params.get("logprob_token_ids") or [
            token for token in range(100) if token != TOKEN
        ]
        entries = [{"token_id": TOKEN, "logprob": -1.0, "rank": 1}]
        entries += [{"token_id": token, "logprob": -2.0, "rank": 2} for token in listed]
        entries = entries[: max(params["logprobs"], 1)]
        content = [{**entries[0], "top_logprobs": entries} for _ in range(count)]
        prompt = body["token_ids"]
        scored = [None, *({str(token): {"logprob": -3.0}} for token in prompt[1:])]
        choice = {
            "index": 0,
            "finish_reason": reason,
            "token_ids": [TOKEN] * count,
            "weight_versions": [{"version": self.weights, "start": 0, "end": count}],
            "logprobs": {"content": content},
        }
        return {
            "choices": [choice],
            "prompt_logprobs": scored if "prompt_logprobs" in params else None,
        }
