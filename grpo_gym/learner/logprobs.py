"""Log-probabilities of chosen tokens from hidden states, without ever holding all the logits.

For N positions and a vocabulary of V the logits are N*V numbers, often more than everything else in
the update. Here they are formed in tiles of some rows and some columns, and the sum over the vocabulary
is carried from tile to tile. They are kept for the backward pass only while N*V is small; otherwise the
backward pass forms each tile again.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from grpo_gym.learner.scores import TokenScores
from grpo_gym.learner.softmax_sums import Sums

TILE_ELEMENTS = {"cpu": 2**21}
"""Most logits formed at once on a kind of device (8 MiB in float32): about what its cache holds."""

OTHER_TILE_ELEMENTS = 2**26
"""The same elsewhere, where small tiles cost more in launches than they save."""

SAVED_ELEMENTS = 2**25
"""Most logits kept from the forward to the backward pass (128 MiB in float32)."""

TILE_ROWS = 1024
"""Rows of a tile where the vocabulary is large; the head's gradient is added to once a block of rows."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    entropy: bool = False,
    top_ids: Tensor | None = None,
    tile_elements: int | None = None,
    saved_elements: int = SAVED_ELEMENTS,
    softcap: float | None = None,
) -> TokenScores:
    """Score `targets` under softmax(z / temperature), z = hidden weight^T + bias.

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
        tile_elements: most logits formed at once; by default what suits the device.
        saved_elements: most logits kept for the backward pass.
        softcap: c, which turns z into c tanh(z / c); None leaves it.

    Returns:
        Scores in float32 or float64.

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"log-probs need a temperature above 0, got {temperature}")
    if tile_elements is None:
        tile_elements = TILE_ELEMENTS.get(hidden.device.type, OTHER_TILE_ELEMENTS)
    logprobs, entropies, top = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        bias,
        targets,
        temperature,
        entropy,
        top_ids,
        tile_elements,
        saved_elements,
        softcap,
    )
    return TokenScores(
        logprobs, entropies if entropy else None, top if top_ids is not None else None
    )


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _tiles(rows: int, columns: int, elements: int) -> tuple[list[slice], list[slice]]:
    """Blocks of rows and of columns; a block of each makes a tile."""
    height = max(1, min(rows, max(TILE_ROWS, elements // max(1, columns)), elements))
    width = max(1, min(columns, elements // height))
    return _blocks(rows, height), _blocks(columns, width)


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float,
    softcap: float | None,
    out: Tensor,
) -> None:
    """Write the (n, v) logits over the temperature to `out`."""
    if bias is None:
        torch.mm(hidden, weight.t(), out=out)
    else:
        torch.addmm(bias, hidden, weight.t(), out=out)
    if softcap is not None:
        out.div_(softcap).tanh_().mul_(softcap / temperature)
    elif temperature != 1.0:
        out.div_(temperature)


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
        softcap: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        rows, columns = len(hidden), len(weight)
        needed = any(ctx.needs_input_grad[:3])
        keep = needed and rows * columns <= saved_elements
        row_blocks, column_blocks = _tiles(rows, columns, tile_elements)
        wanted = targets[:, None] if top_ids is None else torch.cat([targets[:, None], top_ids], 1)
        with torch.autocast(hidden.device.type, enabled=False):
            states, head = hidden.to(dtype), weight.to(dtype)
            offset = None if bias is None else bias.to(dtype)
            picked = states.new_zeros(wanted.shape)
            log_z = states.new_zeros(rows)
            entropies = states.new_zeros(rows if entropy else 0)
            kept = states.new_empty(rows, columns) if keep else None
            scratch = (
                None if keep or not row_blocks else _scratch(states, row_blocks, column_blocks)
            )
            for r in row_blocks:
                sums = Sums(r.stop - r.start, states, entropy)
                for c in column_blocks:
                    logits = _view(kept, scratch, r, c)
                    _logits(states[r], head[c], _part(offset, c), temperature, softcap, logits)
                    sums.add(logits)
                    inside = (wanted[r] >= c.start) & (wanted[r] < c.stop)
                    found = logits.gather(1, (wanted[r] - c.start).clamp(0, c.stop - c.start - 1))
                    picked[r] = torch.where(inside, found, picked[r])
                log_z[r] = sums.log_z()
                if entropy:
                    entropies[r] = sums.entropy()
            picked -= log_z[:, None]
        if needed:
            ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropies, kept)
            ctx.temperature, ctx.softcap, ctx.tile_elements = temperature, softcap, tile_elements
        ctx.set_materialize_grads(False)
        top = picked[:, 1:].clone()
        ctx.mark_non_differentiable(top)
        return picked[:, 0].clone(), entropies, top

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        if d_logprobs is None and d_entropy is None:
            return (None,) * 10
        hidden, weight, bias, targets, log_z, entropies, kept = ctx.saved_tensors
        if len(entropies) == 0:
            d_entropy = None
        want_hidden, want_weight, want_bias = ctx.needs_input_grad[:3]
        row_blocks, column_blocks = _tiles(len(hidden), len(weight), ctx.tile_elements)
        with torch.autocast(hidden.device.type, enabled=False):
            states, head = hidden.to(log_z.dtype), weight.to(log_z.dtype)
            offset = None if bias is None else bias.to(log_z.dtype)
            d_hidden = torch.zeros_like(states) if want_hidden else None
            d_weight = torch.zeros_like(head) if want_weight else None
            d_bias = torch.zeros_like(cast(Tensor, offset)) if want_bias else None
            scratch = _scratch(states, row_blocks, column_blocks) if row_blocks else None
            for r in row_blocks:
                upstream = None if d_logprobs is None else d_logprobs[r] / ctx.temperature
                pull = None if d_entropy is None else d_entropy[r] / ctx.temperature
                for c in column_blocks:
                    grad = _view(None, scratch, r, c)
                    logits = grad if kept is None else kept[r, c]
                    if kept is None:
                        part = _part(offset, c)
                        _logits(states[r], head[c], part, ctx.temperature, ctx.softcap, logits)
                    slope = _slope(logits, ctx.temperature, ctx.softcap)
                    torch.sub(logits, log_z[r, None], out=grad)
                    _d_logits(grad, upstream, pull, entropies[r] if pull is not None else None)
                    if upstream is not None:
                        _add_targets(grad, targets[r], c, upstream)
                    if slope is not None:
                        grad.mul_(slope)
                    if d_hidden is not None:
                        d_hidden[r].addmm_(grad, head[c])
                    if d_weight is not None:
                        d_weight[c].addmm_(grad.t(), states[r])
                    if d_bias is not None:
                        d_bias[c].add_(grad.sum(0))
        return (
            None if d_hidden is None else d_hidden.to(hidden.dtype),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            *(None,) * 7,
        )


def _d_logits(
    logp: Tensor, d_logprobs: Tensor | None, d_entropy: Tensor | None, entropy: Tensor | None
) -> None:
    """Turn log-probs (n, v), in place, into the gradient of their logits, but for the targets.

    d log p_y / d z = onehot(y) - p, and dH / d z = -p (log p + H).
    """
    if d_entropy is None or entropy is None:
        assert d_logprobs is not None
        logp.exp_().mul_(-d_logprobs[:, None])
        return
    probs = logp.exp()
    logp.masked_fill_(probs == 0, 0.0)  # 0 * -inf would be nan
    logp.add_(entropy[:, None]).mul_(-d_entropy[:, None])
    if d_logprobs is not None:
        logp.sub_(d_logprobs[:, None])
    logp.mul_(probs)


def _add_targets(grad: Tensor, targets: Tensor, columns: slice, upstream: Tensor) -> None:
    """Add `upstream` (n,) where a row's target is among `columns`."""
    inside = (targets >= columns.start) & (targets < columns.stop)
    index = (targets - columns.start).clamp(0, columns.stop - columns.start - 1)
    grad.scatter_add_(1, index[:, None], torch.where(inside, upstream, 0.0)[:, None])


def _slope(logits: Tensor, temperature: float, softcap: float | None) -> Tensor | None:
    """Derivative of the soft cap where it gave `logits`: 1 - tanh^2; None without a cap."""
    return None if softcap is None else 1 - (logits * (temperature / softcap)).square()


def _part(bias: Tensor | None, columns: slice) -> Tensor | None:
    return None if bias is None else bias[columns]


def _scratch(like: Tensor, rows: list[slice], columns: list[slice]) -> Tensor:
    """Room for one tile."""
    return like.new_empty((rows[0].stop) * columns[0].stop)


def _view(kept: Tensor | None, scratch: Tensor | None, rows: slice, columns: slice) -> Tensor:
    """The (n, v) tile of what is kept, or room for it."""
    if kept is not None:
        return kept[rows, columns]
    assert scratch is not None
    height, width = rows.stop - rows.start, columns.stop - columns.start
    return scratch[: height * width].view(height, width)
