"""Programs that are judged by running them: HumanEval, MBPP, your own data, and repairs over turns."""
