"""What vLLM's server is asked, and what it answers: JSON that is believed only as far as it was checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

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
    answer: Any, request: Request, limit: int, vocabulary: int, versions: Mapping[str, int]
) -> Completion:
    """A completion from the server's answer.

    Args:
        answer: the JSON.
        request: what was asked for.
        limit: most tokens that the request has room for.
        vocabulary: number of tokens there are.
        versions: the server's names of the weights that may have sampled tokens, in the order in which
            they were loaded, to our numbers of them.

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
    sampled_by = _versions(choice, versions, len(ids))
    count = min(sampling.top_logprobs, vocabulary)
    top = [_best(at, count, vocabulary) for at in tops] if count else None
    return Completion(
        token_ids=np.array(ids),
        logprobs=np.minimum(logprobs, 0.0),
        finish_reason=reason,
        version=sampled_by[-1],
        versions=np.array(sampled_by) if len(set(sampled_by)) > 1 else None,
        top_ids=None if top is None else np.array([[token for token, _ in at] for at in top]),
        top_logprobs=None if top is None else np.array([[value for _, value in at] for at in top]),
    )


def scores(answer: Any, sequence: Sequence[int], versions: Mapping[str, int]) -> FloatArray:
    """Log-probs of a sequence's tokens but the first, from the server's answer to `scoring`.

    Args:
        answer: the JSON.
        sequence: what was asked for.
        versions: as for `completion`.

    Raises:
        ServerError: The answer is not one to the request, or other weights scored.
    """
    choice = _choice(answer)
    _versions(choice, versions, 1)
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


def _versions(choice: dict[str, Any], versions: Mapping[str, int], length: int) -> list[int]:
    """The version that sampled each token: spans of names that we gave, one after the other."""
    found: list[int] = []
    left = list(versions)
    for span in _dicts(choice.get("weight_versions")):
        name, start, end = (span.get(field) for field in ("version", "start", "end"))
        if name not in left:
            raise ServerError(
                f"the server answers with the weights {str(name)[:60]!r}, which are not those that were "
                "loaded: it was started anew, or somebody else loads weights into it"
            )
        if start != len(found) or type(end) is not int or not start < end <= length:
            raise _nonsense("weight_versions")
        left = left[left.index(name) + 1 :]
        found += [versions[name]] * (end - start)
    if len(found) != length:
        raise _nonsense("weight_versions")
    return found


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


def _is_id(value: Any, vocabulary: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < vocabulary


def _is_number(value: Any) -> TypeGuard[float]:
    return (type(value) is float and math.isfinite(value)) or (
        type(value) is int and abs(value) < 2**53
    )


def _nonsense(what: str) -> ServerError:
    return ServerError(f"the server's answer makes no sense: {what}")
