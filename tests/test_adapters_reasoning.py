"""The generators of reasoning-gym as environments; the rest of the file needs the reasoning extra."""

import importlib.util
import random
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_envs.adapters import reasoning
from grpo_envs.adapters.reasoning import Generator, ReasoningGymEnv
from grpo_envs.adapters.reasoning_guard import check_arithmetic, uses_the_given_numbers
from grpo_envs.adapters.reasoning_names import EXCLUDED, GENERATORS, WITHOUT_ANSWER
from grpo_gym.errors import UsageError
from grpo_gym.registry import environments, make
from grpo_gym.testing import EnvContract
from grpo_gym.testing.checks import check_hacks, check_solution

installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="the reasoning extra is not installed",
)


def env(name: str, **kwargs: Any) -> ReasoningGymEnv:
    made = make(f"reasoning_gym/{name}", **kwargs).unwrapped
    assert isinstance(made, ReasoningGymEnv)
    return made


def outcome(name: str, task_id: str, answer: str, **kwargs: Any) -> tuple[float, dict[str, Any]]:
    playing = env(name, **kwargs)
    playing.reset(options={"task_id": task_id})
    _, reward, _, _, info = playing.step(f"<answer>{answer}</answer>")
    return reward, info


# ---------------------------------------------------------------- without the library


def test_every_generator_has_an_id_though_the_library_is_not_imported() -> None:
    assert len(GENERATORS) == 104
    environments()
    assert all(f"reasoning_gym/{name}" in gymnasium.registry for name in GENERATORS)
    code = "import sys, grpo_envs; sys.exit('reasoning_gym' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize("name", EXCLUDED)
def test_a_generator_that_is_left_out_says_why(name: str) -> None:
    with pytest.raises(UsageError, match=EXCLUDED[name][:20]):
        make(f"reasoning_gym/{name}")


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[reasoning\]'"):
        ReasoningGymEnv(name="gcd")


def test_an_unknown_generator_is_told() -> None:
    with pytest.raises(UsageError, match="no generator 'nothing'"):
        ReasoningGymEnv(name="nothing")


@pytest.mark.parametrize(
    "text", ["3*x**2 + C", "(8 / (3 - 8/3))", "sin(x)/2 - exp(-x)", "1.5e3", ""]
)
def test_arithmetic_may_be_evaluated(text: str) -> None:
    assert check_arithmetic(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "().__class__",
        "x.args",
        "x . args",
        "Integral(x**2, x)",
        "expand((x+1)**2)",
        "lambda: 1",
        "open",
        "[1, 2]",
        "'a'",
        "ｅval(x)",
        "1" * 3000,
    ],
)
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(ValueError):
        check_arithmetic(text)


def test_given_numbers_are_each_used_once() -> None:
    entry = {"metadata": {"numbers": [4, 6, 1, 1]}}
    assert uses_the_given_numbers("6 * 4 * 1 * 1", entry)
    assert not uses_the_given_numbers("6 * 4 * 2 / 2", entry)


# ---------------------------------------------------------------- with it


@installed
class TestOneGenerator(EnvContract):
    seeds = range(4)

    def make(self) -> gymnasium.Env[Any, Any]:
        return make("reasoning_gym/basic_arithmetic")


@installed
@pytest.mark.parametrize("name", ["puzzle24", "acre", "word_ladder", "game_of_life_halting"])
def test_generators_with_quirks_keep_the_contract(name: str) -> None:
    for check in (check_solution, check_hacks):
        check(lambda: make(f"reasoning_gym/{name}"), range(2))


@installed
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GENERATORS)
def test_the_librarys_own_answer_scores_the_maximum(name: str) -> None:
    playing = env(name)
    playing.reset(seed=1)
    assert playing.task is not None
    actions = playing.solution(playing.task)
    assert bool(actions) == (name not in WITHOUT_ANSWER)
    for action in actions:
        _, reward, terminated, _, info = playing.step(action)
        assert (reward, terminated, info["success"]) == (1.0, True, True)


@installed
def test_a_task_is_the_entry_of_the_librarys_data_set() -> None:
    import reasoning_gym

    entry = reasoning_gym.create_dataset("gcd", seed=7, size=20)[12]
    playing = env("gcd")
    observation, info = playing.reset(options={"task_id": "7/12"})
    assert observation[-1]["content"] == entry["question"]
    assert playing.task is not None
    assert playing.task.answer == entry["answer"]
    assert info["task_id"] == "7/12"


@installed
@pytest.mark.parametrize("name", ["ransom_note", "knight_swap", "word_ladder", "pool_matrix"])
def test_a_task_does_not_depend_on_the_hash_seed_or_global_generators(name: str) -> None:
    code = f"from grpo_gym.registry import make; print(make('reasoning_gym/{name}').reset(seed=5))"

    def printed(hash_seed: str) -> str:
        environ = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed}
        run = [sys.executable, "-W", "ignore", "-c", code]
        return subprocess.run(run, check=True, capture_output=True, text=True, env=environ).stdout

    assert printed("1") == printed("2")


@installed
def test_no_global_generator_is_touched() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    outcome("pool_matrix", "0/5", "1 2")
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


@installed
def test_levels_are_those_of_the_curriculum() -> None:
    easy, hard = (env("basic_arithmetic", level=level) for level in (0, 2))
    lengths = []
    for playing in (easy, hard):
        prompts = [playing.reset(seed=seed)[0][-1]["content"] for seed in range(20)]
        lengths.append(sum(map(len, prompts)))
    assert lengths[0] < lengths[1]
    with pytest.raises(UsageError, match="its levels are 0 to"):
        env("basic_arithmetic", level=99)
    with pytest.raises(UsageError, match="it has no levels"):
        env("acre", level=0)


@installed
@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"options": {"nothing": 1}}, "no option nothing"),
        ({"options": {"seed": 1}}, "told by the task id"),
        ({"options": {"min_terms": object()}}, "plain values"),
        ({"options": {"min_terms": -3}}, "min_terms"),
        ({"level": "high"}, "whole number"),
    ],
)
def test_wrong_options_are_told(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        env("basic_arithmetic", **kwargs)


@installed
@pytest.mark.parametrize("task_id", ["", "7", "train-1", "-1/0", "0/99999999999", "01/0"])
def test_an_unknown_task_is_told(task_id: str) -> None:
    with pytest.raises(UsageError, match="as in '7/12'"):
        env("gcd").reset(options={"task_id": task_id})


@installed
def test_splits_are_different_tasks() -> None:
    playing = env("gcd")
    train, test = (
        playing.reset(seed=0, options={"split": split})[1]["task_id"] for split in ("train", "test")
    )
    assert reasoning.split_of(train) == "train"
    assert reasoning.split_of(test) == "test"


@installed
def test_the_last_answer_counts_and_no_tags_are_no_answer() -> None:
    playing = env("gcd")
    playing.reset(options={"task_id": "0/0"})
    assert playing.task is not None
    right = playing.task.answer
    assert playing.respond(playing.task, f"<answer>x</answer> <answer>{right}</answer>").success
    assert not playing.respond(playing.task, f"<answer>{right}</answer> <answer>x</answer>").success
    assert not playing.respond(playing.task, right).success
    nested = playing.respond(playing.task, f"<answer><answer>{right}</answer>")
    assert nested.success


@installed
def test_partial_credit_can_be_left_out() -> None:
    reward, info = outcome("countdown", "0/0", "1")
    assert 0 < reward < 1
    assert not info["success"]
    reward, info = outcome("countdown", "0/0", "1", partial_credit=False)
    assert reward == 0
    assert info["reward_components"]["score"] > 0


@installed
def test_a_scorer_that_raises_scores_nothing_and_says_so() -> None:
    reward, info = outcome("prime_factorization", "0/0", "junk")
    assert reward == 0
    assert info["reward_components"]["scorer_failed"] == 1


@installed
@pytest.mark.parametrize("name", ["puzzle24", "countdown", "simple_integration"])
def test_an_answer_that_never_ends_costs_its_deadline(name: str) -> None:
    reward, info = outcome(name, "0/0", "9**9**9**9**9", deadline_s=1.0)
    assert reward < 1
    assert not info["success"]
    reward, info = outcome("gcd", "0/0", "junk")  # the next worker serves
    assert info["reward_components"]["timed_out"] == 0


@installed
@pytest.mark.parametrize("name", ["spiral_matrix", "string_insertion", "n_queens", "puzzle24"])
def test_an_answer_is_never_run_as_a_program(name: str, tmp_path: Any) -> None:
    mark = tmp_path / "run"
    outcome(name, "0/0", f"[__import__('pathlib').Path('{mark}').touch()]")
    outcome(name, "0/0", f"__import__('pathlib').Path('{mark}').touch()")
    assert not mark.exists()


@installed
@pytest.mark.parametrize(
    ("name", "answer"),
    [("game_of_life_halting", "perhaps"), ("puzzle24", "24 + 0 + 1 - 1"), ("puzzle24", "6*4*1*1")],
)
def test_scorers_that_take_wrong_answers_are_mended(name: str, answer: str) -> None:
    for index in range(8):
        assert not outcome(name, f"0/{index}", answer)[1]["success"]


@installed
def test_an_integral_left_standing_is_no_solution() -> None:
    generator = Generator("simple_integration", None, "{}")
    question = generator.task("0/0").prompt
    for integrand in [question.split(":")[-1].strip(), "x"]:
        assert not generator.score("0/0", f"Integral({integrand}, x)", 5.0).success
