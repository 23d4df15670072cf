"""The command line: what it lists, explains and prints, and how it ends."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym.cli import main
from grpo_gym.cli.commands import COMMANDS
from grpo_gym.config import EvalConfig, RolloutConfig, TrainConfig
from tests.commands import ended, environment, flags, run, start

SMALL = {"group_size": 2, "groups_per_step": 2, "max_tokens": 4, "steps": 1}


def docstrings(kind: type[Any]) -> dict[str, str]:
    """Field to the string below it, of a dataclass and its bases."""
    found: dict[str, str] = {}
    for cls in kind.__mro__[:-1]:
        body = ast.parse(inspect.getsource(cls)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = ast.literal_eval(text.value)
    return found


@pytest.mark.parametrize(
    ("command", "kind"), [("train", TrainConfig), ("eval", EvalConfig), ("rollout", RolloutConfig)]
)
def test_help_explains_every_option(
    command: str, kind: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    texts = docstrings(kind)
    assert set(texts) == set(kind.__dataclass_fields__)
    for name, text in texts.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert " ".join(text.split()) in shown
    assert "--config FILE" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"usage: grpo-gym {command}" in capsys.readouterr().out


def test_without_arguments_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert run("--help") == 0
    assert capsys.readouterr().out == out
    assert run("--version") == 0
    assert capsys.readouterr().out == f"{grpo_gym.__version__}\n"


def test_envs_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("envs") == 0
    out = capsys.readouterr().out
    for row in grpo_gym.environments():
        assert row.id in out


def test_agents_are_listed_explained_and_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("agents") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in grpo_gym.agents())
    assert "2402.03300" in out
    assert run("agents", "show", "dapo") == 0
    out = capsys.readouterr().out
    assert "arXiv 2503.14476" in out
    assert "clip_high = 0.28" in out
    assert run("agents", "diff", "grpo", "dr_grpo") == 0
    out = capsys.readouterr().out
    assert "grpo: GroupStandardised(" in out
    assert "dr_grpo: GroupCentred(" in out
    assert "trust_region" not in out


def test_check_passes_a_good_environment_and_fails_a_bad_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("check", "grpo_gym/Arithmetic-v0", "--env-arg", "level=2", "--tasks", "2") == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert run("check", "tests.letters:Silent", "--tasks", "2") == 1
    out = capsys.readouterr().out
    assert "failed" in out
    assert "tests.letters:Silent breaks the contract" in out


def test_train_eval_and_rollout_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = tmp_path / "run", ["--env", "tests.letters:Letters", "--max-tokens", "4"]
    evaluation = {"eval_tasks": 2, "eval_n": 2, "eval_k": (1, 2)}
    assert run("train", *words, *flags(SMALL | evaluation), "--run-dir", str(folder)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "step 1/1  reward 0." in out
    assert re.search(r"before .* after step 1 ", out)
    assert f"run      {folder}\n" in out
    model = folder / "checkpoints" / "step-000001" / "model"
    assert f"model    {model}\n" in out
    assert f"metrics  {folder / 'metrics.jsonl'}\n" in out
    assert f"rollouts {folder / 'rollouts'}\n" in out

    result, played = tmp_path / "result.json", tmp_path / "rollouts.jsonl"
    out_words = ["--out", str(result), "--rollouts", str(played)]
    assert (
        run(
            "eval",
            *words,
            "--model",
            str(model),
            "--n",
            "2",
            "--k",
            "1,2",
            "--tasks",
            "3",
            *out_words,
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "pass@1" in out
    assert f"written to {result}\nwritten to {played}\n" in out
    record = json.loads(result.read_text())
    assert (record["tasks"], record["n"], set(record["pass_at"])) == (3, 2, {"1", "2"})
    assert len(played.read_text().splitlines()) == 6

    assert run("rollout", *words, "--model", str(model), "--episodes", "2") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("user: Say it.") == 2
    assert out.count("tokens sampled") == 2


def test_resume_takes_the_saved_options_and_the_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    first = SMALL | {"env": "tests.letters:Letters", "env_args": {"split": "train"}}
    assert run("train", *flags(first), "--run-dir", folder, "--learning-rate", "0.001") == 0
    assert "rollouts" not in capsys.readouterr().out
    assert run("train", "--resume", "--run-dir", folder) == 0
    assert "the run is complete: 1 steps are done, 1 were asked for" in capsys.readouterr().out
    assert run("train", "--resume", "--run-dir", folder, "--steps", "2", "--epochs", "2") == 0
    assert "going on after step 1 of 2" in capsys.readouterr().out
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "steps = 2\n" in text
    assert "epochs = 2\n" in text
    assert "learning_rate = 0.001\n" in text
    file = tmp_path / "more.toml"
    file.write_text(f'resume = true\nrun_dir = "{folder}"\nsteps = 3\n')
    assert run("train", "--config", str(file)) == 0
    assert "going on after step 2 of 3" in capsys.readouterr().out


def test_a_run_without_a_name_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = flags(SMALL | {"env": "grpo_gym/Copy-v0"})
    assert run("train", *words) == 0
    assert run("train", *words, "--agent", "rloo") == 0
    assert run("train", *words) == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["Copy-grpo-1", "Copy-grpo-2", "Copy-rloo-1"]


def test_tiny_writes_an_ordinary_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    assert run("tiny", "--out", str(folder)) == 0
    assert capsys.readouterr().out == f"written to {folder}\n"
    words = [
        "--env",
        "grpo_gym/Copy-v0",
        "--n",
        "2",
        "--k",
        "1",
        "--tasks",
        "2",
        "--max-tokens",
        "8",
    ]
    assert run("eval", *words, "--model", str(folder)) == 0
    ours = capsys.readouterr().out.replace(str(folder), "tiny")
    assert run("eval", *words, "--model", "tiny") == 0
    assert _numbers(capsys.readouterr().out) == _numbers(ours)


def _numbers(table: str) -> list[str]:
    return re.findall(r"\d+\.\d+", table)


def test_a_failure_that_is_nobodys_mistake_is_a_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> int:
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setitem(COMMANDS, "train", fail)
    assert run("train") == 1
    err = capsys.readouterr().err
    assert err == "grpo-gym: error: [Errno 28] No space left on device: 'metrics.jsonl'\n"


def test_an_interrupted_command_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "train", interrupt)
    assert run("train") == 130
    assert capsys.readouterr().err == "grpo-gym: interrupted\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["envs"], ["train", "--help"], ["--help"], ["agents", "show", "dapo"]]
)
def test_a_reader_that_leaves_early_sees_no_traceback(words: list[str], tmp_path: Path) -> None:
    process = start(*words, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    _, err = ended(process)
    assert (process.returncode, err) == (0, "")


@pytest.mark.slow
def test_training_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    words = flags(
        SMALL | {"env": "tests.letters:Letters", "eval_tasks": 2, "eval_n": 2, "eval_k": (1,)}
    )
    process = start("train", *words, "--run-dir", "run", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    _, err = ended(process)
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()


def test_listing_is_quick_and_loads_no_torch() -> None:
    code = "import sys; from grpo_gym.cli import main; main(['envs']); assert 'torch' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )


def test_main_reads_the_words_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo-gym", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"{grpo_gym.__version__}\n"
