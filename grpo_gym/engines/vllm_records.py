"""Requests and answers: ours as vLLM says them, and vLLM's as ours."""

from typing import TYPE_CHECKING

import numpy as np

from grpo_gym.engines.base import Request
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput, SamplingParams

LOWEST_TEMPERATURE = 0.01
"""vLLM would raise a lower one to this without a word in the answer."""


def sampling_params(request: Request, room: int, vocabulary: int) -> "SamplingParams":
    """A request's sampling; the seed alone decides the draws.

    Args:
        request: what to sample.
        room: most tokens that the context leaves for a completion.
        vocabulary: number of tokens of the model.

    Raises:
        ValueError: vLLM has no such sampling.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    if 0 < sampling.temperature < LOWEST_TEMPERATURE:
        raise ValueError(
            f"temperature is {sampling.temperature}, but must be 0 (greedy) or at least "
            f"{LOWEST_TEMPERATURE}"
        )
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=min(sampling.max_tokens, room),
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        seed=request.seed % 2**63,
        logprobs=min(sampling.top_logprobs, vocabulary),
        flat_logprobs=True,
        ignore_eos=True,  # what ends a turn is in the request
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def scoring_params(last: int) -> "SamplingParams":
    """What gives the log-probs of a prompt, and of the token `last` after it."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=1,
        ignore_eos=True,
        seed=0,
        prompt_logprobs=0,
        logprob_token_ids=[last],
        logprobs=1,
        detokenize=False,
    )


def completion(sampled: "CompletionOutput", top_logprobs: int) -> Completion:
    """A finished request's tokens.

    Raises:
        RuntimeError: It ended for another reason than a stop or a limit.
    """
    reason = sampled.finish_reason
    if reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a request with the reason {reason!r}")
    # Of each position: the sampled token, then the most probable ones, of which there may be fewer.
    shape = (len(sampled.token_ids), -1)
    logprobs = np.minimum(np.array(sampled.logprobs.logprobs).reshape(shape), 0.0)
    ids = np.array(sampled.logprobs.token_ids).reshape(shape) if top_logprobs else None
    spans = [(int(span.version), span.end - span.start) for span in sampled.weight_versions]
    return Completion(
        token_ids=np.array(sampled.token_ids),
        logprobs=logprobs[:, 0],
        finish_reason="stop" if reason == "stop" else "length",
        version=spans[-1][0],
        versions=np.repeat(*np.transpose(spans)) if len(spans) > 1 else None,
        top_ids=None if ids is None else ids[:, 1:],
        top_logprobs=logprobs[:, 1:] if top_logprobs else None,
    )


def scores(output: "RequestOutput", last: int) -> FloatArray:
    """Log-probs of a prompt's tokens but the first, and of the token `last` after it."""
    ids = output.prompt_token_ids[1:]
    found = [at[token].logprob for at, token in zip(output.prompt_logprobs[1:], ids, strict=True)]
    return np.array([*found, output.outputs[0].logprobs[0][last].logprob])
