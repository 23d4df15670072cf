"""Memory of forward and backward with a vocabulary of 262,144, as Gemma 3 has, against full logits."""

import subprocess
import sys
from pathlib import Path

import pytest

STEP = """
import resource
import sys

import numpy as np
import torch

from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.rows import pack
from tests.models import tiny_model

prompt, tokens = np.arange(64), np.arange(3 * 128).reshape(3, 128)
model = tiny_model(0, "gemma3_text", vocab_size=262_144)
scorer = Scorer(model)
assert scorer.tiled
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "tiled":
    rows = pack([prompt] * 3, list(tokens), [np.ones(128, np.bool_)] * 3)
    logprobs = scorer(rows, entropy=True).logprobs
else:
    ids = torch.from_numpy(np.concatenate([np.tile(prompt, (3, 1)), tokens], 1))
    full = model(ids, use_cache=False).logits[:, 63:-1].log_softmax(-1)
    logprobs = full.gather(2, ids[:, 64:, None])[..., 0]
logprobs.sin().sum().backward()
gradient = float(model.get_input_embeddings().weight.grad.abs().sum())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, gradient)
"""


def measured(way: str) -> tuple[float, float]:
    """MiB that a step takes on top of the model, and a sum over its gradient."""
    words = [sys.executable, "-W", "ignore", "-c", STEP, way]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    memory, gradient = map(float, done.stdout.split())
    return memory, gradient


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_logits_of_a_batch_are_never_all_there() -> None:
    tiled, gradient = measured("tiled")
    full, expected = measured("full")
    assert gradient == pytest.approx(expected, rel=1e-4)
    assert tiled < 0.15 * full, (tiled, full)
