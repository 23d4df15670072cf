"""`TextEnv`: what reset and step promise, whatever the author's hooks do."""

import copy
import math
import subprocess
import sys
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym.env import Reply, TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, ProceduralTasks, Task, TaskSource
from grpo_gym.testing import CopyEnv, EnvContract

SHARED = {"role": "user", "content": "again"}


class GuessEnv(TextEnv):
    """Guess a number below ten; told higher or lower."""

    max_turns = 4

    def default_tasks(self) -> TaskSource:
        return ProceduralTasks(lambda rng: ("Guess a digit.", str(rng.integers(10))))

    def respond(self, task: Task, action: str) -> Score | Reply | str | tuple[Any, ...]:
        if action == task.answer:
            return Score(1.0, True, {"guesses": self.turn + 1})
        if action == "nan":
            return Score(math.nan, False)
        if action == "shared":
            return (SHARED,)
        if action.isdecimal() and action.isascii():
            return Reply("lower" if action > task.answer else "higher", 0.25, {"near": 0.25})
        return f"{action} is no digit"


class TestGuessEnvKeepsTheContract(EnvContract):
    def make(self) -> GuessEnv:
        return GuessEnv()


def playing(**kwargs: Any) -> GuessEnv:
    env = GuessEnv(**kwargs)
    env.reset(seed=0)
    return env


def test_a_score_ends_the_episode() -> None:
    env = playing()
    assert env.task is not None
    assert env.step(env.task.answer) == (
        (),
        1.0,
        True,
        False,
        {
            "task_id": env.task.task_id,
            "reward_components": {"guesses": 1.0},
            "success": True,
        },
    )


def test_a_reply_goes_on() -> None:
    env = playing()
    observation, reward, terminated, truncated, info = env.step("99")
    assert observation == ({"role": "user", "content": "lower"},)
    assert (reward, terminated, truncated) == (0.25, False, False)
    assert info["reward_components"] == {"near": 0.25}
    assert "success" not in info
    assert "truncation" not in info


def test_the_turn_limit_truncates_and_says_so() -> None:
    env = playing(max_turns=2)
    env.step("x")
    _, _, terminated, truncated, info = env.step("x")
    assert (terminated, truncated) == (False, True)
    assert info["truncation"] == "max_turns"
    assert info["success"] is False


def test_a_score_on_the_last_turn_terminates() -> None:
    env = playing(max_turns=1)
    assert env.task is not None
    _, _, terminated, truncated, info = env.step(env.task.answer)
    assert (terminated, truncated) == (True, False)
    assert "truncation" not in info


def test_a_reward_may_be_nan() -> None:
    _, reward, terminated, _, info = playing().step("nan")
    assert math.isnan(reward)
    assert terminated
    assert info["success"] is False


def test_stepping_without_an_episode_is_a_clear_error() -> None:
    with pytest.raises(ResetNeeded, match="reset"):
        GuessEnv().step("1")
    env = playing(max_turns=1)
    env.step("x")
    with pytest.raises(ResetNeeded, match="reset"):
        env.step("x")
    env.reset()
    env.step("x")


def test_a_task_is_drawn_by_its_seed_or_named_by_its_id() -> None:
    env, other = GuessEnv(), GuessEnv()
    first, info = env.reset(seed=3)
    second, again = other.reset(options={"task_id": info["task_id"]})
    assert (first, info) == (second, again)
    assert env.task == other.task
    _, info = env.reset(seed=3, options={"split": "test"})
    assert info["task_id"].startswith("test-")
    _, info = env.reset()
    assert info["task_id"].startswith("train-")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "train-1"}, "not task"),
        ({"task": "train-1", 3: 4}, "not 3, task"),
        ([("task_id", "train-1")], "options of reset are a dict"),
        ({"task_id": "nowhere-1"}, "no task"),
        ({"task_id": 1}, "task_id is a string"),
        ({"split": "dev"}, "no split 'dev'"),
        ({"task_id": "train-1", "split": "test"}, "of split 'train'"),
    ],
)
def test_wrong_options_are_told(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GuessEnv().reset(options=options)


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(UsageError, match="max_turns"):
        GuessEnv(max_turns=0)
    with pytest.raises(UsageError, match="no split 'dev'"):
        GuessEnv(split="dev")
    with pytest.raises(UsageError, match="such as ListTasks"):
        GuessEnv(tasks=[Task("a", "b", "c")])  # a list is no source
    with pytest.raises(UsageError, match="render_mode"):
        GuessEnv(render_mode="human")

    class Homeless(TextEnv):
        def respond(self, task: Task, action: str) -> Score:
            return Score(0.0, False)

    with pytest.raises(UsageError, match="tasks="):
        Homeless()
    with pytest.raises(TypeError, match="respond"):
        TextEnv(tasks=ListTasks([Task("a", "b", "c")]))  # type: ignore[abstract]


def test_the_system_prompt_comes_first() -> None:
    env = GuessEnv(system_prompt="Be brief.")
    observation, _ = env.reset(seed=0)
    assert [message["role"] for message in observation] == ["system", "user"]
    assert observation[0]["content"] == "Be brief."


def test_nothing_returned_is_shared_with_later_calls() -> None:
    env = playing()
    first, _, _, _, info = env.step("shared")
    kept = copy.deepcopy(first)
    first[0]["content"] = "spoilt"
    info["reward_components"]["spoilt"] = 1.0
    second, _, _, _, later = env.step("shared")
    assert second == kept
    assert later["reward_components"] == {}
    assert "spoilt" not in env.render()
    assert SHARED == {"role": "user", "content": "again"}


def test_nothing_said_at_reset_is_shared_with_the_author_or_the_conversation() -> None:
    told = {"role": "user", "content": "caf\u00e9 \ud800", "tool_calls": [{"id": "1"}]}

    class Tells(CopyEnv):
        def observe(self, task: Task) -> Any:
            return (SHARED, told)

    env = Tells()
    for _ in range(2):
        (first, second), info = env.reset(seed=0)
        assert first == SHARED
        assert second == told | {"content": "caf\u00e9 ?"}
        assert env.conversation == [first, second]
        first["content"] = "spoilt"
        second["tool_calls"][0]["id"] = "spoilt"
        info["task_id"] = "spoilt"
        assert "spoilt" not in str(env.conversation)
    assert told["tool_calls"] == [{"id": "1"}]


def test_render_tells_the_conversation() -> None:
    env = playing()
    env.step("x")
    assert env.render() == "[user] Guess a digit.\n[assistant] x\n[user] x is no digit"


@given(st.text(st.characters(), max_size=30))
def test_no_text_makes_step_raise_and_observations_can_be_encoded(action: str) -> None:
    observation, *_ = playing().step(action)
    for message in observation:
        message["content"].encode("utf-8")


def test_an_action_must_be_text() -> None:
    with pytest.raises(UsageError, match="string, got int"):
        playing().step(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, 3, [SHARED], ({"role": "user"},), ("text",)])
def test_a_hook_that_returns_rubbish_is_told(bad: Any) -> None:
    class Rubbish(CopyEnv):
        def respond(self, task: Task, action: str) -> Any:
            return bad

    env = Rubbish()
    env.reset(seed=0)
    with pytest.raises(UsageError):
        env.step("x")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, grpo_gym; grpo_gym.make; grpo_gym.TextEnv; "
        "heavy = {'torch', 'transformers', 'vllm', 'ray', 'datasets', 'sympy'} & set(sys.modules); "
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_package_knows_its_names() -> None:
    import grpo_gym

    for name in set(grpo_gym.__all__) - {"Agent"}:
        assert getattr(grpo_gym, name) is not None
    assert set(grpo_gym.__all__) <= set(dir(grpo_gym))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        grpo_gym.nothing_like_it  # noqa: B018
