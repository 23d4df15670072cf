"""Evaluate a model on tasks of your own: pass@k with a confidence interval.

python examples/evaluate_pass_at_k.py                    # the tiny model
python examples/evaluate_pass_at_k.py --model ./my-model # a folder that transformers can load
python examples/evaluate_pass_at_k.py --smoke            # fewer rollouts, in seconds
"""

import argparse

import grpo_gym
from grpo_gym import ListTasks, Score, Task, TextEnv

QUESTIONS = {
    "What is 3 + 4?": "7",
    "What is 2 + 2?": "4",
    "What is 5 + 3?": "8",
    "What is 9 + 1?": "10",
}


class SumsEnv(TextEnv):
    """Four sums, written down by hand."""

    system_prompt = "Put the final answer in \\boxed{}."

    def default_tasks(self) -> ListTasks:
        """The tasks: each has an id, a question and an answer."""
        return ListTasks([Task(f"sum-{i}", q, a) for i, (q, a) in enumerate(QUESTIONS.items())])

    def respond(self, task: Task, action: str) -> Score:
        """What counts is `success`; a reward above 0 alone is not a solved task."""
        right = f"\\boxed{{{task.answer}}}" in action
        return Score(value=float(right), success=right)


def main() -> None:
    """Evaluate, and print the estimates and the tasks that were never solved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    n = 8 if options.smoke else 64
    result = grpo_gym.evaluate(env=SumsEnv, model=options.model, n=n, k=(1, 4, 8), max_tokens=24)
    print(result)
    unsolved = [task for task, (solved, _) in result.successes.items() if not solved]
    print(f"never solved: {', '.join(unsolved) or 'none'}")


if __name__ == "__main__":
    main()
