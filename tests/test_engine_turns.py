"""The next turn of a conversation encodes only what is new, and samples what it would have sampled."""

from typing import Any

import numpy as np
import pytest
import torch

from grpo_gym.engines import decoders
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.engines.turns import Turn, Turns
from tests.models import VOCABULARY, tiny_model

KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gpt2": {},
    "gemma3_text": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {"sliding_window": 5},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
LENGTHS = [9, 30, 17, 9, 24]


@pytest.fixture(autouse=True)
def every_turn_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "SHORTEST_TURN", 1)


def conversation(engine: HFEngine, turns: int = 4) -> tuple[list[list[int]], list[np.ndarray]]:
    """Tokens and log-probs of some conversations of several turns, each of its own length."""
    rng = np.random.default_rng(0)
    contexts = [rng.integers(3, VOCABULARY, length).tolist() for length in LENGTHS]
    logprobs: list[list[float]] = [[] for _ in LENGTHS]
    for turn in range(turns):
        requests = [
            Request(i, tuple(ids), Sampling(max_tokens=1 + (i + turn) % 4), 10 * turn + i)
            for i, ids in enumerate(contexts)
        ]
        engine.submit(requests[:3])
        done = dict(engine.step())
        engine.submit(requests[3:])  # they join later
        while engine.busy:
            done |= dict(engine.step())
        for i, context in enumerate(contexts):
            context += [*done[i].token_ids.tolist(), *rng.integers(3, VOCABULARY, 1 + i).tolist()]
            logprobs[i] += done[i].logprobs.tolist()
    return contexts, [np.array(values) for values in logprobs]


def encoded(engine: HFEngine) -> list[int]:
    """How many tokens each later forward pass encodes."""
    seen: list[int] = []
    embedding = engine.model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1]))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_turns_that_go_on_sample_the_same(kind: str) -> None:
    plain = HFEngine(tiny_model(0, kind, **KINDS[kind]))
    plain._decoder.turns.most_bytes = 0
    engine = HFEngine(tiny_model(0, kind, **KINDS[kind]))
    assert engine._decoder.turns.most_bytes > 0, "the probe found it exact"
    expected, logprobs = conversation(plain)
    seen = encoded(engine)
    tokens, found = conversation(engine)
    assert tokens == expected
    for mine, own in zip(found, logprobs, strict=True):
        np.testing.assert_allclose(mine, own, atol=1e-5)
    first_turn = 2  # two waves
    longest = max(n for n in seen if n > 1)
    later = [n for n in seen if n > 1][first_turn:]
    assert longest == max(LENGTHS)
    assert max(later) <= len(LENGTHS) + 1, "what is new: an answer's last token and the reply"


def test_a_prompt_that_differs_is_encoded_whole() -> None:
    engine = HFEngine(tiny_model())
    prompt = list(range(3, 23))
    (done,) = engine.generate([prompt], Sampling(max_tokens=4), [0])
    seen = encoded(engine)
    engine.generate([[*prompt[:-1], 99, *done.token_ids.tolist(), 7]], Sampling(max_tokens=1), [0])
    assert seen == [25]


def after_a_change(change: Any) -> list[int]:
    """Tokens encoded in the second turn if something happens between the two."""
    engine = HFEngine(tiny_model())
    prompt = list(range(3, 23))
    (done,) = engine.generate([prompt], Sampling(max_tokens=4), [0])
    change(engine)
    seen = encoded(engine)
    engine.generate([[*prompt, *done.token_ids.tolist(), 7, 8]], Sampling(max_tokens=1), [0])
    return seen


def test_other_weights_forget_what_was_encoded() -> None:
    def train(engine: HFEngine) -> None:
        with torch.no_grad():
            next(engine.model.parameters()).add_(0.1)

    assert after_a_change(lambda engine: None) == [3]
    assert after_a_change(lambda engine: engine.load(tiny_model(1).state_dict(), 1)) == [26]
    assert after_a_change(train) == [26]
    assert after_a_change(lambda engine: engine.abort()) == [26]


def turn(*ids: int) -> Turn:
    """40 bytes a token."""
    zeros = torch.zeros(1, 1, len(ids), 5)
    return Turn(ids, [(zeros, zeros)])


def test_the_oldest_is_forgotten_where_memory_ends() -> None:
    turns = Turns(most_bytes=250, shortest=2)
    assert not turns.wants([1])
    for first in (1, 2, 3):
        turns.keep(turn(first, 0))
    turns.keep(turn(*range(50)))  # more than there is room for
    turns.keep(turn(4, 0))
    assert turns.bytes == 240
    assert turns.take((1, 0, 5)) is None
    found = turns.take((2, 0, 5))
    assert found is not None
    assert found.ids == (2, 0)
    assert turns.take((2, 0, 5)) is None, "it is the lane's now"
    assert turns.bytes == 160
    turns.keep(turn(3, 0, 6))
    longest = turns.take((3, 0, 6, 7))
    assert longest is not None
    assert longest.ids == (3, 0, 6)
    assert turns.take((3, 0)) is None, "nothing would be left to encode"
