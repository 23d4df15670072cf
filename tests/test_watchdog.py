"""An engine that fails or hangs ends the run, with the reason in a line and the last whole step saved."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import checkpoint
from grpo_gym.engines.base import EngineFailure, EngineStopped
from grpo_gym.engines.watchdog import Watchdog
from grpo_gym.errors import UsageError
from grpo_gym.monitor import read_metrics
from tests import breaking
from tests.breaking import MAKERS, Breaking
from tests.commands import ended, environment, flags, run
from tests.launching import finish, launch
from tests.letters import Letters

SMALL: dict[str, Any] = {
    "env": "tests.letters:Letters",
    "steps": 4,
    "groups_per_step": 2,
    "group_size": 4,
    "max_tokens": 6,
    "learning_rate": 1e-3,
    "save_every": 0,
}
STEP = SMALL["groups_per_step"] * SMALL["group_size"]


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_up(call: str, completions: int) -> None:
        """Break in one of the calls, after that many completions."""
        for module in MAKERS:
            monkeypatch.setattr(module, "make_engine", breaking.make_engine)
        monkeypatch.setattr(Breaking, "call", call)
        monkeypatch.setattr(Breaking, "how", fail)
        monkeypatch.setattr(Breaking, "after", completions)
        monkeypatch.setattr(Breaking, "sampled", 0)

    return set_up


def fail() -> None:
    raise RuntimeError("the device\nis gone")


def rewards(folder: Path) -> list[float]:
    return [row["reward"] for row in read_metrics(folder / "metrics.jsonl")]


def rows(folder: Path) -> list[dict[str, float]]:
    """All metrics but times, and the gap of a sync, which one that failed has none of."""
    return [
        {k: v for k, v in row.items() if k != "sync_gap" and not k.startswith("time/")}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def gaps(folder: Path) -> list[int]:
    """The steps whose sync was verified."""
    found = read_metrics(folder / "metrics.jsonl")
    return [step for step, row in enumerate(found, 1) if "sync_gap" in row]


def weights(folder: Path) -> bytes:
    last = checkpoint.latest(folder)
    assert last is not None
    return (last / "model" / "model.safetensors").read_bytes()


def in_a_process(code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("call", "after", "step"),
    [
        ("step", 2, 2),
        ("submit", 2, 2),
        ("step abort", 2, 2),
        ("sleep", 2, 1),  # before the update
        ("load", 2, 2),  # and after it
        ("score", 2, 2),
        ("load", 4, 4),
    ],
)
def test_an_engine_that_fails_leaves_the_last_whole_step(
    call: str, after: int, step: int, breaks: Any, tmp_path: Path
) -> None:
    """What it does not leave is the gap of a step whose weights it did not take."""
    options = SMALL | {"env": Letters}
    whole = grpo_gym.train(**options, run_dir=tmp_path / "whole")
    breaks(call, after * STEP)
    with pytest.raises(EngineFailure, match="the engine failed: RuntimeError: the device is gone"):
        grpo_gym.train(**options, run_dir=tmp_path / "run")
    last = checkpoint.latest(tmp_path / "run")
    assert last is not None
    assert last.name == f"step-{step:06d}"
    assert len(rewards(tmp_path / "run")) == step
    breaks("nothing", 0)
    grpo_gym.train(env=Letters, run_dir=tmp_path / "run", resume=True)
    assert rows(tmp_path / "run") == rows(whole.folder)
    assert sorted(gaps(tmp_path / "run") + [step] * (call in ("load", "score"))) == [1, 2, 3, 4]
    assert weights(tmp_path / "run") == weights(whole.folder)


ONE_BREAKS = """
import sys
from tests import breaking
from tests.test_watchdog import fail
from grpo_gym.cli import main
from grpo_gym.launch import is_first
breaking.install()
breaking.Breaking.call = "nothing" if is_first() else "load"
breaking.Breaking.after, breaking.Breaking.how = int(sys.argv[1]), fail
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_engine_that_takes_no_weights_in_one_of_two_processes(tmp_path: Path) -> None:
    words = ["train", *flags(SMALL | {"run_dir": "run"})]
    first, second = finish(launch(2, "-c", ONE_BREAKS, str(STEP), *words, cwd=tmp_path))
    assert (first[0], second[0]) == ("1", "1"), first
    assert first[2] == "grpo-gym: error: the engine failed: RuntimeError: the device is gone\n"
    assert second[1:] == ["", ""]
    last = checkpoint.latest(tmp_path / "run")
    assert last is not None
    assert last.name == "step-000002"
    grpo_gym.train(run_dir=tmp_path / "run", resume=True)
    whole = grpo_gym.train(**SMALL, run_dir=tmp_path / "whole")
    assert rewards(tmp_path / "run") == rewards(whole.folder)


def test_an_engine_that_fails_while_it_is_evaluated(breaks: Any, tmp_path: Path) -> None:
    options = SMALL | {
        "env": Letters,
        "eval_tasks": 1,
        "eval_n": 1,
        "eval_k": (1,),
        "eval_every": 2,
    }
    breaks("step", 1 + 2 * STEP)
    with pytest.raises(EngineFailure, match="the device is gone"):
        grpo_gym.train(**options, run_dir=tmp_path / "run")
    assert checkpoint.latest(tmp_path / "run").name == "step-000002"  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["train", "eval", "rollout"])
def test_the_reason_is_one_line(
    command: str, breaks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks("step", 0)
    words = ["--run-dir", str(tmp_path / "run")] if command == "train" else []
    assert run(command, "--env", "tests.letters:Letters", *words) == 1
    error = capsys.readouterr().err
    assert error == "grpo-gym: error: the engine failed: RuntimeError: the device is gone\n"


def test_an_engine_that_hangs_leaves_the_last_whole_step(tmp_path: Path) -> None:
    words = ["train", *flags(SMALL | {"engine_timeout_s": 5, "run_dir": "run"})]
    code = (
        "from tests import breaking; from grpo_gym.cli import main\n"
        f"breaking.install(); breaking.Breaking.after = {2 * STEP}; main({words})"
    )
    ended = in_a_process(code, tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr == (
        "grpo-gym: error: the engine gave no answer in 5 s (engine_timeout_s); stopped; saved after step 2; "
        "go on with: grpo-gym train --run-dir run --resume\n"
    )
    run = grpo_gym.train(env="tests.letters:Letters", run_dir=tmp_path / "run", resume=True)
    whole = grpo_gym.train(**SMALL, run_dir=tmp_path / "whole")
    assert rewards(run.folder) == rewards(whole.folder)


@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("step", ""),
        (
            "load",
            "; stopped; saved after step 1; go on with: grpo-gym train --run-dir run --resume",
        ),
    ],
)
def test_in_the_first_step_the_process_ends_all_the_same(
    call: str, more: str, tmp_path: Path
) -> None:
    """While it samples there is no whole step to save; when it takes weights, that is the first one."""
    words = ["train", *flags(SMALL | {"engine_timeout_s": 3, "run_dir": "run"})]
    code = (
        "from tests import breaking; from grpo_gym.cli import main\n"
        f"breaking.install(); breaking.Breaking.call = {call!r}; main({words})"
    )
    ended = in_a_process(code, tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"grpo-gym: error: the engine gave no answer in 3 s (engine_timeout_s){more}\n"
    )


BEGIN = "import time; from grpo_gym.engines.watchdog import Watchdog; dog = Watchdog(0.4)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("return 'saved'", "; saved"),
        ("return 'two\\nlines'", "; two lines"),
        ("raise OSError('disk full')", "; nothing could be saved: OSError: disk full"),
        ("time.sleep(60)", ""),
        ("time.sleep(0.3); return 'saved'", "; saved"),
    ],
)
def test_last_words(words: str, said: str, tmp_path: Path) -> None:
    """Whatever they are; and a call that returns while they are said goes no further."""
    code = (
        f"{BEGIN}def last(): {words}\ndog.last_words = last\n"
        "with dog.watch(): time.sleep(0.6)\nprint('went on')"
    )
    ended = in_a_process(code, tmp_path)
    line = "grpo-gym: error: the engine gave no answer in 0.4 s (engine_timeout_s)"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"{line}{said}\n")


def test_many_short_calls_may_take_longer_than_one(tmp_path: Path) -> None:
    code = f"{BEGIN}for _ in range(30):\n  with dog.watch(): time.sleep(0.05)\nprint('done')"
    assert in_a_process(code, tmp_path).stdout == "done\n"


def test_a_process_that_is_stopped_has_not_overslept(tmp_path: Path) -> None:
    code = f"{BEGIN}with dog.watch():\n  print('in', flush=True); time.sleep(0.2)\nprint('done')"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGCONT)
    assert ended(process)[0] == "done\n"


@pytest.mark.parametrize("error", [UsageError("no"), EngineStopped("no"), EngineFailure("no")])
def test_what_says_all_there_is_to_say_goes_through(error: Exception) -> None:
    dog = Watchdog(60)
    with pytest.raises(type(error)) as raised, dog.watch():
        raise error
    assert raised.value is error


def test_no_limit_and_no_thread_that_stays(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def new() -> int:
        return len(set(threading.enumerate()) - before)

    with Watchdog(math.inf).watch():
        assert new() == 0
    dog = Watchdog(1.0)
    for _ in range(3):
        with dog.watch():
            assert new() == 1
    until = time.monotonic() + 10
    while new() and time.monotonic() < until:
        time.sleep(0.05)
    assert new() == 0
