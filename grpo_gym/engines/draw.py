"""Drawing one token per lane from its logits, by the lane's own uniform number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.engines.base import Sampling

HEAD = 1024
"""Most probable tokens among which a cut is looked for first."""


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
    """Log-probabilities after top-k, top-p and min-p, normalised; ties go to the lower id.

    Sorting a large vocabulary costs more than the rest of the step, so that the most probable tokens are
    looked at alone, and all of them only in rows where the cut may lie further down.
    """
    vocabulary = logprobs.shape[1]
    kept, enough = _cut(logprobs, samplings, min(HEAD, vocabulary))
    rest = torch.nonzero(~enough)[:, 0].tolist() if vocabulary > HEAD else []
    if rest:
        kept[rest], _ = _cut(logprobs[rest], [samplings[i] for i in rest], vocabulary)
    return kept


def _cut(logprobs: Tensor, samplings: Sequence[Sampling], width: int) -> tuple[Tensor, Tensor]:
    """The same while looking at `width` tokens of each row, and (R,) in which rows that is enough."""
    vocabulary = logprobs.shape[1]
    if width == vocabulary:
        ordered, order = logprobs.sort(stable=True, descending=True)
    else:
        # In the order of their ids first, so that the stable sort gives ties to the lower one.
        seen = logprobs.topk(width, sorted=False).indices.sort().values
        ordered, places = logprobs.gather(1, seen).sort(stable=True, descending=True)
        order = seen.gather(1, places)

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=ordered.dtype, device=ordered.device).unsqueeze(1)

    rank = torch.arange(width, device=ordered.device)
    top_k = column([s.top_k or vocabulary for s in samplings])
    keep = rank < top_k
    probs = ordered.exp() * keep
    # Where top-k leaves all tokens in, those out of sight count, too, and they add up to 1.
    total = torch.where(top_k < vocabulary, probs.sum(-1, keepdim=True), 1.0)
    probs = probs / total
    # A token stays if those before it do not reach top_p yet; the first always stays.
    before = probs.cumsum(-1) - probs
    keep &= (before < column([s.top_p for s in samplings])) | (rank == 0)
    keep &= probs >= column([s.min_p for s in samplings]) * probs[:, :1]
    kept = ordered.masked_fill(~keep, -torch.inf).log_softmax(-1)
    out = torch.full_like(logprobs, -torch.inf).scatter_(1, order, kept)
    # What is as probable as the last in sight may be out of sight.
    last = (keep & (ordered == ordered[:, -1:])).any(-1)
    enough = ~last & ((top_k <= width) | (top_k == vocabulary))[:, 0]
    return out, enough
