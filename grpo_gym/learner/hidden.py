"""Hidden states that predict the tokens to score: each prompt encoded once, or whole rows.

Both give (M, H) states and the row and column of the M tokens they predict. Rows of like length are
run together, so that little is computed on padding.
"""

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from grpo_gym.learner.batching import length_buckets
from grpo_gym.learner.rows import Rows
from grpo_gym.types import IntArray

Place = tuple[Tensor, Tensor]
"""(M,) row and (M,) column of scored tokens."""


def backbone(model: PreTrainedModel) -> Any:
    """The model without its head; some classes misname it, so that `base_model` is the whole model."""
    base = cast(Any, model.base_model)
    return getattr(base, "model", base) if base is model else base


def shared_hidden(model: PreTrainedModel, rows: Rows) -> tuple[Tensor, Place]:
    """Encode each prompt once; run the tokens after it against its keys and values.

    Prompts are padded on the left, so that all end in the same column and what follows is as far
    from every key as in the row alone. Positions and masks come from lengths.

    Raises:
        TypeError: The model's cache is not one of keys and values.
    """
    width = rows.prompts.shape[1]
    device = rows.prompts.device
    cache = DynamicCache(config=model.config)
    real = torch.arange(width, device=device) >= width - rows.prompt_lengths[:, None]
    ragged = len(set(rows.prompt_lengths.tolist())) > 1
    encoded = backbone(model)(
        input_ids=rows.prompts,
        attention_mask=real.long() if ragged else None,
        position_ids=(real.cumsum(1) - 1).clamp(min=0) if ragged else None,
        past_key_values=cache,
        use_cache=True,
        return_dict=True,
    )
    last = encoded.last_hidden_state[:, -1:]
    owner = np.repeat(np.arange(len(rows.counts)), rows.counts)
    out: list[Tensor] = []
    places: list[Place] = []
    for index in length_buckets(np.maximum(rows.lengths - 1, 0)):
        counts = np.bincount(owner[index], minlength=len(rows.counts)).tolist()
        states = expand(last, counts)
        steps = int(rows.lengths[index].max()) - 1  # the last token predicts nothing
        if steps > 0:
            chosen = torch.from_numpy(index).to(device)
            after = torch.ones(len(index), steps, dtype=torch.bool, device=device)
            seen = torch.cat([expand(real, counts), after], 1)
            position = torch.arange(steps, device=device)
            more = backbone(model)(
                input_ids=rows.tokens[chosen, :steps],
                attention_mask=seen.long() if ragged else None,
                position_ids=expand(rows.prompt_lengths, counts)[:, None] + position,
                past_key_values=_fork(cache, counts),
                use_cache=True,
                return_dict=True,
            )
            states = torch.cat([states, more.last_hidden_state], 1)
        mask, place = _places(rows, index, states.shape[1])
        out.append(states[mask])
        places.append(place)
    return torch.cat(out), join(places)


def plain_hidden(
    model: PreTrainedModel, rows: Rows, one_pass: bool = False
) -> tuple[Tensor, Place]:
    """Run whole rows, padded on the right, which causality makes harmless: no mask is needed.

    With `one_pass` rows of any length are run together.
    """
    out: list[Tensor] = []
    places: list[Place] = []
    owner = np.repeat(np.arange(len(rows.counts)), rows.counts)
    prompt_lengths = rows.prompt_lengths.cpu().numpy()[owner]
    every = np.arange(len(rows.lengths))
    for index in [every] if one_pass else length_buckets(prompt_lengths + rows.lengths):
        ids, (row, column), place = whole_rows(rows, index)
        states = backbone(model)(input_ids=ids, use_cache=False, return_dict=True)
        out.append(states.last_hidden_state[row, column])
        places.append(place)
    return torch.cat(out), join(places)


def whole_rows(rows: Rows, index: IntArray) -> tuple[Tensor, Place, Place]:
    """(b, L) ids of some rows, the places of what predicts their tokens, and those of the tokens."""
    device = rows.tokens.device
    owner = np.repeat(np.arange(len(rows.counts)), rows.counts)[index]
    prompts = rows.prompts[torch.from_numpy(owner).to(device)]
    prompt_lengths = rows.prompt_lengths[torch.from_numpy(owner).to(device)]
    mask, place = _places(rows, index, max(1, int(rows.lengths[index].max())))
    tokens = rows.tokens[torch.from_numpy(index).to(device), : mask.shape[1]]
    both = torch.cat([prompts, tokens], 1)
    # The last token predicts nothing, and the padding on the left is dropped.
    total = int((prompt_lengths.cpu() + torch.from_numpy(rows.lengths[index])).max()) - 1
    shift = prompts.shape[1] - prompt_lengths[:, None]
    columns = torch.arange(max(1, total), device=device) + shift
    ids = both.gather(1, columns.clamp(max=both.shape[1] - 1))
    row, column = mask.nonzero(as_tuple=True)
    return ids, (row, column + prompt_lengths[row] - 1), place


def expand(values: Tensor, counts: list[int]) -> Tensor:
    """Row i of `values` repeated counts[i] times; the gradient adds up in a fixed order."""
    if len(set(counts)) == 1:
        shape = values.shape
        return values[:, None].expand(-1, counts[0], *shape[1:]).reshape(-1, *shape[1:])
    pairs = zip(values, counts, strict=True)
    return torch.cat([row.expand(count, *row.shape) for row, count in pairs if count])


def _fork(cache: DynamicCache, counts: list[int]) -> DynamicCache:
    """A cache of the same keys and values, row i repeated counts[i] times; `cache` stays as it is."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in fork.layers:
        if not isinstance(layer, DynamicLayer):
            raise TypeError(f"a cache of {type(layer).__name__} cannot be expanded")
        layer.keys = expand(cast(Tensor, layer.keys), counts)
        layer.values = expand(cast(Tensor, layer.values), counts)
    return fork


def _places(rows: Rows, index: IntArray, width: int) -> tuple[Tensor, Place]:
    """(b, width) mask of some rows, and the places of its tokens among all rows."""
    chosen: Any = torch.from_numpy(index).to(rows.mask.device)
    mask = rows.mask[chosen, :width]
    if mask.shape[1] < width:
        mask = torch.nn.functional.pad(mask, (0, width - mask.shape[1]))
    row, column = mask.nonzero(as_tuple=True)
    return mask, (chosen[row], column)


def join(places: list[Place]) -> Place:
    """The places of all parts, in order."""
    return torch.cat([row for row, _ in places]), torch.cat([column for _, column in places])
