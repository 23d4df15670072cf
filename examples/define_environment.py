"""Define an environment in about twenty lines, play it, and prove that it keeps the contract.

python examples/define_environment.py            # play an episode, then check 8 tasks
python examples/define_environment.py --smoke    # the same on 2 tasks, in a second
"""

import sys

import numpy as np

from grpo_gym import ProceduralTasks, Score, Task, TextEnv
from grpo_gym.testing import check_environment

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class ReverseEnv(TextEnv):
    """Spell a word backwards; a wrong attempt may be repaired once."""

    max_turns = 2
    system_prompt = "Answer with one word."

    def default_tasks(self) -> ProceduralTasks:
        """Endless random words: the task is a function of its seed."""

        def make(rng: np.random.Generator) -> tuple[str, str]:
            word = "".join(rng.choice(list(LETTERS), size=5))
            return f"Spell {word} backwards.", word[::-1]

        return ProceduralTasks(make)

    def respond(self, task: Task, action: str) -> Score | str:
        """A score ends the episode; a string is the next thing the model reads."""
        if action.strip() == task.answer:
            return Score(value=1.0, success=True, components={"attempts": self.turn + 1})
        return "That is not it. Try again."


def main() -> None:
    """Play one episode, then check the contract."""
    env = ReverseEnv()
    _, info = env.reset(seed=0)
    print(f"task {info['task_id']}")
    assert env.task is not None
    for action in ("perhaps", env.task.answer):
        _, reward, terminated, truncated, info = env.step(action)
    print(env.render())
    print(f"reward {reward}, terminated {terminated}, truncated {truncated}, {info}\n")

    report = check_environment(ReverseEnv, seeds=range(2 if "--smoke" in sys.argv else 8))
    print(report)
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
