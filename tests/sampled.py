"""A batch that an engine has really sampled."""

from collections.abc import Sequence

import numpy as np

from grpo_gym.engines.base import Engine, Sampling
from grpo_gym.types import Batch, Group, Rollout


def sampled(engine: Engine, prompt: Sequence[int], tokens: int = 8) -> Batch:
    """One group of four completions; the first half of them is rewarded."""
    done = engine.generate([prompt] * 4, Sampling(max_tokens=tokens), range(4))
    rollouts = [
        Rollout(
            task_id="t",
            prompt_ids=np.array(prompt),
            token_ids=completion.token_ids,
            mask=np.ones(len(completion.token_ids), np.bool_),
            logprobs=completion.logprobs,
            versions=np.full(len(completion.token_ids), completion.version),
            reward=float(i < 2),
        )
        for i, completion in enumerate(done)
    ]
    return Batch((Group("t", tuple(rollouts)),))
