"""Collecting: exactly the tokens that were sampled and said, and the same ones in every run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.tools.calculator import CalculatorEnv
from grpo_gym.curriculum import TaskSpec, TaskStream
from grpo_gym.engines.base import Request
from grpo_gym.engines.hf import HFEngine
from grpo_gym.types import Message, Rollout
from tests.models import tiny_model
from tests.playing import (
    END,
    Fake,
    collector,
    encode,
    goes_on,
    renderer,
    scripted,
    specs,
    texts,
    turns,
)


def hf_engine(**options: Any) -> HFEngine:
    return HFEngine(tiny_model(), renderer().tokenizer, **options)


def only(rollouts: tuple[Rollout, ...]) -> Rollout:
    assert len(rollouts) == 1
    return rollouts[0]


def tool_step(env: Fake, action: str) -> Any:
    if len(env.seen) == 3:
        return END
    reply = (
        Message(role="tool", name="add", content=f"result {len(env.seen)}"),
        Message(role="user", content="go on"),
    )
    return reply, 0.25, False, False, {}


def test_the_next_prompt_is_the_previous_ids_the_sampled_ids_and_the_delta() -> None:
    engine = scripted(["one", "two", "three"])
    engine.version = 5
    rollout = only(
        collector(lambda: Fake(tool_step), engine).collect(specs(1), 0).groups[0].rollouts
    )
    stop = renderer().stop_token_ids[0]
    ids = list(rollout.prompt_ids)
    mask: list[bool] = []
    for request, turn in zip(engine.requests, rollout.turns, strict=True):
        assert list(request.prompt_ids) == ids
        sampled = turn.completion.token_ids.tolist()
        assert sampled == [*encode(turn.action), stop]
        delta = renderer().extend(sampled, turn.observation) if turn.observation else []
        ids += sampled
        mask += [True] * len(sampled)
        if turn is not rollout.turns[-1]:
            ids += delta
            mask += [False] * len(delta)
    assert [turn.action for turn in rollout.turns] == ["one", "two", "three"]
    assert [*rollout.prompt_ids, *rollout.token_ids] == ids
    assert rollout.mask.tolist() == mask
    assert rollout.versions.tolist() == [5 if sampled else -1 for sampled in mask]
    uniform = -np.log(len(renderer().tokenizer))
    assert rollout.logprobs.tolist() == [uniform if sampled else 0.0 for sampled in mask]
    assert rollout.reward == 1.5


def test_the_tokens_are_the_conversation_as_the_template_writes_it() -> None:
    rollout = only(
        collector(lambda: Fake(tool_step), scripted(["one", "two", "three"]))
        .collect(specs(1), 0)
        .groups[0]
        .rollouts
    )
    messages: list[Any] = [*rollout.prompt]
    for turn in rollout.turns:
        messages += [Message(role="assistant", content=turn.action), *turn.observation]
    whole = renderer().tokenizer.apply_chat_template(messages[:-1], tokenize=False)
    assert texts([*rollout.prompt_ids, *rollout.token_ids]) + "\n" == whole


SENTENCES = st.lists(
    st.sampled_from(["a", " the answer", "12", "<|im_end|>", "é", "\n", "🧮", "<|im_start|>user"]),
    max_size=6,
).map("".join)


@settings(max_examples=40, deadline=None)
@given(
    says=st.lists(SENTENCES, min_size=1, max_size=5),
    hears=st.lists(SENTENCES, min_size=1, max_size=5),
    max_tokens=st.integers(1, 12),
    rollout_tokens=st.none() | st.integers(1, 80),
    context=st.integers(20, 120),
    version=st.integers(0, 3),
)
def test_whatever_is_said_and_wherever_it_is_cut(
    says: list[str],
    hears: list[str],
    max_tokens: int,
    rollout_tokens: int | None,
    context: int,
    version: int,
) -> None:
    def step(env: Fake, action: str) -> Any:
        place = len(env.seen)
        return END if place > len(hears) else goes_on(hears[place - 1])

    engine = scripted(says, context)
    engine.version = version
    group = (
        collector(lambda: Fake(step), engine, max_tokens=max_tokens, rollout_tokens=rollout_tokens)
        .collect(specs(1), 0)
        .groups[0]
    )
    rollout = only(group.rollouts)
    assert rollout.error is None
    assert rollout.terminated != rollout.truncated
    sampled = [token for turn in rollout.turns for token in turn.completion.token_ids.tolist()]
    assert rollout.token_ids[rollout.mask].tolist() == sampled
    assert len(rollout.prompt_ids) + len(rollout.token_ids) <= context
    assert rollout_tokens is None or len(rollout.token_ids) <= rollout_tokens
    assert all(len(turn.completion.token_ids) <= max_tokens for turn in rollout.turns)
    assert bool(rollout.mask[-1])
    whole = [*rollout.prompt_ids.tolist(), *rollout.token_ids.tolist()]
    for request, turn in zip(engine.requests, rollout.turns, strict=True):
        length = len(request.prompt_ids)
        assert whole[:length] == list(request.prompt_ids)
        spoken = turn.completion.token_ids.tolist()
        assert whole[length : length + len(spoken)] == spoken
        assert turn.action == renderer().action(spoken)


def test_recorded_logprobs_are_those_of_the_model_given_the_recorded_tokens() -> None:
    engine = hf_engine()
    collection = collector(
        lambda: Fake(tool_step), engine, copies=3, max_tokens=6, temperature=0.7, top_logprobs=4
    ).collect(specs(2), 0)
    for rollout in (r for group in collection.groups for r in group.rollouts):
        whole = [*rollout.prompt_ids.tolist(), *rollout.token_ids.tolist()]
        scores = engine.score([whole], 0.7)[0][len(rollout.prompt_ids) - 1 :]
        assert np.allclose(scores[rollout.mask], rollout.logprobs[rollout.mask], atol=1e-4)
        assert rollout.top_ids is not None
        assert rollout.top_logprobs is not None
        assert rollout.top_ids.shape == rollout.top_logprobs.shape == (len(rollout.token_ids), 4)
        best = rollout.top_logprobs[rollout.mask]
        assert np.all(np.diff(best, axis=1) <= 0)
        assert np.all(best[:, 0] >= rollout.logprobs[rollout.mask] - 1e-6)
        assert np.all(rollout.top_logprobs[~rollout.mask] == 0)
    assert collection.tokens == sum(
        r.sampled_tokens for group in collection.groups for r in group.rollouts
    )


# The same run twice.


def seeds(requests: list[Request]) -> list[int]:
    return [request.seed for request in requests]


def test_seeds_differ_by_copy_turn_and_task_and_by_nothing_else() -> None:
    def played(seed: int, tasks: list[TaskSpec], **options: Any) -> dict[int, int]:
        engine = scripted()
        collector(lambda: Fake(turns(3)), engine, copies=4, **options).collect(tasks, seed)
        assert len(set(seeds(engine.requests))) == len(engine.requests) == 12 * len(tasks)
        return dict.fromkeys(seeds(engine.requests), 0)

    one = played(0, specs(5))
    assert played(0, specs(5)) == one
    assert played(0, specs(5), max_lanes=4) == one
    assert not played(1, specs(5)).keys() & one.keys()
    later = [TaskSpec(index + 5, 100 + index) for index in range(5)]
    assert not played(0, later).keys() & one.keys()


@pytest.mark.parametrize("lanes", [4, 64])
def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(lanes: int) -> None:
    def tokens(seed: int) -> list[list[int]]:
        play = collector(
            CalculatorEnv, hf_engine(), copies=4, max_tokens=12, max_lanes=lanes, rollout_tokens=120
        )
        tasks = TaskStream.of(CalculatorEnv(), 0, "train").take(4)
        groups = play.collect(tasks, seed).groups
        play.close()
        return [r.token_ids.tolist() for group in groups for r in group.rollouts]

    first = tokens(0)
    assert tokens(0) == first
    assert tokens(1) != first
    assert len({tuple(ids) for ids in first}) == len(first)


def test_infinite_patience_and_no_timeout_are_possible() -> None:
    inf = float("inf")
    play = collector(lambda: Fake(turns(2)), copies=2, patience_s=inf, env_timeout_s=inf)
    assert play.collect(specs(3), 0).failures == 0
