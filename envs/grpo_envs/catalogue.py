"""The catalogue of environments, as the page `envs/README.md`."""

from pathlib import Path
from typing import Any

from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.registry import EnvironmentRow, environments, make
from grpo_gym.sandbox import SandboxError

README = Path(__file__).parents[1] / "README.md"
SAMPLES = Path(__file__).parent / "samples"

LONGEST_MESSAGE = 1500
WITHOUT_SOLUTION = {
    "grpo_gym/Blackjack-v0": ("\\boxed{stick}",),
    "grpo_gym/MiniGrid-v0": ("\\boxed{right}", "\\boxed{forward}", "\\boxed{jump}"),
}
"""What is played in the sample of an environment that names no solution."""

_TITLE = """# Environments

Each is a real `gymnasium.Env` and keeps the contract that `grpo_gym.testing.EnvContract` proves.
`grpo_gym.make(id)` builds one; `gymnasium.make("grpo_envs:" + id)` does too. This page is made by
`python -m grpo_envs envs/README.md` from the registry and from one episode of each.

"""
_ADDING = """
Those that need data take `path=` (a `.jsonl`, `.parquet` or `.json` file, or a folder with one for each
split) or `dataset=`, an id on the Hugging Face hub. The licence is that of the tasks; "yours" means that
of your data.

`reasoning_gym/NAME` makes the 104 generators of reasoning-gym (extra `reasoning`), and games of GEM,
TextArena, skyrl-gym and OpenEnv come in by adapters: [docs/adapters.md](../docs/adapters.md).

## Adding one

1. Write a `TextEnv` (or a `ToolEnv`) in a file below `grpo_envs`; `examples/define_environment.py` shows one.
2. Register it in `grpo_envs/__init__.py`. If it needs a file, put a few tasks that you wrote yourself into
   `grpo_envs/samples/NAME-v0.jsonl`; the tests give it as `path=`.
3. `python -m grpo_envs envs/README.md` writes this page. `tests/test_contract.py` tests it from then on.

An environment in a package of your own needs none of this: register it when your module is imported and name
the module in the entry-point group `grpo_gym.envs`, or build it as `grpo_gym.make("your_module:YourEnv")`.

## Sample conversations
"""


def sample_arguments(id: str) -> dict[str, Any]:
    """Arguments that make a small instance: the sample file, where the environment has one."""
    path = SAMPLES / f"{id.rpartition('/')[2]}.jsonl"
    return {"path": path} if path.is_file() else {}


def own_rows() -> list[EnvironmentRow]:
    """The rows of the environments that come with grpo_gym, those of plug-ins left out."""
    return [row for row in environments() if row.id.startswith("grpo_gym/")]


def readme(previous: str = "") -> str:
    """The whole page.

    Args:
        previous: the page as it was. It gives the sample of an environment whose extra, or whose
            sandbox, is missing here, so that the page does not depend on the machine.
    """
    rows = own_rows()
    samples = [f"\n### `{row.id}`\n{_sample(row, previous)}" for row in rows]
    return _TITLE + _table(rows) + _ADDING + "".join(samples)


def conversation(id: str) -> str:
    """One seeded task, played by its solution or a few actions, and what it earned.

    Raises:
        UsageError: The environment cannot be made.
    """
    env = make(id, **sample_arguments(id))
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    env.reset(seed=1)
    assert text_env.task is not None
    reward = 0.0
    info: dict[str, Any] = {}
    for action in text_env.solution(text_env.task) or WITHOUT_SOLUTION.get(id, ()):
        _, earned, _, _, info = env.step(action)
        reward += float(earned)
    lines = [f"[{m['role']}] {_shortened(m['content'])}" for m in text_env.conversation]
    if "success" in info:
        lines.append(f"(reward {reward:g}, {'success' if info['success'] else 'no success'})")
    env.close()
    return "\n".join(lines)


def _table(rows: list[EnvironmentRow]) -> str:
    head = (
        "| id | turns | tools | verifier | source of tasks | licence |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"| {' | '.join(_cells(row))} |\n" for row in rows)


def _cells(row: EnvironmentRow) -> list[str]:
    cells = [row.turns, ", ".join(row.tools), row.verifier, row.source, row.licence]
    return [f"`{row.id}`", *(cell.replace("|", "\\|") or "-" for cell in cells)]


def _sample(row: EnvironmentRow, previous: str) -> str:
    needs = f" Needs `{row.install}`." if row.install else ""
    try:
        played = f"\n````text\n{conversation(row.id)}\n````\n"
    except UsageError as error:
        if not (row.install or isinstance(error, SandboxError)):
            raise
        _, _, rest = previous.partition(f"\n### `{row.id}`\n")
        kept = rest.partition("\n### `")[0].partition("\n````text\n")[2]
        played = f"\n````text\n{kept}" if kept else ""
    return f"\n{row.summary}{needs}\n{played}"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:LONGEST_MESSAGE]} [... {len(text) - LONGEST_MESSAGE} more characters]"
