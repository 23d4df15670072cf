"""Scores from a model's own logits, for models that make them in a way that is not known."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from grpo_gym.learner.hidden import Place, join, whole_rows
from grpo_gym.learner.rows import Rows
from grpo_gym.learner.scores import TokenScores

MOST_LOGITS = 2**25
"""Most logits at once (one row is always run whole)."""


def own_scores(
    model: PreTrainedModel, rows: Rows, temperature: float, entropy: bool, top_ids: Tensor | None
) -> tuple[TokenScores, Place]:
    """Score whole rows, some at a time.

    In training each part is run again in the backward pass, so that one part's logits are there at a
    time.

    Args:
        model: a causal language model with a vocabulary of V.
        rows: b rows of up to T tokens.
        temperature: divides the logits.
        entropy: also give the entropies.
        top_ids: (b, T, K) more tokens to score, without gradient.

    Returns:
        Scores of the M masked tokens in float32 or float64, and where the tokens are.
    """
    length = rows.prompts.shape[1] + rows.tokens.shape[1]
    vocabulary = len(cast(Tensor, model.get_input_embeddings().weight))
    size = max(1, MOST_LOGITS // (length * vocabulary))
    scores: list[TokenScores] = []
    places: list[Place] = []
    for start in range(0, len(rows.tokens), size):
        index = np.arange(start, min(start + size, len(rows.tokens)))
        ids, predictor, place = whole_rows(rows, index)
        chosen = None if top_ids is None else top_ids[place]
        arguments = (model, ids, predictor, rows.tokens[place], temperature, entropy, chosen)
        if torch.is_grad_enabled():
            part: Any = checkpoint(
                _score, *arguments, use_reentrant=False, preserve_rng_state=False
            )
        else:
            part = _score(*arguments)
        scores.append(TokenScores(*part))
        places.append(place)
    return TokenScores.join(scores), join(places)


def _score(
    model: Any,
    ids: Tensor,
    predictor: Place,
    targets: Tensor,
    temperature: float,
    entropy: bool,
    top_ids: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    logits = model(input_ids=ids, use_cache=False).logits[predictor]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    full = torch.log_softmax(logits / temperature, -1)
    probs = full.exp()
    return (
        full.gather(1, targets[:, None])[:, 0],
        -torch.where(probs > 0, probs * full, 0.0).sum(-1) if entropy else None,
        None if top_ids is None else full.detach().gather(1, top_ids),
    )
