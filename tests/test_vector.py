"""Many text environments at once, in threads."""

import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, ProceduralTasks, Task
from grpo_gym.testing import CopyEnv
from grpo_gym.wrappers import FullHistory, TextVectorEnv

WORDS = ("one", "two", "six")


class Wait(TextEnv):
    """Say the word; answers take their time."""

    max_turns = 2

    def __init__(self, seconds: float = 0.0, **kwargs: Any) -> None:
        self.seconds = seconds
        self.threads = {threading.current_thread()}
        super().__init__(**kwargs)

    def default_tasks(self) -> ListTasks:
        return ListTasks([Task(word, f"Say {word}", word) for word in WORDS])

    def respond(self, task: Task, action: str) -> Score | str:
        time.sleep(self.seconds)
        self.threads.add(threading.current_thread())
        if action == "fail":
            raise RuntimeError("out of order")
        return Score(1.0, True, {"right": 1.0}) if action == task.answer else "No."


def begun(mode: AutoresetMode = AutoresetMode.NEXT_STEP, count: int = 3) -> TextVectorEnv:
    env = TextVectorEnv([Wait] * count, mode)
    env.reset(options={"task_id": list(WORDS[:count])})
    return env


def prompts(observations: tuple[Any, ...]) -> list[str]:
    return ["".join(m["content"] for m in messages) for messages in observations]


def test_each_environment_has_its_own_seed() -> None:
    def make() -> CopyEnv:
        return CopyEnv(tasks=ProceduralTasks(lambda rng: (str(rng.integers(10**9)), "a")))

    env = TextVectorEnv([make] * 4)
    same, infos = env.reset(seed=[7, 7, 8, 8])
    assert same[0] == same[1] != same[2] == same[3]
    assert infos["task_id"][0] == infos["task_id"][1]
    counted, _ = env.reset(seed=7)
    assert counted[0] == same[0]
    assert counted[1] == same[2]
    assert env.observation_space.contains(counted)
    env.close()


def test_each_environment_may_have_its_own_task() -> None:
    env = begun()
    observations, infos = env.reset(options={"task_id": ["six", "one", "two"], "split": "train"})
    assert prompts(observations) == ["Say six", "Say one", "Say two"]
    assert infos["task_id"].tolist() == ["six", "one", "two"]
    observations, _ = env.reset(options={"task_id": "two"})
    assert prompts(observations) == ["Say two"] * 3
    env.close()


def test_a_step_brings_arrays_and_infos_of_any_type() -> None:
    env = begun()
    observations, rewards, terminated, truncated, infos = env.step(["one", "x", "six"])
    assert prompts(observations) == ["", "No.", ""]
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert terminated.tolist() == [True, False, True]
    assert truncated.tolist() == [False] * 3
    assert infos["success"].tolist() == [True, None, True]
    assert infos["_success"].tolist() == [True, False, True]
    assert infos["reward_components"].tolist() == [{"right": 1.0}, {}, {"right": 1.0}]
    env.close()


def test_the_next_step_resets_what_is_over() -> None:
    env = begun()
    env.step(["one", "x", "six"])
    observations, rewards, terminated, _, infos = env.step(["ignored", "two", "ignored"])
    assert rewards.tolist() == [0.0, 1.0, 0.0]
    assert terminated.tolist() == [False, True, False]
    assert prompts(observations)[0].startswith("Say ")
    assert infos["success"].tolist() == [None, True, None]
    env.close()


def test_the_same_step_may_reset_what_is_over() -> None:
    env = begun(AutoresetMode.SAME_STEP)
    observations, rewards, terminated, _, infos = env.step(["one", "x", "x"])
    assert terminated.tolist() == [True, False, False]
    assert rewards[0] == 1.0
    assert prompts(observations)[0].startswith("Say ")
    assert infos["final_obs"][0] == ()
    assert infos["final_info"][0]["success"] is True
    assert infos["_final_info"].tolist() == [True, False, False]
    assert infos["success"].tolist() == [None] * 3 if "success" in infos else True
    env.close()


def test_without_autoreset_a_mask_says_what_to_reset() -> None:
    env = begun(AutoresetMode.DISABLED)
    env.step(["one", "x", "x"])
    with pytest.raises(UsageError, match="episodes are over in 0"):
        env.step(["one", "x", "x"])
    mask = np.array([True, False, False])
    observations, infos = env.reset(options={"reset_mask": mask, "task_id": ["two", "", ""]})
    assert prompts(observations) == ["Say two", "No.", "No."]
    assert infos["_task_id"].tolist() == [True, False, False]
    _, rewards, _, _, _ = env.step(["two", "two", "six"])
    assert rewards.tolist() == [1.0] * 3
    env.close()


def test_thirty_two_slow_tools_take_little_longer_than_one() -> None:
    def seconds(count: int) -> float:
        env = TextVectorEnv([lambda: Wait(0.02, max_turns=9)] * count)
        env.reset(seed=0)
        best = 9.0
        for _ in range(8):
            started = time.perf_counter()
            env.step(["x"] * count)
            best = min(best, time.perf_counter() - started)
        env.close()
        return best

    assert seconds(32) < 2 * seconds(1)


def test_an_environment_stays_in_its_thread() -> None:
    env = begun()
    env.step(["one", "x", "six"])
    threads = env.call("threads")
    assert all(len(each) == 1 for each in threads)
    assert len(set.union(*threads)) == 3
    assert threading.current_thread() not in set.union(*threads)
    env.close()
    assert not any(thread.is_alive() for thread in set.union(*threads))


def test_what_an_environment_raises_reaches_the_caller() -> None:
    env = begun()
    with pytest.raises(RuntimeError, match="out of order"):
        env.step(["one", "fail", "six"])
    env.close()


def test_an_environment_that_is_late_is_named() -> None:
    env = TextVectorEnv([Wait, lambda: Wait(1.0)], timeout_s=0.2)
    env.reset(seed=0)
    with pytest.raises(TimeoutError, match=r"no answer in 0.2 s from environments 1"):
        env.step(["x", "x"])
    env.close()


def test_an_environment_that_cannot_be_made_says_why() -> None:
    before = set(threading.enumerate())
    with pytest.raises(UsageError, match="max_turns"):
        TextVectorEnv([Wait, lambda: Wait(max_turns=0)])
    assert set(threading.enumerate()) <= before


def test_wrappers_work_inside() -> None:
    env = TextVectorEnv([lambda: FullHistory(Wait())] * 2)
    env.reset(options={"task_id": "one"})
    observations, *_ = env.step(["x", "y"])
    assert prompts(observations) == ["Say onexNo.", "Say oneyNo."]
    assert env.render()[0].endswith("[user] No.")
    env.close()


def test_gymnasiums_own_wrappers_take_it() -> None:
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(begun())
    env.reset(options={"task_id": list(WORDS)})
    *_, infos = env.step(list(WORDS))
    assert infos["episode"]["r"].tolist() == [1.0] * 3
    env.close()


def test_senseless_use_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        TextVectorEnv([])
    env = begun()
    with pytest.raises(UsageError, match="1 actions for 3"):
        env.step(["one"])
    with pytest.raises(UsageError, match="seed: 2 values for 3"):
        env.reset(seed=[1, 2])
    with pytest.raises(UsageError, match="task_id: 1 values for 3"):
        env.reset(options={"task_id": ["one"]})
    with pytest.raises(UsageError, match="knows the options"):
        env.reset(options={"colour": "red"})
    env.close()
