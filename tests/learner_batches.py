"""Batches for the tests of the learner, and the plain computation they are held to."""

from typing import Any

import numpy as np
import torch

from grpo_gym.types import Batch, Group, Rollout
from tests.models import VOCABULARY


def make_batch(
    seed: int = 0, sizes: tuple[int, ...] = (4, 2, 3), most: int = 9, top: int = 0
) -> Batch:
    """Groups of different size and prompt length; rollouts of several turns with observations.

    The behaviour policy's log-probs are arbitrary; with `top` its most probable tokens are there too.
    """
    rng = np.random.default_rng(seed)
    groups = []
    for number, size in enumerate(sizes):
        prompt = rng.integers(3, VOCABULARY, rng.integers(2, 8))
        rollouts = []
        for _ in range(size):
            length = int(rng.integers(1, most))
            mask = rng.random(length) < 0.7
            mask[0] = True
            rollouts.append(
                Rollout(
                    task_id=f"task-{number}",
                    prompt_ids=prompt,
                    token_ids=rng.integers(3, VOCABULARY, length),
                    mask=mask,
                    logprobs=np.where(mask, -rng.random(length) * 6, 0.0),
                    versions=np.where(mask, 0, -1),
                    reward=float(rng.integers(0, 4)),
                    reward_components={name: float(rng.random()) for name in ("a", "b")},
                    terminated=True,
                    top_ids=rng.integers(0, VOCABULARY, (length, top)) if top else None,
                    top_logprobs=np.full((length, top), -2.0 - top) if top else None,
                )
            )
        groups.append(Group(f"task-{number}", tuple(rollouts)))
    return Batch(tuple(groups))


def plain_logprobs(model: Any, batch: Batch, temperature: float) -> torch.Tensor:
    """(B, T) every row alone, through the model's own logits and a full log-softmax."""
    rows = []
    for rollout in batch.rollouts:
        ids = torch.tensor(np.concatenate([rollout.prompt_ids, rollout.token_ids]))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        full = torch.log_softmax(logits / temperature, -1)
        picked = full.gather(1, ids[0, 1:, None])[len(rollout.prompt_ids) - 1 :, 0]
        rows.append(torch.nn.functional.pad(picked, (0, batch.mask.shape[1] - len(picked))))
    return torch.stack(rows)
