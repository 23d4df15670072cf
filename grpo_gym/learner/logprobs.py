"""Log-probabilities of chosen tokens from hidden states, without ever holding all the logits.

For N positions and a vocabulary of V the logits are N*V numbers, often more than everything else in
the update. Here they are formed a tile of rows at a time. The probabilities are kept for the
backward pass only while N*V is small; otherwise the backward pass forms each tile again.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TILE_ELEMENTS = 2**21
"""Most logits formed at once (8 MiB in float32)."""

SAVED_ELEMENTS = 2**25
"""Most probabilities kept from the forward to the backward pass (128 MiB in float32)."""


@dataclass(frozen=True)
class TokenScores:
    """What a policy says about chosen tokens.

    Attributes:
        logprobs: (N,) log-probability of each target.
        entropy: (N,) entropy in nats of the whole distribution; None if it was not asked for.
        top_logprobs: (N, K) log-probabilities of given tokens, without gradient; None if none were
            given.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    top_logprobs: Tensor | None = None


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    entropy: bool = False,
    top_ids: Tensor | None = None,
    tile_elements: int = TILE_ELEMENTS,
    saved_elements: int = SAVED_ELEMENTS,
) -> TokenScores:
    """Score `targets` under softmax((hidden weight^T + bias) / temperature).

    Everything is computed in float32, or in float64 if `hidden` is float64, whatever the dtype of
    the inputs and whether or not autocast is on. Gradients flow from `logprobs` and `entropy` to
    `hidden`, `weight` and `bias`, and are exact.

    Args:
        hidden: (N, H) hidden state that predicts each target.
        weight: (V, H) output embedding.
        targets: (N,) int64 ids to score.
        temperature: divides the logits; positive.
        bias: (V,) added to the logits.
        entropy: also return the entropy.
        top_ids: (N, K) int64 ids to score as well, without gradient.
        tile_elements: most logits formed at once (one row is always formed whole).
        saved_elements: most probabilities kept for the backward pass.

    Returns:
        Scores in float32 or float64.

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"log-probs need a temperature above 0, got {temperature}")
    logprobs, entropies, top = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, entropy, top_ids, tile_elements, saved_elements
    )
    return TokenScores(
        logprobs, entropies if entropy else None, top if top_ids is not None else None
    )


def _tiles(rows: int, columns: int, elements: int) -> list[slice]:
    size = max(1, elements // max(1, columns))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _shifted_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, out: Tensor
) -> Tensor:
    """(n, V) logits over the temperature, less each row's maximum, written to `out`."""
    if bias is None:
        torch.mm(hidden, weight.t(), out=out)
    else:
        torch.addmm(bias, hidden, weight.t(), out=out)
    if temperature != 1.0:
        out.div_(temperature)
    return out.sub_(out.amax(-1, keepdim=True))


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        top_ids: Tensor | None,
        tile_elements: int,
        saved_elements: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        rows, columns = len(hidden), len(weight)
        needed = any(ctx.needs_input_grad[:3])
        keep = needed and rows * columns <= saved_elements
        tiles = _tiles(rows, columns, tile_elements)
        widest = tiles[0].stop if tiles else 0
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(dtype)
            offset = None if bias is None else bias.to(dtype)
            buffer = hidden.new_empty((rows if keep else widest, columns), dtype=dtype)
            scratch = hidden.new_empty((widest, columns), dtype=dtype)
            logprobs = hidden.new_zeros(rows, dtype=dtype)
            entropies = hidden.new_zeros(rows if entropy else 0, dtype=dtype)
            shape = (0, 0) if top_ids is None else tuple(top_ids.shape)
            top = hidden.new_zeros(shape, dtype=dtype)
            for tile in tiles:
                size = tile.stop - tile.start
                probs = buffer[tile] if keep else buffer[:size]
                logits = _shifted_logits(
                    hidden[tile].to(dtype), head, offset, temperature, scratch[:size]
                )
                torch.exp(logits, out=probs)
                total = probs.sum(-1)
                log_total = total.log()
                picked = logits.gather(1, targets[tile, None])[:, 0]
                logprobs[tile] = picked - log_total
                if top_ids is not None:
                    top[tile] = logits.gather(1, top_ids[tile]) - log_total[:, None]
                if entropy:  # log Z - sum p z; a logit of -inf counts 0
                    entropies[tile] = log_total - _dot(probs, logits) / total
                if keep:
                    probs.div_(total[:, None])
        if needed:
            saved = (hidden, weight, bias, targets, entropies if entropy else None)
            ctx.save_for_backward(*saved, buffer if keep else None)
            ctx.temperature, ctx.tile_elements, ctx.dtype = temperature, tile_elements, dtype
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(top)
        return logprobs, entropies, top

    @staticmethod
    def backward(
        ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, kept = ctx.saved_tensors
        if entropies is None:
            d_entropy = None
        want_hidden, want_weight, want_bias = ctx.needs_input_grad[:3]
        dtype = ctx.dtype
        rows, columns = len(hidden), len(weight)
        if d_logprobs is None and d_entropy is None:
            return (None,) * 9
        d_hidden = torch.zeros_like(hidden, dtype=dtype) if want_hidden else None
        d_weight = torch.zeros_like(weight, dtype=dtype) if want_weight else None
        d_bias = torch.zeros_like(bias, dtype=dtype) if want_bias else None
        tiles = _tiles(rows, columns, ctx.tile_elements)
        widest = tiles[0].stop if tiles else 0
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(dtype)
            offset = None if bias is None else bias.to(dtype)
            scratch = hidden.new_empty((widest, columns), dtype=dtype)
            for tile in tiles:
                grad = scratch[: tile.stop - tile.start]
                states = hidden[tile].to(dtype)
                if kept is None:
                    _shifted_logits(states, head, offset, ctx.temperature, grad).exp_()
                    probs = grad.div_(grad.sum(-1, keepdim=True))
                else:
                    probs = kept[tile]
                _d_logits(
                    grad,
                    probs,
                    targets[tile],
                    None if d_logprobs is None else d_logprobs[tile],
                    None if d_entropy is None else (d_entropy[tile], entropies[tile]),
                )
                if ctx.temperature != 1.0:
                    grad.div_(ctx.temperature)
                if d_hidden is not None:
                    torch.mm(grad, head, out=d_hidden[tile])
                if d_weight is not None:
                    d_weight.addmm_(grad.t(), states)
                if d_bias is not None:
                    d_bias.add_(grad.sum(0))
        return (
            None if d_hidden is None else d_hidden.to(hidden.dtype),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            *(None,) * 6,
        )


def _d_logits(
    grad: Tensor,
    probs: Tensor,
    targets: Tensor,
    d_logprobs: Tensor | None,
    d_entropy: tuple[Tensor, Tensor] | None,
) -> None:
    """Write to `grad` (it may be `probs` itself) the gradient of the logits over the temperature.

    d log p_y / d z = onehot(y) - p, and dH / d z = -p (log p + H).
    """
    if d_entropy is None:
        assert d_logprobs is not None
        torch.mul(probs, -d_logprobs[:, None], out=grad)
    else:
        upstream, entropy = d_entropy
        slope = torch.xlogy(probs, probs).addcmul_(probs, entropy[:, None])
        slope.mul_(upstream[:, None]).neg_()
        if d_logprobs is not None:
            slope.addcmul_(probs, d_logprobs[:, None], value=-1)
        grad.copy_(slope)
    if d_logprobs is not None:
        grad.scatter_add_(1, targets[:, None], d_logprobs[:, None])


def _dot(probs: Tensor, logits: Tensor) -> Tensor:
    """(n,) sum of probs * logits, where a probability of 0 counts 0."""
    return torch.where(probs > 0, probs * logits, 0.0).sum(-1)
