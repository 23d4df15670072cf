"""Ctrl-C, SIGTERM and SIGKILL at any moment: what was learnt is kept, and the run goes on from it."""

import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import checkpoint
from grpo_gym.cli import COMMANDS
from grpo_gym.interrupts import Interrupted, Interrupts, not_dropped
from grpo_gym.learner import Learner
from grpo_gym.monitor import Monitor, read_metrics
from grpo_gym.runs import Run
from tests.commands import ended, run, start
from tests.letters import Letters
from tests.once import made_once

OPTIONS: dict[str, Any] = {
    "model": "tiny",
    "groups_per_step": 2,
    "group_size": 4,
    "max_tokens": 8,
    "steps": 4,
    "mini_batches": 2,
    "learning_rate": 1e-3,
    "eval_tasks": 2,
    "eval_every": 2,
    "eval_n": 2,
    "eval_k": (1, 2),
}


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return grpo_gym.train(env=Letters, run_dir=folder, **OPTIONS)


def press(number: int = signal.SIGINT) -> None:
    """What Ctrl-C does."""
    os.kill(os.getpid(), number)


def on_call(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, action: Callable[[], None]
) -> None:
    """Do something in the middle of the n-th call of a function, from then on no more."""
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            action()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


PLACES: dict[str, tuple[Any, str, int]] = {
    "first evaluation": (Letters, "respond", 1),
    "first collection": (Letters, "respond", 5),
    "third collection": (Letters, "respond", 4 + 16 + 4 + 3),
    "update": (Learner, "update", 2),
    "optimiser step": (Learner, "_step", 4),
    "log": (Monitor, "log", 2),
    "first save": (checkpoint, "save", 1),
    "evaluation in between": (Letters, "respond", 4 + 16 + 2),
    "last evaluation": (Letters, "respond", 4 + 16 + 4 + 16 + 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "number"),
    [*((place, signal.SIGINT) for place in PLACES), ("third collection", signal.SIGTERM)],
)
def test_a_stop_keeps_what_was_learnt(
    place: str, number: int, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        on_call(patch, *PLACES[place], action=lambda: press(number))
        with pytest.raises(Interrupted) as caught:
            grpo_gym.train(env=Letters, run_dir=tmp_path / "run", save_every=1, **OPTIONS)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    message = str(caught.value)
    assert message.endswith(f"go on with: grpo-gym train --run-dir {tmp_path / 'run'} --resume")
    again = grpo_gym.train(run_dir=tmp_path / "run", resume=True)
    assert metrics(again.folder) == metrics(whole.folder)
    assert again.evaluations == whole.evaluations
    name = "model.safetensors"
    assert (again.model / name).read_bytes() == (whole.model / name).read_bytes()


@pytest.mark.slow
def test_what_was_trained_before_a_stop_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        on_call(patch, Learner, "update", 3, press)
        with pytest.raises(Interrupted, match="saved after step 3"):
            grpo_gym.train(env=Letters, run_dir=tmp_path / "run", save_every=0, **OPTIONS)
    updates: list[int] = []
    on_call(monkeypatch, Learner, "update", 1, lambda: updates.append(1))
    on_call(monkeypatch, Learner, "update", 2, lambda: updates.append(2))
    grpo_gym.train(run_dir=tmp_path / "run", resume=True)
    assert len(metrics(tmp_path / "run")) == 4
    assert updates == [1]


@pytest.mark.slow
def test_a_second_stop_does_not_wait_and_saves_nothing_half_done(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        press()
        press()

    with monkeypatch.context() as patch:
        on_call(patch, Learner, "_step", 6, twice)  # the second of two in the third step
        with pytest.raises(Interrupted, match="saved after step 2"):
            grpo_gym.train(env=Letters, run_dir=tmp_path / "run", save_every=2, **OPTIONS)
    assert len(metrics(tmp_path / "run")) == 2
    again = grpo_gym.train(run_dir=tmp_path / "run", resume=True)
    assert metrics(again.folder) == metrics(whole.folder)


def test_a_second_stop_before_anything_was_saved_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        press()
        press()

    on_call(monkeypatch, Learner, "_step", 2, twice)
    with pytest.raises(KeyboardInterrupt):
        grpo_gym.train(env=Letters, run_dir=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run").exists()


def test_a_signal_waits_outside_and_raises_inside() -> None:
    with Interrupts() as interrupts:
        press()
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt), interrupts.welcome():
            raise AssertionError("not reached")
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        _press_within(interrupts)


def _press_within(interrupts: Interrupts) -> None:
    with interrupts.welcome():
        press()
        time.sleep(1)
        raise AssertionError("not reached")


class PressesWhenLost:
    def __del__(self) -> None:
        press()
        time.sleep(0.001)


def lose_and_wait() -> None:
    PressesWhenLost()
    time.sleep(30)
    raise AssertionError("not reached")


def test_a_signal_within_a_destructor_is_not_dropped() -> None:
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), not_dropped():
        lose_and_wait()
    assert sys.unraisablehook == hook


def test_a_signal_within_a_destructor_counts_once() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.welcome():
            lose_and_wait()
        assert interrupts.asked
        assert not interrupts.twice
        with pytest.raises(KeyboardInterrupt):
            lose_and_wait()
        assert interrupts.twice


def test_a_command_hears_a_signal_within_a_destructor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "train", lambda words, output: lose_and_wait())
    assert run("train") == 130
    assert capsys.readouterr().err == "grpo-gym: interrupted\n"


def test_what_else_a_destructor_raises_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError

    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))
    with not_dropped():
        Fails()
    assert told == [ValueError]


def test_handlers_are_given_back_and_threads_have_none() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with Interrupts() as interrupts, interrupts.welcome():
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.welcome():
            press()
        assert not interrupts.asked
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_evaluation_can_be_interrupted(tmp_path: Path) -> None:
    process = start("eval", "--tasks", "100000", "--n", "8", "--out", "x.json", cwd=tmp_path)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    out, err = ended(process, 20)
    assert (out, err) == ("", "grpo-gym: interrupted\n")
    # To a shell both are 130; which it is depends on what Python was importing when the signal came.
    assert process.returncode in (130, -signal.SIGINT)
    assert not list(tmp_path.iterdir())


WORDS = [
    *("train", "--env", "tests.letters:Letters", "--model", "tiny", "--run-dir", "run"),
    *("--groups-per-step", "2", "--group-size", "4", "--max-tokens", "8", "--steps", "12"),
    *("--mini-batches", "2", "--learning-rate", "1e-3", "--save-every", "2"),
    *("--eval-tasks", "2", "--eval-every", "4", "--eval-n", "2", "--eval-k", "1,2"),
]
RESUME = ["train", "--run-dir", "run", "--resume"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of WORDS."""

    def make(folder: Path) -> None:
        process = start(*WORDS, cwd=folder)
        out, err = ended(process, 100)
        assert (process.returncode, err) == (0, ""), out

    return made_once(tmp_path_factory, "interrupts", make) / "run"


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", [1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_can_be_stopped_at_any_moment(
    number: signal.Signals, moment: int, tmp_path: Path, finished: Path
) -> None:
    process = start(*WORDS, cwd=tmp_path)
    wait_for(tmp_path / "run" / "config.toml")
    time.sleep(0.2 + random.Random(moment).random() * 3)
    process.send_signal(number)
    _, err = ended(process)
    if number == signal.SIGINT:
        # It may have been done by then, or on its way out of the interpreter.
        assert process.returncode in (130, 0, -signal.SIGINT)
        if process.returncode == 130:
            line = (
                r"grpo-gym: stopped; saved after step \d+; go on with: grpo-gym train --run-dir run"
            )
            assert re.fullmatch(rf"{line} --resume\n", err)
    else:
        assert process.returncode in (-signal.SIGKILL, 0)
    again = start(*RESUME, cwd=tmp_path)
    out, err = ended(again, 100)
    assert (again.returncode, err) == (0, ""), out
    assert [row["step"] for row in metrics(tmp_path / "run")] == list(range(1, 13))
    assert metrics(tmp_path / "run") == metrics(finished)
