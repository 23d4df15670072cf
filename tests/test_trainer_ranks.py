"""Processes that train together: the run of one process, and one end for all."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

import grpo_gym
from grpo_gym import UsageError, checkpoint
from grpo_gym.cli import main
from grpo_gym.launch import is_first, launched
from grpo_gym.monitor import read_metrics
from grpo_gym.objectives.stages import Selection
from grpo_gym.ranks import RankFailure, Ranks
from grpo_gym.runs import Run
from tests.commands import ROOT, environment, flags
from tests.launching import finish, launch
from tests.letters import Letters, Talk
from tests.once import made_once

# Several interpreters start at once in most of these tests, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(300)

# Two groups on two ranks, one group at a time in sampling and in a micro-batch: one process and two then add
# up the same numbers in the same order, and float32 gives them the same bits.
SAME: dict[str, Any] = {
    "groups_per_step": 2,
    "group_size": 4,
    "max_lanes": 4,
    "max_tokens": 8,
    "patience_s": float("inf"),
    "learning_rate": 1e-3,
}
SUMS = {"env": "grpo_gym/Arithmetic-v0", "tokens_per_micro_batch": 60, "steps": 3}
LETTERS = {"env": "tests.letters:Letters", "tokens_per_micro_batch": 30, "steps": 2}
CASES: dict[str, dict[str, Any]] = {
    "one turn": SUMS,
    "evaluated": LETTERS | {"eval_tasks": 3, "eval_n": 4, "eval_k": (1,)},
    "several turns": {"env": "tests.letters:Talk", "tokens_per_micro_batch": 150, "steps": 2},
    "several optimiser steps": LETTERS | {"epochs": 2},
    "KL to the first policy": LETTERS | {"kl": 0.1, "steps": 3},
    "dynamic sampling": SUMS | {"agent": "dapo"},
    "a critic": LETTERS | {"agent": "ppo"},
    "top log-probs": LETTERS | {"agent": "dppo", "agent_args": {"divergence": "topk_kl", "k": 5}},
}
TRAIN = """
import atexit, json, sys
from tests.launching import print_threads_of_gloo
atexit.register(print_threads_of_gloo)  # the first to register is the last to be called
import grpo_gym
for name, options in json.loads(sys.argv[1]).items():
    try:
        grpo_gym.train(run_dir=name, **options)
    except (grpo_gym.UsageError, RuntimeError, ValueError) as error:
        print(json.dumps([name, type(error).__name__, str(error)]))
"""

SHARDED = """
import json, sys
from grpo_gym.config import from_values, TrainConfig
from grpo_gym.jobs import run_training
from grpo_gym.ranks import RankFailure, Ranks
from tests.rank_cases import accelerator_of
with Ranks() as ranks:
    ranks.accelerator = accelerator_of(sys.argv[2])
    for options in json.loads(sys.argv[1]):
        run_training(from_values(TrainConfig, options, "test"), ranks=ranks)
        ranks.accelerator.free_memory()
"""


class OneFails(Letters):
    """An environment whose service is down on one machine."""

    def step(self, action: str) -> Any:
        if not is_first():
            raise ConnectionError("the service is down")
        return super().step(action)


class OneLacksData(Letters):
    """An environment that one machine does not have."""

    def __init__(self) -> None:
        if not is_first():
            raise UsageError("there is no data on this machine")
        super().__init__()


class OneIsFaulty(Letters):
    """An environment that cannot be built on one machine, for a reason that nobody foresaw."""

    def __init__(self) -> None:
        if not is_first():
            raise ValueError("a fault")
        super().__init__()


class Fickle(Selection):
    """A selection that does not choose alike on all ranks."""

    def __call__(self, groups: Any) -> tuple[Any, ...]:
        return tuple(groups) if is_first() else ()


class Slow(Letters):
    """An environment that leaves time for a signal."""

    def respond(self, task: Any, action: str) -> Any:
        time.sleep(0.2)
        return super().respond(task, action)


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(folder: Path) -> bytes:
    last = checkpoint.latest(folder)
    assert last is not None
    return (last / "model" / "model.safetensors").read_bytes()


def train(folder: Path, name: str, **options: Any) -> Run:
    return grpo_gym.train(run_dir=folder / name, **(SAME | CASES[name] | options))


def train_on_two(folder: Path, runs: dict[str, dict[str, Any]]) -> list[list[list[str]]]:
    """Train each run on two ranks; what each rank says of the runs that failed."""
    words = ["-c", TRAIN, json.dumps(runs, default=str)]
    ends = finish(launch(2, *words, cwd=folder))
    assert [end[0] for end in ends] == ["0", "0"], ends
    return [[json.loads(line) for line in end[1].splitlines()] for end in ends]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on two ranks; and one that is cut short, to go on from."""

    def make(folder: Path) -> None:
        runs = {name: SAME | case for name, case in CASES.items()}
        runs["cut short"] = SAME | CASES["one turn"] | {"steps": 2, "save_every": 1}
        assert train_on_two(folder, runs) == [[], []]

    return made_once(tmp_path_factory, "trainer-ranks", make)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_bit_for_bit_as_one_process_does(
    name: str, on_two: Path, tmp_path: Path
) -> None:
    run = train(tmp_path, name)
    assert any(row.get("grad_norm", 0) > 0 for row in metrics(run.folder))
    assert metrics(on_two / name) == metrics(run.folder)
    assert weights(on_two / name) == weights(run.folder)
    files = {path.relative_to(run.folder) for path in run.folder.rglob("*")}
    assert {path.relative_to(on_two / name) for path in (on_two / name).rglob("*")} == files
    for path in sorted(run.folder.glob("eval-*.json")):
        assert (on_two / name / path.name).read_text() == path.read_text()


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(on_two: Path, tmp_path: Path) -> None:
    fewer = grpo_gym.train(run_dir=on_two / "cut short", resume=True, steps=3)
    assert metrics(fewer.folder) == metrics(on_two / "one turn")
    assert weights(fewer.folder) == weights(on_two / "one turn")
    train(tmp_path, "one turn", steps=1)
    more = {"one turn": {"resume": True, "steps": 3}}
    assert train_on_two(tmp_path, more) == [[], []]
    assert metrics(tmp_path / "one turn") == metrics(on_two / "one turn")
    assert weights(tmp_path / "one turn") == weights(on_two / "one turn")


@pytest.mark.slow
def test_with_more_groups_only_the_order_of_a_sum_differs(tmp_path: Path) -> None:
    """Micro-batches and ranks add up floats in another order: 1e-3 of how far the weights moved."""
    from grpo_gym.policy import load_policy

    options = SAME | {
        "env": Talk,
        "steps": 1,
        "groups_per_step": 5,
        "tokens_per_micro_batch": 16_384,
    }
    one = grpo_gym.train(run_dir=tmp_path / "one", **options)
    assert train_on_two(tmp_path, {"two": options | {"env": "tests.letters:Talk"}}) == [[], []]
    (here,), (there,) = metrics(one.folder), metrics(tmp_path / "two")
    assert there == pytest.approx(here, rel=1e-4, abs=1e-5)
    last = checkpoint.latest(tmp_path / "two")
    assert last is not None
    models = [load_policy(name).model.state_dict() for name in ("tiny", one.model, last / "model")]
    moved = sum(
        float((a - b).square().sum()) for a, b in zip(*map(dict.values, models[:2]), strict=True)
    )
    apart = sum(
        float((a - b).square().sum()) for a, b in zip(*map(dict.values, models[1:]), strict=True)
    )
    assert moved > 0
    assert apart < 1e-6 * moved


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sharded", "zero2", "zero3"])
def test_sharded_weights_train_as_whole_ones_and_are_saved_whole(kind: str, tmp_path: Path) -> None:
    """On the CPU; gathered weights lie elsewhere in memory, which moves the last bits of float32."""
    if kind != "sharded" and find_spec("deepspeed") is None:
        pytest.skip("needs the extra deepspeed")
    options = SAME | LETTERS | {"agent": "ppo", "kl": 0.1, "steps": 4}
    cut = options | {"run_dir": "cut"}
    runs = [options | {"run_dir": "run"}, cut | {"steps": 2}, cut | {"resume": True}]
    ends = finish(launch(2, "-c", SHARDED, json.dumps(runs), kind, cwd=tmp_path))
    assert [end[0] for end in ends] == ["0", "0"], ends
    one = grpo_gym.train(run_dir=tmp_path / "one", **options)
    for name in ("run", "cut"):
        pairs = zip(metrics(tmp_path / name), metrics(one.folder), strict=True)
        for there, here in pairs:
            assert there == pytest.approx(here, rel=1e-3, abs=1e-4)
        assert len(weights(tmp_path / name)) == len(weights(one.folder))
    more = grpo_gym.train(run_dir=tmp_path / "cut", resume=True, steps=5)
    assert len(metrics(more.folder)) == 5


DIFFERENT = """
import json, sys
from dataclasses import replace
import grpo_gym, grpo_agents
from grpo_gym import tiny
from grpo_gym.launch import is_first
from tests.models import tiny_model
from tests.test_trainer_ranks import Fickle
options = json.loads(sys.argv[1])
fickle = replace(grpo_agents.grpo(), selection=(Fickle(),))
model = "tiny"
if not is_first():
    from pathlib import Path
    from grpo_gym.policy import load_policy
    tiny.write(Path("other"))
    policy = load_policy("other")
    policy.model.get_input_embeddings().weight.data += 1
    policy.model.save_pretrained("other")
    model = "other"
for more in ({"agent": fickle}, {"model": model}):
    try:
        grpo_gym.train(run_dir="run", **options | more)
    except grpo_gym.UsageError as error:
        print(error)
"""


@pytest.mark.slow
def test_ranks_that_would_train_on_different_things_are_stopped(tmp_path: Path) -> None:
    ends = finish(launch(2, "-c", DIFFERENT, json.dumps(SAME | LETTERS), cwd=tmp_path))
    lines = [
        "the agent's selection of process 1 differs from that of process 0",
        "the model of process 1 differs from that of process 0",
    ]
    assert [(end[0], end[1].splitlines()) for end in ends] == [("0", lines), ("0", lines)], ends


@pytest.mark.slow
def test_what_fails_on_one_rank_ends_the_run_on_all(tmp_path: Path) -> None:
    environments = ("OneFails", "OneLacksData", "OneIsFaulty")
    names = {
        name: SAME | {"env": f"tests.test_trainer_ranks:{name}", "steps": 2}
        for name in environments
    }
    names["engine"] = SAME | {"env": "tests.letters:Letters", "engine_args": {"dtype": "int8"}}
    names["fine"] = SAME | {"env": "tests.letters:Letters", "steps": 1}
    said = train_on_two(tmp_path, names)
    assert [[name, kind] for name, kind, _ in said[0]] == [
        ["OneFails", "EnvironmentFailure"],
        ["OneLacksData", "UsageError"],
        ["OneIsFaulty", "UsageError"],
        ["engine", "UsageError"],
    ]
    assert "cannot be made: ValueError: a fault (test_trainer_ranks.py:" in said[0][2][2]
    assert said[1] == said[0]
    assert "the service is down" in said[0][0][2]
    assert {path.name for path in tmp_path.iterdir()} == {"fine"}


def words(env: str, *more: str) -> list[str]:
    options = {"env": env, "groups_per_step": 2, "group_size": 4, "max_tokens": 8, "run_dir": "run"}
    return ["-m", "grpo_gym.cli", "train", *flags(options), "--learning-rate", "1e-3", *more]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "status", "line"),
    [
        (["--env", "tests.test_trainer_ranks:OneLacksData"], "2", "no data on this machine"),
        (["--env", "tests.test_trainer_ranks:OneFails"], "1", "the service is down"),
        (["--group-size", "0"], "2", "group_size is 0"),
    ],
)
def test_rank_0_alone_says_what_went_wrong(
    more: list[str], status: str, line: str, tmp_path: Path
) -> None:
    first, second = finish(launch(2, *words("tests.letters:Letters", *more), cwd=tmp_path))
    assert (first[0], second[0]) == (status, status)
    assert line in first[2]
    assert (first[1], first[2].count("\n")) == ("", 1)
    assert second[1:] == ["", ""]
    assert not (tmp_path / "run").exists()


def running(folder: Path, rows: int) -> "list[subprocess.Popen[str]]":
    """Two ranks that have done some steps and are in the middle of another."""
    command = words("tests.test_trainer_ranks:Slow", "--steps", "200")
    processes = launch(2, *command, cwd=folder)
    path = folder / "run" / "metrics.jsonl"
    until = time.monotonic() + 200
    while not path.exists() or path.read_text().count("\n") < rows:
        assert time.monotonic() < until
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
    return processes


@pytest.mark.slow
@pytest.mark.parametrize("signals", [(None, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)])
def test_a_signal_to_one_rank_or_to_all_ends_all_with_the_last_whole_step(
    signals: tuple[int | None, int | None], tmp_path: Path
) -> None:
    processes = running(tmp_path, 2)
    for process, number in zip(processes, signals, strict=True):
        if number is not None:
            process.send_signal(number)
    first, second = finish(processes)
    assert (first[0], second[0]) == ("130", "130")
    assert first[2].startswith("grpo-gym: stopped; saved after step ")
    assert first[2].count("\n") == 1
    assert second[1:] == ["", ""]
    rows = metrics(tmp_path / "run")
    last = checkpoint.latest(tmp_path / "run")
    assert last is not None
    assert last.name == f"step-{len(rows):06d}"
    assert first[2].startswith(f"grpo-gym: stopped; saved after step {len(rows)};")


def test_a_rank_that_is_gone_while_gradients_are_exchanged_is_named() -> None:
    ranks = Ranks()
    with pytest.raises(RankFailure, match=r"gone: .*Connection closed"), ranks.exchanging():
        raise RuntimeError("[x/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match=r"^a fault$"), ranks.exchanging():
        raise RuntimeError("a fault")


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_no_other_waiting(tmp_path: Path) -> None:
    processes = running(tmp_path, 1)
    processes[1].kill()
    first, _ = finish(processes, timeout_s=40)
    assert first[0] not in ("0", "2")


@pytest.mark.slow
def test_accelerate_launch_starts_them(tmp_path: Path) -> None:
    config = ROOT / "examples" / "accelerate" / "cpu2.yaml"
    if not config.is_file():
        pytest.skip("the examples are not here")
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    done = subprocess.run(
        [*accelerate, *words("tests.letters:Letters", "--steps", "1")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == [
        "run",
        "model",
        "metrics",
    ]
    assert len(metrics(tmp_path / "run")) == 1


def test_alone_there_is_one_rank_and_errors_pass_as_they_are() -> None:
    assert launched() == (0, 1)
    with Ranks() as ranks:
        assert (ranks.index, ranks.count, ranks.accelerator) == (0, 1, None)
        assert ranks.share([1, 2, 3]) == [1, 2, 3]
        assert ranks.first(lambda: 5) == ranks.alike(lambda: 5) == ranks.together(lambda: 5)[0]
        error = ValueError("as it is")

        def fail() -> None:
            raise error

        with pytest.raises(ValueError, match="as it is") as raised:
            ranks.together(fail)
        assert raised.value is error


@pytest.mark.parametrize("items", range(8))
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_shares_of_all_ranks_make_the_whole(items: int, count: int) -> None:
    shares = []
    for index in range(count):
        ranks = Ranks()
        ranks.index, ranks.count = index, count
        shares.append(ranks.share(list(range(items))))
    assert [item for share in shares for item in share] == list(range(items))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"RANK": "3"}, (0, 1)),  # of something else, such as a job of many
        ({"RANK": "first", "WORLD_SIZE": "2"}, (0, 1)),
    ],
)
def test_a_launcher_is_known_by_what_it_says(
    variables: dict[str, str], place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == place
    assert is_first() is (place[0] == 0)


def test_processes_that_accelerate_does_not_see_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would all train alone, into one folder."""
    Accelerator(cpu=True)  # accelerate looks at its surroundings once in a process
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"launched as number 1 of 2, but accelerate .* 0 of 1"):
        Ranks()


def test_other_commands_are_left_to_the_first_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["envs"]) == 0
    assert capsys.readouterr().out == ""
