"""Wrappers: each does its one thing, and keeps the contract of the environment it wraps."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from grpo_gym import registry
from grpo_gym.env import Reply, TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Pattern, Score, Tags
from grpo_gym.spaces import Text
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import check_environment
from grpo_gym.wrappers import (
    FormatReward,
    FullHistory,
    JoinText,
    LengthPenalty,
    RecordRollouts,
    TaskFilter,
    TokenBudget,
    TurnLimit,
    count_tokens,
)

Make = Callable[[], gymnasium.Env[Any, Any]]


class Words:
    """A tokenizer of words."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[str]:
        text.encode("utf-8")  # real tokenizers take no lone surrogates either
        return ["<s>"] * add_special_tokens + text.split()


class Guess(TextEnv):
    """Say the word; every wrong guess costs a tenth."""

    system_prompt = "Guess."

    def default_tasks(self) -> ListTasks:
        return ListTasks([Task(word, f"Say {word}", word) for word in ("one", "two", "six")])

    def respond(self, task: Task, action: str) -> Score | Reply:
        right = action == task.answer
        return Score(1.0, True, {"right": 1.0}) if right else Reply("No.", -0.1, {"right": 0.0})


class Strings(gymnasium.Env[str, str]):
    """Somebody else's environment: strings, no task ids."""

    observation_space = Text()
    action_space = Text()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "Say yes.", {}

    def step(self, action: str) -> Any:
        return "", float(action == "yes"), action == "yes", False, {}


def arithmetic() -> gymnasium.Env[Any, Any]:
    return registry.make("grpo_gym/Arithmetic-v0")


def small(task: Task) -> bool:
    return int(task.answer) < 9


@pytest.fixture
def wrappers(tmp_path: Path) -> dict[str, Callable[[Any], gymnasium.Env[Any, Any]]]:
    return {
        "TurnLimit": partial(TurnLimit, turns=2),
        "TokenBudget": partial(TokenBudget, tokenizer=Words(), tokens=50),
        "FullHistory": FullHistory,
        "JoinText": partial(JoinText, roles=True),
        "FormatReward": FormatReward,
        "FormatReward, answer only": partial(FormatReward, answer_only=True),
        "LengthPenalty": partial(LengthPenalty, free=200, limit=400),
        "TaskFilter": partial(TaskFilter, keep=small),
        "RecordRollouts": partial(RecordRollouts, path=tmp_path / "rollouts.jsonl"),
    }


NAMES = (
    "TurnLimit",
    "TokenBudget",
    "FullHistory",
    "JoinText",
    "FormatReward",
    "FormatReward, answer only",
    "LengthPenalty",
    "TaskFilter",
    "RecordRollouts",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_environment_keeps_the_contract(name: str, wrappers: dict[str, Any]) -> None:
    report = check_environment(lambda: wrappers[name](arithmetic()), range(2))
    assert report.ok, str(report)
    assert {outcome.result for outcome in report.outcomes} == {"passed"}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_tool_environment_keeps_the_contract(name: str, wrappers: dict[str, Any]) -> None:
    make = partial(registry.make, "grpo_gym/Calculator-v0")
    report = check_environment(lambda: wrappers[name](make()), range(1))
    assert report.ok, str(report)


def test_wrappers_can_be_stacked_and_made_anew_from_the_spec() -> None:
    env: Any = JoinText(FormatReward(TurnLimit(arithmetic(), turns=3), weight=0.2), roles=True)
    again = gymnasium.make(env.spec)
    for each in (env, again):
        text, _ = each.reset(seed=0)
        assert text.startswith("System: Put the final answer")
        solution = each.get_wrapper_attr("solution")(each.get_wrapper_attr("task"))
        _, reward, terminated, _, info = each.step(solution[0])
        assert (reward, terminated) == (1.2, True)
        assert info["reward_components"]["format"] == 0.2


def test_nothing_is_stepped_after_the_end() -> None:
    env = TurnLimit(Guess(), turns=1)
    with pytest.raises(ResetNeeded):
        env.step("one")
    env.reset(seed=0)
    env.step("no such word")
    with pytest.raises(ResetNeeded):
        env.step("one")


def test_a_turn_limit_truncates() -> None:
    env = TurnLimit(Guess(max_turns=9), turns=2)
    for _ in range(2):
        env.reset(options={"task_id": "two"})
        *_, truncated, info = env.step("one")
        assert not truncated
        _, reward, terminated, truncated, info = env.step("six")
        assert (reward, terminated, truncated) == (-0.1, False, True)
        assert (info["success"], info["truncation"]) == (False, "turn_limit")


def test_the_last_turn_may_still_win() -> None:
    env = TurnLimit(Guess(), turns=2)
    env.reset(options={"task_id": "two"})
    env.step("one")
    _, reward, terminated, truncated, info = env.step("two")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert "truncation" not in info


def test_the_environments_own_limit_keeps_its_name() -> None:
    env = TurnLimit(Guess(max_turns=1), turns=1)
    env.reset(seed=0)
    assert env.step("x")[4]["truncation"] == "max_turns"


def test_a_token_budget_holds_for_the_episode() -> None:
    env: Any = TokenBudget(Guess(), Words(), tokens=3)
    for _ in range(2):
        env.reset(options={"task_id": "two"})
        assert not env.step("it is")[3]
        observation, reward, terminated, truncated, info = env.step("perhaps two")
        assert (observation, reward, terminated, truncated) == ((), 0.0, False, True)
        assert info == {
            "task_id": "two",
            "reward_components": {},
            "success": False,
            "truncation": "token_budget",
        }
        assert len(env.unwrapped.conversation) == 4  # what is over the budget was not played


def test_an_answer_may_use_the_whole_budget() -> None:
    env = TokenBudget(Guess(), Words(), tokens=1)
    env.reset(options={"task_id": "two"})
    assert env.step("two")[4]["success"]


def test_tokens_are_counted_without_special_ones() -> None:
    assert count_tokens(Words(), "a b") == 2
    assert count_tokens(Words(), "a \ud800") == 2


def test_a_real_tokenizer_counts() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert count_tokens(tokenizer, "a b \ud800") == 3


def test_full_history_shows_everything() -> None:
    env = FullHistory(Guess())
    env.reset(seed=0)
    for _ in range(2):
        first, _ = env.reset(options={"task_id": "two"})
        second, *_ = env.step("one")
        third, *_ = env.step("six")
        assert [m["role"] for m in first] == ["system", "user"]
        assert [m["content"] for m in third[2:]] == ["one", "No.", "six", "No."]
        assert second == third[:4]
        third[0]["content"] = "spoilt"
    assert env.step("two")[0][0]["content"] == "Guess."


def test_messages_become_one_text() -> None:
    env = JoinText(Guess())
    assert env.reset(options={"task_id": "two"})[0] == "Guess.\n\nSay two"
    assert env.step("one")[0] == "No."
    assert env.step("two")[0] == ""
    assert JoinText(Strings(), roles=True).reset()[0] == "User: Say yes."


def test_the_form_earns_its_share_at_the_end() -> None:
    env = FormatReward(Guess(), weight=0.5)
    env.reset(options={"task_id": "two"})
    _, reward, _, _, info = env.step("<think>hm</think> one")
    assert (reward, "format" in info["reward_components"]) == (-0.1, False)
    _, reward, terminated, _, info = env.step("two")
    assert (reward, terminated, info["success"]) == (1.25, True, True)
    assert info["reward_components"] == {"right": 1.0, "format": 0.25}


def test_the_form_alone_is_no_success() -> None:
    env = FormatReward(Guess(max_turns=1), weight=5.0)
    env.reset(options={"task_id": "two"})
    _, reward, _, truncated, info = env.step("<think></think> one")
    assert (reward, truncated, info["success"]) == (4.9, True, False)


def test_the_environment_may_be_given_the_answer_alone() -> None:
    env = FormatReward(Guess(), answer_only=True)
    env.reset(options={"task_id": "two"})
    assert env.step("<think>hm</think> two")[4]["success"]
    env.reset(options={"task_id": "two"})
    assert env.step("two")[1] == 1.0


def test_any_verifier_may_be_the_form() -> None:
    env = FormatReward(Guess(), form=Pattern("[a-z]+"), weight=0.5)
    env.reset(options={"task_id": "two"})
    assert env.step("two")[1] == 1.5


def test_length_is_penalised_at_the_end() -> None:
    env = LengthPenalty(Guess(), free=4, limit=8, weight=1.0)
    env.reset(options={"task_id": "two"})
    assert env.step("one")[1] == -0.1
    _, reward, _, _, info = env.step("two")
    assert reward == 0.5
    assert info["reward_components"]["length_penalty"] == -0.5
    env.reset(options={"task_id": "two"})
    assert env.step("two")[1] == 1.0


def test_length_may_be_counted_in_tokens() -> None:
    env = LengthPenalty(
        Guess(max_turns=1), 0, 2, weight=1.0, measure=partial(count_tokens, Words())
    )
    env.reset(seed=0)
    assert env.step("no idea at all")[1] == pytest.approx(-1.1)


def test_a_filter_leaves_some_tasks() -> None:
    env: Any = TaskFilter(Guess(), lambda task: "o" in task.answer)
    assert env.unwrapped.tasks.task_ids("train") == ("one", "two")
    assert {env.reset(seed=seed)[1]["task_id"] for seed in range(20)} == {"one", "two"}
    with pytest.raises(UsageError, match="'six' is filtered out"):
        env.reset(options={"task_id": "six"})


def test_an_endless_stream_is_filtered_by_drawing() -> None:
    env: Any = TaskFilter(arithmetic(), small)
    for seed in range(10):
        env.reset(seed=seed)
        assert int(env.unwrapped.task.answer) < 9


def test_a_filter_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="keeps none of the 3 tasks"):
        TaskFilter(Guess(), lambda task: False)
    env = TaskFilter(arithmetic(), lambda task: False)
    with pytest.raises(UsageError, match="kept no task of split 'train'"):
        env.reset(seed=0)
    with pytest.raises(UsageError, match="needs a TextEnv"):
        TaskFilter(Strings(), small)


def test_episodes_are_recorded_when_they_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollouts.jsonl"
    first, second = (RecordRollouts(Guess(max_turns=2), path) for _ in range(2))
    for env, actions in ((first, ["x", "two"]), (second, ["\ud800", "x"]), (first, ["x"])):
        env.reset(options={"task_id": "two"})
        for action in actions:
            env.step(action)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2
    assert rows[0] == {
        "task_id": "two",
        "messages": [
            {"role": "system", "content": "Guess."},
            {"role": "user", "content": "Say two"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "No."},
            {"role": "assistant", "content": "two"},
        ],
        "rewards": [-0.1, 1.0],
        "reward": 0.9,
        "reward_components": {"right": 1.0},
        "success": True,
        "terminated": True,
        "truncated": False,
        "truncation": None,
    }
    assert rows[1]["truncation"] == "max_turns"


def test_foreign_environments_can_be_wrapped(tmp_path: Path) -> None:
    env: Any = Strings()
    env = RecordRollouts(TurnLimit(FormatReward(env, Pattern("yes|no")), 2), tmp_path / "r.jsonl")
    env = TokenBudget(FullHistory(env), Words(), 5)
    env.reset(seed=0)
    env.step("no")
    _, reward, terminated, _, _ = env.step("yes")
    assert (reward, terminated) == (1.1, True)
    assert json.loads((tmp_path / "r.jsonl").read_text())["success"] is None


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda env: TurnLimit(env, 0), "turns"),
        (lambda env: TokenBudget(env, Words(), 0), "tokens"),
        (lambda env: FormatReward(env, weight=0.0), "weight"),
        (lambda env: FormatReward(env, Pattern("x"), answer_only=True), "answer_only"),
        (lambda env: LengthPenalty(env, 3, 3), "free < limit"),
        (lambda env: LengthPenalty(env, 1, 3, weight=-1.0), "weight"),
        (lambda env: RecordRollouts(env, "/dev/null/x"), "cannot write"),
    ],
)
def test_senseless_arguments_are_refused(wrap: Callable[[Any], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrap(Guess())


def test_tags_write_what_the_wrapper_asks_for() -> None:
    env: Any = FormatReward(Guess(), Tags(("think", "answer"), rest=False), answer_only=True)
    env.reset(options={"task_id": "two"})
    (action,) = env.solution(env.unwrapped.task)
    assert env.step(action)[1] == 1.1
