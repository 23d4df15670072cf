"""Log-probs of given tokens under a model, in bounded memory."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from grpo_gym.engines.prefill import padded
from grpo_gym.types import FloatArray


def score(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    columns: int,
    temperature: float,
) -> list[FloatArray]:
    """Log-prob of each token but the first of every sequence, arrays of len(sequence) - 1.

    The sequences run side by side, some columns at a time; the model's own cache carries what came
    before.

    Args:
        model: in eval mode; call without gradients.
        sequences: n sequences of at least two ids.
        columns: how many tokens of each sequence to run at once.
        temperature: logits are divided by it.
    """
    ids = padded(sequences, model.device)
    width = ids.shape[1] - 1
    cache, parts = None, []
    for start in range(0, width, columns):
        stop = min(start + columns, width)
        out = model(ids[:, start:stop], past_key_values=cache, use_cache=columns < width)
        cache = out.past_key_values if columns < width else None
        logprobs = (out.logits.float() / temperature).log_softmax(-1)
        chosen = logprobs.gather(2, ids[:, start + 1 : stop + 1].unsqueeze(2)).squeeze(2)
        parts.append(chosen.double().cpu().numpy())
    rows = np.concatenate(parts, 1)
    return [row[: len(sequence) - 1] for row, sequence in zip(rows, sequences, strict=True)]
