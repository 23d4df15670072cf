"""What vLLM's server is asked, and what it answers: JSON that is believed only as far as it was checked."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_gym.engines.base import Request
from grpo_gym.engines.http import ServerError
from grpo_gym.types import Completion, FloatArray

_NO_LOGPROB = -9999.0
"""What vLLM's server writes for minus infinity, and for what is not a number."""


def generation(request: Request, context_length: int, vocabulary: int) -> dict[str, Any]:
    """The body that asks for a completion; the seed alone decides its draws."""
    sampling = request.sampling
    room = context_length - len(request.prompt_ids)
    return {
        "token_ids": list(request.prompt_ids),
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_tokens": min(sampling.max_tokens, room),
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "seed": request.seed % 2**63,
            # One more than asked for: the sampled token takes the first place, wherever it ranks.
            "logprobs": min(sampling.top_logprobs + 1, vocabulary) if sampling.top_logprobs else 0,
            "ignore_eos": True,  # what ends a turn is in the request
            "detokenize": bool(sampling.stop),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "include_stop_str_in_output": True,
        },
    }


def scoring(sequence: Sequence[int]) -> dict[str, Any]:
    """The body that asks for the log-probs of a sequence's tokens but the first."""
    # The last token would not fit into a prompt of the context's length.
    *prompt, last = map(int, sequence)
    return {
        "token_ids": prompt,
        "sampling_params": {
            "max_tokens": 1,
            "ignore_eos": True,
            "seed": 0,
            "prompt_logprobs": 0,
            # The answer has as many entries as ids are listed, and the sampled token takes one of them.
            "logprob_token_ids": [last, 1 if last == 0 else 0],
            "logprobs": 2,
            "detokenize": False,
        },
    }


def completion(
    answer: Any, request: Request, limit: int, vocabulary: int, weights: str, version: int
) -> Completion:
    """A completion from the server's answer.

    Args:
        answer: the JSON.
        request: what was asked for.
        limit: most tokens that the request has room for.
        vocabulary: number of tokens there are.
        weights: the server's name of the weights that must have sampled every token.
        version: our number of them.

    Raises:
        ServerError: The answer is not one to the request, or other weights sampled.
    """
    choice = _choice(answer)
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise ServerError(f"the server ended a request with the reason {str(reason)[:40]!r}")
    ids, logprobs, tops = _sampled(choice, vocabulary)
    sampling = request.sampling
    cut = len(ids) == limit if reason == "length" else ids[-1] in sampling.stop_token_ids
    if len(ids) > limit or not (cut or (reason == "stop" and sampling.stop)):
        raise _nonsense(f"{len(ids)} of at most {limit} tokens with the reason {reason!r}")
    _check_weights(choice, weights, len(ids))
    count = min(sampling.top_logprobs, vocabulary)
    top = [_best(at, count, vocabulary) for at in tops] if count else None
    return Completion(
        token_ids=np.array(ids),
        logprobs=np.minimum(logprobs, 0.0),
        finish_reason=reason,
        version=version,
        top_ids=None if top is None else np.array([[token for token, _ in at] for at in top]),
        top_logprobs=None if top is None else np.array([[value for _, value in at] for at in top]),
    )


def scores(answer: Any, sequence: Sequence[int]) -> FloatArray:
    """Log-probs of a sequence's tokens but the first, from the server's answer to `scoring`.

    Raises:
        ServerError: The answer is not one to the request.
    """
    choice = _choice(answer)
    *prompt, last = map(int, sequence)
    rows = answer.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt):
        raise _nonsense("prompt_logprobs")
    found = [_at(row, str(token)) for row, token in zip(rows[1:], prompt[1:], strict=True)]
    entries = _content(choice, 1)[0].get("top_logprobs")
    final = [at for at in _dicts(entries) if at.get("token_id") == last]
    if not final:
        raise _nonsense("the log-prob of the last token")
    return np.array([*found, _logprob(final[0])])


def _choice(answer: Any) -> dict[str, Any]:
    choices = _dicts(answer.get("choices") if isinstance(answer, dict) else None)
    if len(choices) != 1:
        raise _nonsense("choices")
    return choices[0]


def _sampled(
    choice: dict[str, Any], vocabulary: int
) -> tuple[list[int], list[float], list[list[dict[str, Any]]]]:
    """Sampled ids, the log-prob of each, and the entries of the most probable tokens beside it."""
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(_is_id(i, vocabulary) for i in ids):
        raise _nonsense("token_ids")
    content = _content(choice, len(ids))
    if [at.get("token_id") for at in content] != ids:
        raise _nonsense("log-probs of other tokens than those sampled")
    return ids, [_logprob(at) for at in content], [_dicts(at.get("top_logprobs")) for at in content]


def _content(choice: dict[str, Any], length: int) -> list[dict[str, Any]]:
    """The entries of the sampled tokens, one for each."""
    logprobs = choice.get("logprobs")
    content = _dicts(logprobs.get("content") if isinstance(logprobs, dict) else None)
    if len(content) != length:
        raise _nonsense(f"log-probs of {len(content)} tokens instead of {length}")
    return content


def _best(entries: list[dict[str, Any]], count: int, vocabulary: int) -> list[tuple[int, float]]:
    """The `count` most probable tokens and their log-probs."""
    found = {}
    for at in entries:
        token, value = at.get("token_id"), at.get("logprob")
        if not _is_id(token, vocabulary) or not _is_number(value):
            raise _nonsense("top_logprobs")
        found[token] = -math.inf if value <= _NO_LOGPROB else min(float(value), 0.0)
    if len(found) < count:
        raise _nonsense(f"{len(found)} most probable tokens instead of {count}")
    return sorted(found.items(), key=lambda pair: -pair[1])[:count]


def _check_weights(choice: dict[str, Any], weights: str, length: int) -> None:
    """Prove that one policy sampled all tokens, and that it is the one that was loaded."""
    spans = _dicts(choice.get("weight_versions"))
    if spans != [{"version": weights, "start": 0, "end": length}]:
        names = [str(span.get("version"))[:60] for span in spans]
        raise ServerError(
            f"the server sampled with the weights {names} instead of {weights!r}: it was started anew, "
            "or somebody else loads weights into it"
        )


def _at(row: Any, token: str) -> float:
    entry = row.get(token) if isinstance(row, dict) else None
    if not isinstance(entry, dict):
        raise _nonsense("prompt_logprobs")
    return _logprob(entry)


def _logprob(entry: dict[str, Any]) -> float:
    value = entry.get("logprob")
    if not _is_number(value) or not _NO_LOGPROB < value < 1e-3:
        raise _nonsense(f"a log-prob of {str(value)[:40]}")
    return float(value)


def _dicts(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return []
    return value


def _is_id(value: Any, vocabulary: int) -> bool:
    return type(value) is int and 0 <= value < vocabulary


def _is_number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (
        type(value) is int and abs(value) < 2**53
    )


def _nonsense(what: str) -> ServerError:
    return ServerError(f"the server's answer makes no sense: {what}")
