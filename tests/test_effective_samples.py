"""The effective sample size of the weights old / behaviour."""

import math

import numpy as np
import pytest

from grpo_agents import grpo
from grpo_gym.learner import Learner
from grpo_gym.types import Batch, Group, Rollout
from tests.models import tiny_model


@pytest.mark.parametrize(
    ("weights", "expected"), [((1.0, 1.0), 1.0), ((3.0, 3.0), 1.0), ((2.0, 1.0), 0.9)]
)
def test_effective_samples(weights: tuple[float, float], expected: float) -> None:
    """Half of the tokens have the first weight, half the second: mean(w)^2 / mean(w^2)."""
    learner = Learner(tiny_model(), grpo())
    prompt, tokens = [3, 4, 5], [6, 7, 8, 9]
    own = learner.logprobs([[*prompt, *tokens]])[0][len(prompt) - 1 :]
    rollouts = tuple(
        Rollout(
            task_id="t",
            prompt_ids=np.array(prompt),
            token_ids=np.array(tokens),
            mask=np.ones(4, np.bool_),
            logprobs=np.minimum(own - math.log(weight), 0.0),
            versions=np.zeros(4, np.int64),
            reward=float(i),
        )
        for i, weight in enumerate(weights)
    )
    batch = Batch((Group("t", rollouts),))
    metrics = learner.update(batch, learner.prepare(batch))
    assert metrics["effective_samples"] == pytest.approx(expected, abs=1e-4)
    assert "weight" not in metrics
