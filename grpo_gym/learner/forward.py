"""The policy's forward pass: only sampled tokens are scored, and a prompt is encoded once."""

import logging
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_gym.errors import UsageError
from grpo_gym.learner.logprobs import TokenScores, token_logprobs
from grpo_gym.learner.rows import Rows, pack

logger = logging.getLogger(__name__)


class Scorer(nn.Module):
    """A causal language model that scores the tokens of rows.

    The whole computation is one `forward`, so that a wrapper for data parallelism sees one call per
    backward pass. When it is built, short probes compare the two short cuts with the model's own
    computation; one that differs is switched off, and a warning is logged:

    - the prompt shared by neighbouring rows is encoded once, and its keys and values are expanded;
    - the output embedding is applied in tiles (`token_logprobs`). Models that change their final
    logits
      (soft caps, scales) fail this probe.

    Attributes:
        model: the causal language model; in eval mode, so that no dropout moves the ratio away from
            1.
        share_prompts: whether prompts are encoded once.
        recompute: whether activations are computed again in the backward pass, to save memory.
        tiled: whether the head is applied in tiles.
    """

    def __init__(
        self, model: PreTrainedModel, share_prompts: bool = True, recompute: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.recompute = recompute
        if recompute:
            _enable_recomputation(model)
        self.train()
        if _head(model) is None:
            raise UsageError(
                f"{type(model).__name__} has no output embedding: load it with AutoModelForCausalLM"
            )
        self.tiled = _head_is_linear(model)
        usable = share_prompts and self.tiled and not recompute
        self.share_prompts = usable and self._sharing_is_exact()

    def train(self, mode: bool = True) -> "Scorer":
        """Stay in eval mode whatever is asked."""
        del mode
        super().train(False)
        if self.recompute:
            # The layers alone: transformers recomputes only what is in training mode, while what
            # could drop out is below them and stays in eval mode.
            for module in self.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True
        return self

    def forward(
        self,
        rows: Rows,
        temperature: float = 1.0,
        entropy: bool = False,
        top_ids: Tensor | None = None,
    ) -> TokenScores:
        """Score the positions of `rows.mask`.

        Args:
            rows: b rows of up to T tokens.
            temperature: divides the logits.
            entropy: also give the entropies.
            top_ids: (b, T, K) more tokens to score at each position, without gradient.

        Returns:
            Scores of shape (b, T), and (b, T, K), in float32 or float64; 0 outside the mask.
        """
        mask = rows.mask
        targets = rows.tokens[mask]
        chosen = None if top_ids is None else top_ids[mask]
        if self.tiled:
            head = _head(self.model)
            shared = self.share_prompts and len(rows.counts) < len(rows.tokens)
            hidden = self._shared_hidden(rows) if shared else self._plain_hidden(rows)
            flat = token_logprobs(
                hidden, head.weight, targets, temperature, head.bias, entropy, chosen
            )
        else:
            flat = _score_logits(self._plain_logits(rows), targets, temperature, entropy, chosen)
        return TokenScores(
            _scatter(flat.logprobs, mask),
            None if flat.entropy is None else _scatter(flat.entropy, mask),
            None if flat.top_logprobs is None else _scatter(flat.top_logprobs, mask),
        )

    def _backbone(self, **inputs: Any) -> Any:
        return self.model.base_model(**inputs, return_dict=True)

    def _shared_hidden(self, rows: Rows) -> Tensor:
        """(M, H) hidden states that predict the M masked tokens, each prompt encoded once."""
        width = rows.prompts.shape[1]
        cache = DynamicCache(config=self.model.config)
        columns = torch.arange(width, device=rows.prompts.device)
        real = columns >= width - rows.prompt_lengths[:, None]
        ragged = not bool(real.all())
        out = self._backbone(
            input_ids=rows.prompts,
            attention_mask=real.long() if ragged else None,
            position_ids=(real.cumsum(1) - 1).clamp(min=0) if ragged else None,
            past_key_values=cache,
            use_cache=True,
        )
        first = _expand(out.last_hidden_state[:, -1:], rows.counts)
        inputs = rows.tokens[:, :-1]  # the last token predicts nothing
        if inputs.shape[1] == 0:
            return first[rows.mask]
        for layer in cache.layers:
            if not isinstance(layer, DynamicLayer):
                raise TypeError(f"a cache of {type(layer).__name__} cannot be expanded")
            layer.keys = _expand(cast(Tensor, layer.keys), rows.counts)
            layer.values = _expand(cast(Tensor, layer.values), rows.counts)
        lengths = _expand(rows.prompt_lengths, rows.counts)
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        attention = torch.cat([_expand(real, rows.counts), torch.ones_like(inputs).bool()], 1)
        out = self._backbone(
            input_ids=inputs,
            attention_mask=attention.long() if ragged else None,
            position_ids=lengths[:, None] + steps,
            past_key_values=cache,
            use_cache=True,
        )
        return torch.cat([first, out.last_hidden_state], 1)[rows.mask]

    def _plain_inputs(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """(b, L) whole rows, and the row and column of what predicts each masked token."""
        device = rows.tokens.device
        prompt_lengths = _expand(rows.prompt_lengths, rows.counts)
        prompts = _expand(rows.prompts, rows.counts)
        both = torch.cat([prompts, rows.tokens], 1)
        shift = prompts.shape[1] - prompt_lengths  # drops the padding on the left
        total = int((prompt_lengths + rows.lengths).max())
        columns = torch.arange(total, device=device) + shift[:, None]
        ids = both.gather(1, columns.clamp(max=both.shape[1] - 1))
        row, column = rows.mask.nonzero(as_tuple=True)
        return ids, row, column + prompt_lengths[row] - 1

    def _plain_hidden(self, rows: Rows) -> Tensor:
        """(M, H) as `_shared_hidden`, from whole rows, padded on the right as causality allows."""
        ids, row, column = self._plain_inputs(rows)
        return cast(
            Tensor, self._backbone(input_ids=ids, use_cache=False).last_hidden_state[row, column]
        )

    def _plain_logits(self, rows: Rows) -> Tensor:
        """(M, V) the model's own logits that predict the M masked tokens."""
        ids, row, column = self._plain_inputs(rows)
        return cast(Tensor, self.model(input_ids=ids, use_cache=False).logits[row, column])

    @torch.no_grad()
    def _sharing_is_exact(self) -> bool:
        """Compare the hidden states of the two paths on three short rows."""
        limit = min(101, len(_head(self.model).weight))
        ids = np.arange(40, dtype=np.int64) * 7 % limit
        rows = pack(
            [ids[:3], ids[:3], ids[3:8]],
            [ids[8:14], ids[14:18], ids[18:25]],
            [np.ones(6, np.bool_), np.ones(4, np.bool_), np.arange(7) % 3 != 1],
        )
        rows = rows.to(_head(self.model).weight.device)
        plain = self._plain_hidden(rows)
        try:
            shared = self._shared_hidden(rows)
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
            logger.warning("prompts are not shared: this model cannot do it (%s)", error)
            return False
        if _close(shared, plain):
            return True
        logger.warning("prompts are not shared: this model's cached computation differs")
        return False


def _head(model: PreTrainedModel) -> Any:
    return cast(Any, model).get_output_embeddings()


def _enable_recomputation(model: PreTrainedModel) -> None:
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    except ValueError as error:
        raise UsageError(
            f"{type(model).__name__} cannot recompute activations: "
            "set gradient_checkpointing to false"
        ) from error


@torch.no_grad()
def _head_is_linear(model: PreTrainedModel) -> bool:
    """Whether the logits are the output embedding times the backbone's last hidden state.

    The head is fed large numbers, where a soft cap shows, and what it was fed by the model is
    compared with what the backbone gives.
    """
    head = _head(model)
    if not isinstance(head, nn.Linear):
        logger.warning("the head is not tiled: it is a %s", type(head).__name__)
        return False
    ids = torch.arange(6, device=head.weight.device)[None] % len(head.weight)
    fed: list[Tensor] = []
    large: list[Tensor] = []

    def feed(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        fed.append(arguments[0])
        wave = torch.arange(arguments[0].numel(), dtype=torch.float32, device=arguments[0].device)
        large.append((100 * wave.sin()).reshape(arguments[0].shape).to(arguments[0].dtype))
        return (large[-1],)

    handle = head.register_forward_pre_hook(feed)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    hidden = model.base_model(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state
    if len(fed) == 1 and _close(fed[0], hidden) and _close(logits, head(large[0])):
        return True
    logger.warning("the head is not tiled: this model changes its hidden states or final logits")
    return False


def _close(actual: Tensor, expected: Tensor) -> bool:
    """Whether two tensors agree to what their dtype can tell, relative to their size."""
    if actual.shape != expected.shape:
        return False
    tolerance = 200 * torch.finfo(actual.dtype).eps
    scale = expected.abs().max().float().clamp(min=1e-6)
    return bool((actual - expected).abs().max().float() <= tolerance * scale)


def _expand(values: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Row i of `values` repeated counts[i] times; the gradient adds up in a fixed order."""
    if len(set(counts)) == 1:
        shape = values.shape
        return values[:, None].expand(-1, counts[0], *shape[1:]).reshape(-1, *shape[1:])
    return torch.cat(
        [row.expand(count, *row.shape) for row, count in zip(values, counts, strict=True)]
    )


def _scatter(flat: Tensor, mask: Tensor) -> Tensor:
    """(b, T, ...) with `flat` (M, ...) where `mask` holds and 0 elsewhere."""
    out = flat.new_zeros(*mask.shape, *flat.shape[1:])
    return out.index_put((*mask.nonzero(as_tuple=True),), flat)


def _score_logits(
    logits: Tensor, targets: Tensor, temperature: float, entropy: bool, top_ids: Tensor | None
) -> TokenScores:
    """`token_logprobs` for logits (M, V) that are there already."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    full = torch.log_softmax(logits / temperature, -1)
    probs = full.exp()
    return TokenScores(
        full.gather(1, targets[:, None])[:, 0],
        -torch.where(probs > 0, probs * full, 0.0).sum(-1) if entropy else None,
        None if top_ids is None else full.detach().gather(1, top_ids),
    )


def widen(scores: TokenScores, width: int) -> TokenScores:
    """Scores of (b, T) as (b, width), padded with 0 on the right."""

    def pad(values: Tensor | None) -> Tensor | None:
        if values is None or values.shape[1] == width:
            return values
        out = values.new_zeros(values.shape[0], width - values.shape[1], *values.shape[2:])
        return torch.cat([values, out], 1)

    return replace(
        scores,
        logprobs=cast(Tensor, pad(scores.logprobs)),
        entropy=pad(scores.entropy),
        top_logprobs=pad(scores.top_logprobs),
    )
