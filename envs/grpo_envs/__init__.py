"""Environments that come with grpo_gym. Importing this registers them; see envs/README.md."""

from grpo_gym.registry import register

register(
    "grpo_gym/Arithmetic-v0",
    "grpo_envs.math.arithmetic:ArithmeticEnv",
    verifier="verifiers.math",
    source="procedural, levels 1 to 5",
    summary="Compute a small expression and box the result.",
)
register(
    "grpo_gym/Calculator-v0",
    "grpo_envs.tools.calculator:CalculatorEnv",
    turns="1-4",
    tools=("calculator",),
    verifier="verifiers.math",
    source="procedural, levels 1 to 5",
    summary="Compute an expression with a calculator at hand and box the result.",
)
register(
    "grpo_gym/Copy-v0",
    "grpo_gym.testing.copy:CopyEnv",
    verifier="exact match",
    source="procedural",
    summary="Say the word that was asked for; learnt in seconds.",
)

register(
    "grpo_gym/GSM8K-v0",
    "grpo_envs.math.gsm8k:GSM8KEnv",
    verifier="verifiers.math",
    source="JSONL files, or a Hugging Face data set",
    summary="Solve a grade-school word problem and box the answer.",
)
