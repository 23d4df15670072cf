"""Every registered environment is played end to end: rendered, sampled, collected and scored."""

from contextlib import closing

import pytest

from grpo_gym import registry
from grpo_gym.engines.base import Request
from grpo_gym.env import TextEnv
from grpo_gym.types import Group
from tests.playing import collector, renderer, scripted, specs
from tests.registered import build_or_skip

GUESSES = ("stick", "left")


def solution(row: registry.EnvironmentRow) -> tuple[str, ...]:
    """The winning actions of the task with the seed that `specs` gives it."""
    env = build_or_skip(row)
    env.reset(seed=specs(1)[0].seed)
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    assert text_env.task is not None
    actions = text_env.solution(text_env.task)
    env.close()
    return actions


def played(row: registry.EnvironmentRow, actions: tuple[str, ...]) -> Group:
    """A group of two whose policy says each turn's action, told by the turns in its prompt."""

    def say(prompt_ids: tuple[int, ...], request: Request) -> str:
        text = str(renderer().tokenizer.decode(list(prompt_ids)))
        return actions[(text.count("<|im_start|>assistant") - 1) % len(actions)]

    engine = scripted(say, context=100_000)
    with closing(
        collector(lambda: build_or_skip(row), engine, copies=2, max_tokens=4096)
    ) as playing:
        (group,) = playing.collect(specs(1), 0).groups
    return group


@pytest.mark.parametrize("row", registry.environments(), ids=lambda row: row.id)
def test_the_solution_is_collected_as_a_success(row: registry.EnvironmentRow) -> None:
    actions = solution(row)
    group = played(row, actions or GUESSES)
    for rollout in group.rollouts:
        assert rollout.error is None
        if actions:
            assert rollout.success is True
            assert rollout.terminated
            assert rollout.reward == pytest.approx(1.0)
            assert [turn.action for turn in rollout.turns] == list(actions)
        assert rollout.sampled_tokens > 0
    first, second = group.rollouts
    assert first.token_ids.tolist() == second.token_ids.tolist()
