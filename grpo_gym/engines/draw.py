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


@dataclass(frozen=True)
class Settings:
    """The settings of R lanes, side by side.

    Attributes:
        temperatures: (R, 1), or None if all are 1.
        greedy: (R, 1) which lanes take the most probable token, or None if none does.
        cut: indices and settings of the lanes that cut off improbable tokens.
        top: most probable tokens to report.
    """

    temperatures: Tensor | None
    greedy: Tensor | None
    cut: tuple[tuple[int, Sampling], ...]
    top: int

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> "Settings":
        """Put the lanes' settings together."""
        temperatures = torch.tensor([s.temperature for s in samplings], device=device).unsqueeze(1)
        greedy = temperatures == 0
        temperatures = temperatures.masked_fill(greedy, 1)
        return cls(
            temperatures=None if bool((temperatures == 1).all()) else temperatures,
            greedy=greedy if bool(greedy.any()) else None,
            cut=tuple(
                (i, s) for i, s in enumerate(samplings) if s.temperature and not s.full_support
            ),
            top=max(s.top_logprobs for s in samplings),
        )


def draw(logits: Tensor, settings: Settings, uniforms: Sequence[float]) -> Drawn:
    """Draw by inverting the cumulative distribution: a lane's token depends on its own row alone.

    The temperature is applied first, then top-k, top-p of what is left, and min-p; what remains is
    normalised again. Greedy lanes take the most probable token and report its log-probability at
    temperature 1.

    Args:
        logits: (R, V) of any float type.
        settings: of the R lanes.
        uniforms: R numbers in [0, 1).

    Raises:
        FloatingPointError: A row has a logit that is nan or infinite, so it has no distribution.
    """
    logprobs = distribution(logits, settings)
    weights = logprobs.exp().cumsum_(-1)
    total = weights[:, -1:]
    point = torch.tensor(uniforms, dtype=weights.dtype, device=weights.device).unsqueeze(1) * total
    # Rounding may lift the product to the total itself, beyond the last token that has a chance.
    point = torch.minimum(point, total.nextafter(torch.zeros_like(total)))
    ids = torch.searchsorted(weights, point, right=True).clamp_(max=logits.shape[1] - 1)
    if settings.greedy is not None:
        ids = torch.where(settings.greedy, logprobs.argmax(-1, keepdim=True), ids)
    chosen, totals = torch.cat([logprobs.gather(1, ids), total], 1).T.tolist()
    # A nan or an infinite logit anywhere in a row makes its total nan.
    if not all(0 < row < 2 for row in totals):
        raise FloatingPointError("the model's logits are not finite: its weights have diverged")
    top = logprobs.topk(min(settings.top, logits.shape[1])) if settings.top else None
    return Drawn(
        ids=ids.squeeze(1).tolist(),
        logprobs=chosen,
        top_ids=top.indices.tolist() if top else None,
        top_logprobs=top.values.tolist() if top else None,
    )


def distribution(logits: Tensor, settings: Settings) -> Tensor:
    """(R, V) float32 log-probabilities that the lanes draw from; -inf on tokens cut off."""
    logits = logits.float()
    if settings.temperatures is not None:
        logits = (logits - logits.amax(-1, keepdim=True)) / settings.temperatures
    logprobs = logits.log_softmax(-1)
    if settings.cut:
        rows = torch.tensor([row for row, _ in settings.cut], device=logits.device)
        kept = truncated(logprobs[rows], [sampling for _, sampling in settings.cut])
        logprobs = logprobs.index_copy(0, rows, kept)
    return logprobs


def truncated(logprobs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Log-probabilities after top-k, top-p and min-p, normalised; ties go to the lower id."""
    vocabulary = logprobs.shape[1]
    ordered, order = logprobs.sort(stable=True, dim=-1, descending=True)

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
