"""New weights while an engine's requests are in flight: what must be true of any engine."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from grpo_gym.engines.base import Engine, Request, Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.types import Completion

State = Mapping[str, torch.Tensor]


def synced(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    loads: Mapping[int, tuple[State, int]],
) -> list[Completion]:
    """Complete all prompts; before some steps, numbered from 0, weights come."""
    requests = [
        Request(i, tuple(prompt), Sampling(max_tokens=tokens + i), i)
        for i, prompt in enumerate(prompts)
    ]
    engine.submit(requests)
    done: dict[int, Completion] = {}
    step = 0
    while engine.busy:
        if step in loads:
            engine.load(*loads[step])
        done.update(engine.step())
        step += 1
    return [done[i] for i in range(len(prompts))]


def check_sync_in_flight(
    engine: Engine,
    model: Callable[[int], PreTrainedModel],
    prompts: Sequence[Sequence[int]],
    atol: float = 1e-4,
) -> None:
    """Weights come while lanes run and wait: every log-prob is that of the policy its token names.

    Args:
        engine: with the weights of `model(0)`.
        model: of a seed.
        prompts: to complete.
        atol: of log-probs.
    """
    # The first before a token is sampled: nothing is of version 0.
    loads = {
        0: (model(4).state_dict(), 4),
        3: (model(5).state_dict(), 5),
        7: (model(7).state_dict(), 7),
    }
    completions = synced(engine, prompts, 9, loads)
    assert engine.version == 7
    judges = {version: HFEngine(model(version)) for version in (4, 5, 7)}
    seen: set[tuple[int, ...]] = set()
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        versions = completion.token_versions
        assert len(completion.token_ids) == 9 + i
        assert np.all(np.diff(versions) >= 0)
        assert completion.version == versions[-1]
        seen.add(tuple(np.unique(versions)))
        for version in np.unique(versions):
            (scores,) = judges[int(version)].score([[*prompt, *completion.token_ids.tolist()]])
            ours, theirs = completion.logprobs, scores[len(prompt) - 1 :]
            np.testing.assert_allclose(
                ours[versions == version], theirs[versions == version], atol=atol
            )
            # The check can fail: the other policies think otherwise.
            if (versions != version).any():
                assert np.abs(ours - theirs)[versions != version].max() > 100 * atol
    assert (4, 5, 7) in seen, "some completion has tokens of all three"
