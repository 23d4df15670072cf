"""Expressions to be computed with a calculator, over at most a few turns."""

from typing import Any

import numpy as np

from grpo_envs.math.arithmetic import check_level, near_miss, problem
from grpo_envs.math.grading import verify_number
from grpo_envs.tools.expressions import evaluate
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.tools import Call, ToolEnv, tool


class CalculatorEnv(ToolEnv):
    """A question that takes one call of the calculator, then the answer in a box.

    The answer is what counts: it may be reached without the calculator.

    Args:
        level: difficulty, 1 to 5; see `grpo_envs.math.arithmetic.expression`.
        **kwargs: as in `ToolEnv`.
    """

    max_turns = 4
    system_prompt = "Put the final answer in \\boxed{}."

    def __init__(self, *, level: int = 1, **kwargs: Any) -> None:
        self.level = check_level(level)
        super().__init__(**kwargs)

    @tool
    def calculator(self, expression: str) -> str:
        """Compute an expression of numbers, + - * / // % ** and brackets."""
        return str(evaluate(expression))

    def default_tasks(self) -> TaskSource:
        """Endless expressions of this level."""
        return ProceduralTasks(lambda rng: problem(rng, self.level))

    def describe_tools(self) -> str:
        """Shorter than the schema, as the form says it all."""
        return "Tool: " + self.codec.render(Call("calculator", {"expression": "1 + 2"}))

    def grade(self, task: Task, action: str) -> Score:
        """Score the boxed answer."""
        return verify_number(action, task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        """Call the calculator, then box what it said."""
        return self._play(task.metadata["expression"], task.answer)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Call the calculator, then box something else."""
        return self._play(task.metadata["expression"], near_miss(task, rng))

    def _play(self, expression: str, answer: str) -> tuple[str, ...]:
        return self.codec.render(
            Call("calculator", {"expression": expression})
        ), f"\\boxed{{{answer}}}"
