"""Processes that evaluate and play together: the result of one process, one end for all."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import ListTasks, ProceduralTasks, Task, UsageError
from grpo_gym.config import RolloutConfig
from grpo_gym.launch import is_first, launched
from grpo_gym.playing import run_rollouts
from tests.commands import flags
from tests.launching import finish, launch
from tests.letters import Letters

# Several interpreters start at once in most of these tests, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(300)

# One group is played at a time: one process and two sample in equal batches, and get the same bits.
OPTIONS: dict[str, Any] = {"n": 4, "k": (1, 4), "max_lanes": 4, "max_tokens": 8, "patience_s": 9.0}
CASES: dict[str, dict[str, Any]] = {
    "three tasks": {"env": "tests.letters:Letters", "tasks": 3},
    "one task for two processes": {"env": "tests.letters:Talk", "tasks": 1},
    "a few failures": {
        "env": "tests.test_playing_ranks:Flaky",
        "tasks": 4,
        "k": (1,),
        "max_error_share": 0.9,
    },
}

PLAY = """
import json, sys
import grpo_gym
from grpo_gym.config import RolloutConfig
from grpo_gym.playing import run_rollouts
for name, options in json.loads(sys.argv[1]).items():
    files = {"out": f"{name}.json", "rollouts": f"{name}.jsonl"}
    try:
        print(grpo_gym.evaluate(**files | options).to_json().replace("\\n", " "))
    except (grpo_gym.UsageError, RuntimeError, ValueError) as error:
        print(json.dumps([name, type(error).__name__, str(error)]))
config = RolloutConfig(env="tests.letters:Talk", episodes=3, max_lanes=1, max_tokens=8)
print([rollout.turns[-1].action for g in run_rollouts(config).groups for rollout in g.rollouts])
"""


class Flaky(Letters):
    """An environment that fails now and then, whoever plays it."""

    def step(self, action: str) -> Any:
        if len(action) % 2 == 0:
            raise ConnectionError("the service is down")
        return super().step(action)


class OneLacksData(Letters):
    """An environment that one machine does not have."""

    def __init__(self) -> None:
        if not is_first():
            raise UsageError("there is no data on this machine")
        super().__init__()


class FaultyTasks(ProceduralTasks):
    """Tasks that cannot be listed on one machine."""

    def task_ids(self, split: str) -> None:
        if split == "test" and not is_first():
            raise ValueError("a fault")


class OneIsFaulty(Letters):
    """An environment that fails on one machine, for a reason that nobody foresaw."""

    def default_tasks(self) -> ProceduralTasks:
        return FaultyTasks(lambda rng: ("Say it.", "e"))


class OneHasLess(Letters):
    """A set of tasks of which one machine has fewer."""

    def default_tasks(self) -> Any:
        return ListTasks([Task(str(i), "Say it.", "e") for i in range(3 if is_first() else 2)])


class Slow(Letters):
    """An environment that leaves time for a signal, and says that it is at work."""

    def respond(self, task: Any, action: str) -> Any:
        Path(f"at-work-{launched()[0]}").touch()
        time.sleep(0.2)
        return super().respond(task, action)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Every case on two ranks: the folder that they wrote to, and what each said."""
    folder = tmp_path_factory.mktemp("two")
    runs = {name: OPTIONS | case for name, case in CASES.items()}
    for name in ("OneLacksData", "OneIsFaulty", "OneHasLess"):
        runs[name] = OPTIONS | {"env": f"tests.test_playing_ranks:{name}"}
    runs["no success"] = OPTIONS | {"env": "tests.letters:Silent", "rollouts": None, "tasks": 2}
    runs["no folder"] = OPTIONS | {"env": "tests.letters:Letters", "out": "nowhere/out.json"}
    runs["endpoint"] = OPTIONS | {"engine": "http://127.0.0.1:9/v1", "model": "some"}
    ends = finish(launch(2, "-c", PLAY, json.dumps(runs), cwd=folder))
    assert [end[0] for end in ends] == ["0", "0"], ends
    return folder, [end[1].splitlines() for end in ends]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_evaluate_as_one_process_does(
    name: str, on_two: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    folder, said = on_two
    files = {"out": "one.json", "rollouts": "one.jsonl"}
    paths = {option: str(tmp_path / file) for option, file in files.items()}
    result = grpo_gym.evaluate(**(OPTIONS | CASES[name] | paths))
    assert (result.failures > 0) is (name == "a few failures")
    place = list(CASES).index(name)
    for lines in said:
        assert json.loads(lines[place]) == json.loads(result.to_json())
    for file in files.values():
        theirs = folder / file.replace("one", name)
        assert theirs.read_text() == (tmp_path / file).read_text()


NO_SUCCESS = (
    "tests.letters:Silent does not report info['success'] when an episode ends, and a reward above 0 is "
    "not a solved task: have the environment report it"
)


@pytest.mark.slow
def test_what_fails_on_one_rank_ends_the_evaluation_on_all(
    on_two: tuple[Path, list[list[str]]],
) -> None:
    folder, said = on_two
    first, second = ([json.loads(line) for line in lines[len(CASES) : -1]] for lines in said)
    assert first == [
        ["OneLacksData", "UsageError", "there is no data on this machine"],
        ["OneIsFaulty", "RankFailure", "process 1 failed with ValueError: a fault"],
        [
            "OneHasLess",
            "UsageError",
            "the list of tasks of process 1 differs from that of process 0",
        ],
        ["no success", "UsageError", NO_SUCCESS],
        ["no folder", "UsageError", "cannot write nowhere/out.json: there is no folder nowhere"],
        [
            "endpoint",
            "UsageError",
            "endpoint http://127.0.0.1:9/v1 is played with in one process, but 2 were launched: launch one; "
            "engine_arg concurrency says how many requests it has in flight",
        ],
    ]
    assert second[1] == ["OneIsFaulty", "ValueError", "a fault"]
    assert [second[0], *second[2:]] == [first[0], *first[2:]]
    assert {path.stem for path in folder.iterdir()} == set(CASES)


@pytest.mark.slow
def test_two_ranks_play_as_one_process_does(on_two: tuple[Path, list[list[str]]]) -> None:
    config = RolloutConfig(env="tests.letters:Talk", episodes=3, max_lanes=1, max_tokens=8)
    played = [r.turns[-1].action for group in run_rollouts(config).groups for r in group.rollouts]
    assert [lines[-1] for lines in on_two[1]] == [str(played)] * 2


def words(*more: str) -> list[str]:
    options = OPTIONS | {"env": "tests.letters:Letters", "tasks": 4, "out": "out.json"}
    return ["-m", "grpo_gym.cli", "eval", *flags(options), *more]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "status", "line"), [([], "0", ""), (["--n", "0"], "2", "n is 0")])
def test_rank_0_alone_speaks_and_writes(
    more: list[str], status: str, line: str, tmp_path: Path
) -> None:
    first, second = finish(launch(2, *words(*more), cwd=tmp_path))
    assert (first[0], second[0]) == (status, status), first
    assert line in first[2]
    assert first[2].count("\n") == (status != "0")
    assert second[1:] == ["", ""]
    assert (tmp_path / "out.json").exists() is (status == "0") is ("pass@4" in first[1])


@pytest.mark.slow
def test_a_signal_to_one_rank_ends_all_once_the_others_have_played_their_share(
    tmp_path: Path,
) -> None:
    command = words("--env", "tests.test_playing_ranks:Slow", "--tasks", "30")
    processes = launch(2, *command, cwd=tmp_path)
    until = time.monotonic() + 200
    while not all((tmp_path / f"at-work-{rank}").exists() for rank in range(2)):
        assert time.monotonic() < until
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(processes, timeout_s=100)
    assert first == ["130", "", "grpo-gym: interrupted\n"]
    assert second == ["130", "", ""]
    assert not (tmp_path / "out.json").exists()
