"""Drawing one token per lane from its logits, by the lane's own uniform number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.engines.base import Sampling


@dataclass(frozen=True)
class Drawn:
    """One token for each of R lanes.

    Attributes:
        ids: (R,) what was drawn.
        logprobs: (R,) log-probability of each under the distribution it was drawn from.
        top_ids: (R, K) most probable tokens, where any lane asked for some.
        top_logprobs: (R, K) their log-probabilities.
    """

    ids: list[int]
    logprobs: list[float]
    top_ids: list[list[int]] | None = None
    top_logprobs: list[list[float]] | None = None


def draw(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
    """Draw by inverting the cumulative distribution: a lane's token depends on its own row alone.

    The temperature is applied first, then top-k, top-p of what is left, and min-p; what remains is
    normalised again. Greedy lanes take the most probable token and report its log-probability at
    temperature 1.

    Args:
        logits: (R, V) of any float type.
        samplings: R settings.
        uniforms: R numbers in [0, 1).

    Raises:
        FloatingPointError: A row has a logit that is nan or infinite, so it has no distribution.
    """
    logprobs = distribution(logits, samplings)
    weights = logprobs.exp().cumsum(-1)
    total = weights[:, -1:]
    point = torch.tensor(uniforms, dtype=weights.dtype, device=weights.device).unsqueeze(1) * total
    # Rounding may lift the product to the total itself, beyond the last token that has a chance.
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(weights, point, right=True)
    greedy = [sampling.temperature == 0 for sampling in samplings]
    if any(greedy):
        chosen = torch.tensor(greedy, device=ids.device).unsqueeze(1)
        ids = torch.where(chosen, logprobs.argmax(-1, keepdim=True), ids)
    # A nan anywhere in a row makes its total nan.
    values = torch.cat([logprobs.gather(1, ids.clamp(max=logits.shape[1] - 1)), total], 1).tolist()
    if not all(0 < row_total < 2 for _, row_total in values):
        raise FloatingPointError("the model's logits are not finite: its weights have diverged")
    count = min(max(sampling.top_logprobs for sampling in samplings), logits.shape[1])
    top = logprobs.topk(count) if count else None
    return Drawn(
        ids=[int(i) for i in ids.squeeze(1).tolist()],
        logprobs=[value for value, _ in values],
        top_ids=top.indices.tolist() if top else None,
        top_logprobs=top.values.tolist() if top else None,
    )


def distribution(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """(R, V) float32 log-probabilities that the lanes draw from; -inf on tokens cut off."""
    logits = logits.float()
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    if any(temperature != 1 for temperature in temperatures):
        scale = torch.tensor(temperatures, device=logits.device).unsqueeze(1)
        logits = (logits - logits.amax(-1, keepdim=True)) / scale
    logprobs = logits.log_softmax(-1)
    cut = [i for i, s in enumerate(samplings) if s.temperature > 0 and not s.full_support]
    if cut:
        rows = torch.tensor(cut, device=logits.device)
        kept = truncated(logprobs[rows], [samplings[i] for i in cut])
        logprobs = logprobs.index_copy(0, rows, kept)
    return logprobs


def truncated(logprobs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Log-probabilities after top-k, top-p and min-p, normalised; ties go to the lower id."""
    vocabulary = logprobs.shape[1]
    ordered, order = logprobs.sort(-1, descending=True, stable=True)

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=ordered.dtype, device=ordered.device).unsqueeze(1)

    rank = torch.arange(vocabulary, device=ordered.device)
    keep = rank < column([s.top_k or vocabulary for s in samplings])
    probs = ordered.exp() * keep
    probs = probs / probs.sum(-1, keepdim=True)
    # A token stays if those before it do not reach top_p yet; the first always stays.
    before = probs.cumsum(-1) - probs
    keep &= (before < column([s.top_p for s in samplings])) | (rank == 0)
    keep &= probs >= column([s.min_p for s in samplings]) * probs[:, :1]
    kept = ordered.masked_fill(~keep, -torch.inf).log_softmax(-1)
    return torch.empty_like(kept).scatter_(1, order, kept)
