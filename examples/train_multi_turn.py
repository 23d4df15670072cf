"""Train a model to use a tool over several turns, and see it get better.

python examples/train_multi_turn.py            # 40 steps of the tiny model, about a minute
python examples/train_multi_turn.py --smoke    # 1 step, in seconds
"""

import sys

from rich.console import Console

import grpo_agents
import grpo_gym


def main() -> None:
    """Train on the calculator, then compare before and after."""
    smoke = "--smoke" in sys.argv
    run = grpo_gym.train(
        # The model may call a calculator, reads its answer, and boxes the result: up to four turns.
        env="grpo_gym/Calculator-v0",
        env_args={"level": 1},
        agent=grpo_agents.dr_grpo(budget=64),
        model="tiny",
        steps=1 if smoke else 40,
        groups_per_step=4 if smoke else 16,
        group_size=8,
        max_tokens=32,
        eval_tasks=4 if smoke else 128,
        eval_n=8,
        eval_k=(1, 8),
        seed=0,
        console=Console(),
    )
    before, after = run.evaluations[0], run.evaluations[run.steps]
    print(f"pass@1 before: {before.pass_at[1]}")
    print(f"pass@1 after:  {after.pass_at[1]}")
    print(f"the trained model: {run.model}")


if __name__ == "__main__":
    main()
