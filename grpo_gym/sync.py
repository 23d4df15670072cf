"""Proof that the engine samples from the policy that the learner has."""

import math

import numpy as np

from grpo_gym.engines.base import Engine, EngineFailure
from grpo_gym.learner import Learner
from grpo_gym.types import Batch

TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
"""How far two log-probs of the same token may differ, by the learner's precision: at most in float32; on
average in bfloat16, where rounding moves single tokens far, most of all in mixtures of experts."""

_PROBE_ROLLOUTS = 2
_PROBE_TOKENS = 256


class SyncError(EngineFailure):
    """The engine does not sample from the learner's policy."""


def verify_sync(
    engine: Engine, learner: Learner, batch: Batch, temperature: float, precision: str
) -> float:
    """Compare the engine's log-probs with the learner's on the longest rollouts of a batch.

    Every process of a run calls it, as sharded weights are gathered for the learner's log-probs.

    Args:
        engine: has just loaded the learner's weights.
        learner: whose weights they are.
        batch: rollouts to take the probe from.
        temperature: at which log-probs are compared.
        precision: of the learner; decides the tolerance.

    Returns:
        The largest difference; 0 if the engine is one that another process compares.

    Raises:
        SyncError: The difference is above the tolerance, or not a number; nan also stands for no token
            at all that could be compared.
    """
    length = min(_PROBE_TOKENS, engine.context_length)
    sequences = [[*r.prompt_ids.tolist(), *r.token_ids.tolist()] for r in batch.rollouts]
    probe = [ids[:length] for ids in sorted(sequences, key=len)[-_PROBE_ROLLOUTS:]]
    ours = learner.logprobs(probe, temperature)
    if not engine.leads:
        return 0.0
    theirs = engine.score(probe, temperature)
    gaps = np.concatenate([np.abs(a - b) for a, b in zip(ours, theirs, strict=True)])
    largest, mean = (float(gaps.max()), float(gaps.mean())) if len(gaps) else (math.nan, math.nan)
    gap, allowed = mean if precision == "bf16" else largest, TOLERANCE[precision]
    if not gap <= allowed:
        raise SyncError(
            f"after the update to version {learner.version} the engine's log-probs differ from the "
            f"learner's by up to {largest:.3g}, {mean:.3g} on average (allowed at {precision}: "
            f"{allowed:g}{' on average' if precision == 'bf16' else ''}): the engine does not have the "
            "learner's weights"
        )
    return largest
