"""Episodes a second of one environment, and how long 32 lanes wait for a tool of 20 ms.

python benchmarks/episodes.py             # about ten seconds
python benchmarks/episodes.py --smoke     # a second, to see that it runs

An episode is `reset` and one `step` of an environment that is made once and used again. Figures are CPU
microseconds, the best of several rounds that take turns. Peers are measured where they are installed
(pip install gem-llm skyrl-gym), each on what comes nearest to Arithmetic:

- "fresh task": the task is made within the episode. GEM's rg:basic_arithmetic does the same.
- "given task": the task comes from a list. So it does in skyrl-gym's gsm8k, whose answer is an argument
  of the constructor: a new task is a new environment, built by `make` as SkyRL's trainer does. The row
  "without make" calls its class instead, and shows what the rest costs: it passes the prompt through
  unread, searches one pattern, and returns no id, no components of the reward and no flags.
- GEM's GuessTheNumber draws a number from Python's global generator and forgets it: no task has a name,
  and none can be played again. One guess of it is no episode; the row is there for the scale.
"""

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import grpo_gym
from grpo_gym.tasks import ListTasks
from grpo_gym.testing.copy import CopyEnv
from grpo_gym.wrappers import TextVectorEnv

SMOKE = "--smoke" in sys.argv
EPISODES, ROUNDS = (50, 2) if SMOKE else (2000, 7)

Episode = Callable[[int], object]


def ours(**arguments: Any) -> Episode:
    env = grpo_gym.make("grpo_gym/Arithmetic-v0", **arguments)

    def play(number: int) -> None:
        env.reset()
        env.step(f"\\boxed{{{number % 19}}}")

    return play


def given() -> Episode:
    tasks: Any = grpo_gym.make("grpo_gym/Arithmetic-v0").unwrapped
    return ours(tasks=ListTasks([tasks.tasks.get(f"train-{n}") for n in range(500)]))


def gem(name: str) -> Episode:
    env = importlib.import_module("gem").make(name)

    def play(number: int) -> None:
        env.reset()
        env.step(f"\\boxed{{{number % 19}}}")

    return play


def skyrl(registered: bool = True) -> Episode:
    make = importlib.import_module("skyrl_gym").make
    if not registered:
        env_class = importlib.import_module("skyrl_gym.envs.gsm8k.env").GSM8kEnv
        make = lambda id, **arguments: env_class(**arguments)  # noqa: E731

    def play(number: int) -> None:
        extras = {"reward_spec": {"ground_truth": str(number % 10 + 9)}}
        env = make("gsm8k", env_config=None, extras=extras)
        env.init([{"role": "user", "content": f"What is {number % 10} + 9?"}])
        env.step(f"#### {number % 19}")

    return play


CASES: dict[str, Callable[[], Episode]] = {
    "grpo_gym Arithmetic, fresh task": ours,
    "GEM rg:basic_arithmetic, fresh task": lambda: gem("rg:basic_arithmetic"),
    "grpo_gym Arithmetic, given task": given,
    "skyrl-gym gsm8k, given task": skyrl,
    "skyrl-gym gsm8k, given task, without make": lambda: skyrl(registered=False),
    "GEM GuessTheNumber, fresh task, one guess": lambda: gem("game:GuessTheNumber-v0-easy"),
}


def microseconds(play: Episode) -> float:
    started = time.process_time()
    for number in range(EPISODES):
        play(number)
    return (time.process_time() - started) / EPISODES * 1e6


class SlowEnv(CopyEnv):
    """A tool of 20 ms in every step."""

    def respond(self, task: Any, action: str) -> Any:
        """Wait, then answer."""
        time.sleep(0.02)
        return super().respond(task, action)


def waiting(lanes: int) -> float:
    """Milliseconds of a step of that many lanes."""
    env = TextVectorEnv([SlowEnv] * lanes)
    best = 1e9
    for seed in range(ROUNDS):
        env.reset(seed=seed)
        started = time.perf_counter()
        env.step(["red"] * lanes)
        best = min(best, time.perf_counter() - started)
    env.close()
    return best * 1e3


def main() -> None:
    plays = {}
    for name, build in CASES.items():
        try:
            plays[name] = build()
        except (ImportError, ValueError) as error:
            print(f"{name:44}left out: {' '.join(str(error).split())[:80]}")
    best = dict.fromkeys(plays, 1e9)
    for play in plays.values():
        microseconds(play)
    for _ in range(ROUNDS):
        for name, play in plays.items():
            best[name] = min(best[name], microseconds(play))
    for name, value in best.items():
        print(f"{name:44}{value:8.1f} µs an episode")
    one, many = waiting(1), waiting(32)
    print(
        f"{'a 20 ms tool: 1 lane, 32 lanes':44}{one:8.1f} ms {many:8.1f} ms: {many / one:.2f} times"
    )


if __name__ == "__main__":
    main()
