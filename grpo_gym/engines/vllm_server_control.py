"""What an engine tells a vLLM server beside its requests: which weights to take, and when to pause."""

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_gym.engines.http import HttpClient, ServerError
from grpo_gym.engines.vllm_server_worker import FOLDER_VARIABLE, PROTOCOL, shapes
from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    import torch

_DESCRIBE_S = 60.0
_CONTROL_S = 600.0
_RIGHTLY = "start it by: grpo-gym serve MODEL"


@dataclass(frozen=True)
class Description:
    """What the server says of itself.

    Attributes:
        context_length: most tokens of prompt and completion.
        vocabulary: number of tokens.
        folder: through which it takes weights.
        dtype: of its weights.
        head_dtype: in which logits are computed.
        logprobs_mode: which log-probs it reports.
        model: the fields of its model's configuration that decide shapes.
    """

    context_length: int
    vocabulary: int
    folder: Path
    dtype: str
    head_dtype: str
    logprobs_mode: str
    model: Mapping[str, Any]


class Control:
    """The side of a vLLM server that only its owner uses; started by `grpo-gym serve`.

    Args:
        client: of the server.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def describe(self) -> Description:
        """Ask the server what it is.

        Raises:
            ServerError: It cannot be reached, or was not started as it must be.
        """
        try:
            workers = self._rpc("grpo_gym_describe", timeout_s=_DESCRIBE_S)
        except ServerError as error:
            if error.status in (404, 405, 501):
                raise ServerError(
                    f"{self._client.url} is no vLLM server that takes weights; {_RIGHTLY}",
                    error.status,
                ) from None
            if error.status == 500 and "no attribute" in str(error):
                raise ServerError(
                    f"{self._client.url} was started without our worker extension; {_RIGHTLY}", 500
                ) from None
            raise
        said = workers[0]
        if said.get("protocol") != PROTOCOL:
            raise ServerError(
                f"{self._client.url} runs another version of grpo-gym; start it with the same one"
            )
        try:
            return Description(
                context_length=int(said["context_length"]),
                vocabulary=int(said["vocabulary"]),
                folder=Path(str(said["folder"])),
                dtype=str(said["dtype"]),
                head_dtype=str(said["head_dtype"]),
                logprobs_mode=str(said["logprobs_mode"]),
                model=dict(said["model"]),
            )
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ServerError(f"{self._client.url} describes itself badly: {error}") from None

    def load(
        self,
        weights: Sequence[tuple[str, "torch.Tensor"]],
        name: str,
        folder: Path,
        *,
        keep: bool,
    ) -> None:
        """Have the server take weights; whatever was cached under others is dropped.

        Args:
            weights: under the names of the model's checkpoint.
            name: of the weights; the server gives it to every token that they sample.
            folder: that the server looks into.
            keep: whether requests in flight stop where they are, and go on with the new weights;
                otherwise the server first finishes whatever it is still at.

        Raises:
            UsageError: The folder cannot be written to, or the server does not find the weights there.
            ServerError: The server fails.
        """
        with _written(weights, folder) as file, self._paused("keep" if keep else "wait"):
            # The name is new before the weights are: should they get lost half-way, the old one is gone.
            self._post("/update_weight_version", {"new_version": name})
            for worker in self._rpc("grpo_gym_load", file):
                if worker.get("loaded") != file:
                    reason = self._client.hide(str(worker.get("error")))[:300]
                    raise UsageError(
                        f"{reason}: weights travel through a folder that this machine and the server's "
                        f"both see; give the server one by {FOLDER_VARIABLE}"
                    )
            done = self._post("/reset_prefix_cache?reset_running_requests=true")
            if done != {"success": True}:
                raise ServerError("the server kept a cache of the old weights")

    @contextlib.contextmanager
    def scaled(self, factor: float) -> Iterator[None]:
        """Scale all logits meanwhile."""
        if factor == 1:
            yield
            return
        self._rpc("grpo_gym_scale_logits", factor)
        try:
            yield
        finally:
            self.reset_scale()

    def reset_scale(self) -> None:
        """Scale logits as the model says, whatever somebody left behind."""
        self._rpc("grpo_gym_scale_logits", 1.0)

    @contextlib.contextmanager
    def _paused(self, mode: str) -> Iterator[None]:
        """The server takes up nothing new meanwhile."""
        try:
            self._post(f"/pause?mode={mode}")
            yield
        except BaseException:
            with contextlib.suppress(ServerError):
                self._post("/resume")
            raise
        self._post("/resume")

    def _post(self, path: str, body: Any = None, timeout_s: float = _CONTROL_S) -> Any:
        # Each of these sets a state, so that twice is as good as once.
        return self._client.request("POST", path, body or {}, timeout_s=timeout_s)

    def _rpc(self, method: str, *args: Any, timeout_s: float = _CONTROL_S) -> list[dict[str, Any]]:
        """Call a method of our extension in every worker of the server."""
        body = {"method": method, "args": list(args)}
        answer = self._post("/collective_rpc", body, timeout_s)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or not results:
            raise ServerError(f"{self._client.url} answers {method} with no results")
        return [result if isinstance(result, dict) else {} for result in results]


def check_fits(said: Description, config: Any, dtype: str | None, float32_head: bool) -> None:
    """Refuse a server whose model or settings are not those of the policy.

    Args:
        said: what the server is.
        config: of the policy's model.
        dtype: that the weights must have; None: any.
        float32_head: whether logits must be computed in float32.

    Raises:
        UsageError: Names the first that differs.
    """
    for name, ours in shapes(config).items():
        theirs = said.model.get(name)
        if ours != theirs and None not in (ours, theirs):
            raise UsageError(
                f"the server's model has {name} {str(theirs)[:40]}, the policy {ours}: serve the same model"
            )
    if said.logprobs_mode != "processed_logprobs":
        raise UsageError(
            f"the server reports {said.logprobs_mode[:40]}, not those of the distribution sampled from; "
            f"{_RIGHTLY}, or give it --logprobs-mode processed_logprobs"
        )
    if dtype is not None and said.dtype != dtype:
        raise UsageError(
            f"the server's weights are {said.dtype[:40]}, but the learner's precision needs {dtype}: "
            f"serve with --dtype {dtype}, or train with another --precision"
        )
    if float32_head and said.head_dtype != "float32":
        raise UsageError(
            f"the server computes logits in {said.head_dtype[:40]}, but fp32_lm_head needs float32: serve "
            """with --hf-overrides '{"head_dtype": "float32"}'"""
        )
    if said.context_length < 2 or said.vocabulary != config.get_text_config().vocab_size:
        raise ServerError("the server describes itself badly")


@contextlib.contextmanager
def _written(weights: Sequence[tuple[str, "torch.Tensor"]], folder: Path) -> Iterator[str]:
    """The name of a file in the folder that has the weights; it is whole or not there, and goes away."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    there = False
    with contextlib.suppress(OSError):  # such as where one may not look
        there = folder.is_dir()
    if not there:
        raise UsageError(
            f"the server takes weights from {folder}, which is not on this machine; give the server "
            f"a folder that both see by {FOLDER_VARIABLE}"
        )
    tensors: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in weights:  # a tied weight is written once, as in a checkpoint
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in seen:
            tensors[name] = tensor.detach().cpu().contiguous()
        seen.add(key)
    path = folder / f"weights-{uuid.uuid4().hex}.safetensors"
    part = path.with_suffix(".part")
    try:
        try:
            save_file(tensors, part)
            part.replace(path)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"weights cannot be written to {folder}: {error}") from error
        yield path.name
    finally:
        for each in (part, path):
            with contextlib.suppress(OSError):  # where nothing can be written, nothing is removed
                each.unlink()
