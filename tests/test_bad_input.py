"""A user's mistake: one line that says what, where, and what to do; status 2; nothing left behind."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import UsageError
from tests.commands import flags, refused, run
from tests.models import tiny_model, tiny_tokenizer

GSM8K = "grpo_gym/GSM8K-v0"
TASK = {"question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of all sorts, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    # A hub that refuses the connection, as without a network.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    lines = json.dumps(TASK)
    (tmp_path / "good.jsonl").write_text(f"{lines}\n{lines}\n")
    (tmp_path / "broken.jsonl").write_text(f"{lines}\n{{'question': 1}}\n")
    (tmp_path / "columns.jsonl").write_text('{"question": "What is 1 + 1?", "result": "2"}\n')
    (tmp_path / "types.jsonl").write_text('{"question": "What is 1 + 1?", "answer": 2}\n')
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9", "answer": "#### 2"}\n')
    (tmp_path / "file").write_text("I am no folder\n")
    (tmp_path / "void").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("the only copy\n")
    (tmp_path / "broken_env.py").write_text("raise RuntimeError('broken\\nmodule')\n")
    (tmp_path / "exit_env.py").write_text("raise SystemExit\n")
    (tmp_path / "faulty_env.py").write_text("class Env:\n    def __init__(self):\n        1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def save(folder: Path, **config: Any) -> None:
    tiny_model(**config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


@pytest.fixture
def models(world: Path) -> None:
    """Model folders of all sorts."""
    save(world / "bare")
    (world / "bare" / "model.safetensors").unlink()
    save(world / "torn")
    weights = world / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    save(world / "pickled")
    (world / "pickled" / "model.safetensors").rename(world / "pickled" / "pytorch_model.bin")
    save(world / "mute")
    for path in (world / "mute").glob("tokenizer*"):
        path.unlink()
    save(world / "misfit")
    config = json.loads((world / "misfit" / "config.json").read_text())
    (world / "misfit" / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    save(world / "deep")
    layers = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (world / "deep" / "config.json").write_text(json.dumps(config | layers))
    save(world / "garbled")
    (world / "garbled" / "config.json").write_text("{")
    save(world / "short", max_position_embeddings=16)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


SMALL = {"steps": 1, "group_size": 2, "groups_per_step": 2, "max_tokens": 4}

TRAINING: dict[str, tuple[dict[str, Any], str]] = {
    "unknown env": (
        {"env": "grpo_gym/Arithmetik-v0"},
        "no environment 'grpo_gym/Arithmetik-v0'; nearest: grpo_gym/Arithmetic-v0",
    ),
    "module that is not there": ({"env": "nowhere:Env"}, "cannot import 'nowhere'"),
    "module that breaks": (
        {"env": "broken_env:Env"},
        "cannot import 'broken_env': RuntimeError: broken module",
    ),
    "module that ends the process": (
        {"env": "exit_env:Env"},
        "cannot import 'exit_env': SystemExit",
    ),
    "environment that cannot be built": (
        {"env": "faulty_env:Env"},
        "'faulty_env:Env' cannot be made: ZeroDivisionError: division by zero (faulty_env.py:3)",
    ),
    "module without the class": ({"env": "json:Env"}, "json has no class Env"),
    "class that is no environment": ({"env": "json:JSONDecoder"}, "is a JSONDecoder, not a gymn"),
    "unknown argument": (
        {"env_args": {"levle": 1}},
        "grpo_gym/Arithmetic-v0 has no argument levle; it takes level",
    ),
    "argument of another type": (
        {"env_args": {"level": "high"}},
        "level must be a whole number, not ",
    ),
    "unknown agent": ({"agent": "gprp"}, "no agent 'gprp'; nearest: grpo"),
    "unknown hyper-parameter": (
        {"agent": "dapo", "agent_args": {"clip": 0.1}},
        "agent dapo has no argument clip; it takes clip_low, clip_high",
    ),
    "group of one": ({"group_size": 1}, "group_size is 1, but GroupStandardised compares"),
    "group of another size": ({"agent": "two_grpo", "group_size": 4}, "defined for groups of 2"),
    "unknown KL": ({"kl": 0.1, "kl_kind": "k9"}, "k9"),
    "no steps": ({"steps": 0}, "steps is 0, but must be at least 1"),
    "more than anything": (
        {"mini_batches": 10**20},
        "mini_batches is 100000000000000000000, but must",
    ),
    "targets of no adapter": (
        {"lora_targets": ("q_proj",)},
        "lora_targets is for a new adapter: give",
    ),
    "alpha of no adapter": ({"lora_alpha": 8.0}, "lora_alpha is for a new adapter: give lora_rank"),
    "cold": ({"temperature": 0}, "temperature is 0"),
    "learning rate below 0": ({"learning_rate": -1.0}, "learning_rate must be a finite number"),
    "warm-up without an end": (
        {"schedule": "linear", "warmup_steps": 5},
        "schedule needs total_steps above warmup_steps",
    ),
    "k above n": (
        {"eval_tasks": 2, "eval_n": 4, "eval_k": (1, 8)},
        "pass@8 needs at least 8 rollouts of each task, but n is 4",
    ),
    "line that is not JSON": (
        {"env": GSM8K, "env_args": {"path": "broken.jsonl"}},
        "broken.jsonl:2: not JSON",
    ),
    "line that is no object": (
        {"env": GSM8K, "env_args": {"path": "list.jsonl"}},
        "list.jsonl:1: a line must be a JSON object",
    ),
    "missing column": (
        {"env": GSM8K, "env_args": {"path": "columns.jsonl"}},
        "columns.jsonl:1: no column 'answer'; the columns are question, result",
    ),
    "column of another type": (
        {"env": GSM8K, "env_args": {"path": "types.jsonl"}},
        "types.jsonl:1: ",
    ),
    "empty dataset": (
        {"env": GSM8K, "env_args": {"path": "empty.jsonl"}},
        "empty.jsonl: the file is empty",
    ),
    "dataset that is not UTF-8": (
        {"env": GSM8K, "env_args": {"path": "latin.jsonl"}},
        "latin.jsonl:1: not UTF-8",
    ),
    "missing dataset": (
        {"env": GSM8K, "env_args": {"path": "gone.jsonl"}},
        "gone.jsonl: there is no such file",
    ),
    "folder without a dataset": (
        {"env": GSM8K, "env_args": {"path": "void"}},
        "void: the folder holds no .jsonl",
    ),
    "dataset not given": ({"env": GSM8K}, "give path="),
    "unknown split": (
        {"env": GSM8K, "env_args": {"path": "good.jsonl"}, "split": "dev"},
        "dev",
    ),
    "missing model folder": ({"model": "./gone"}, "there is no model folder ./gone"),
    "missing absolute model folder": ({"model": "/gone/model"}, "there is no model folder /gone"),
    "path that cannot be a hub id": ({"model": "a/b/c"}, "there is no model folder a/b/c"),
    "model of a name that cannot be": ({"model": "x" * 300}, "cannot be read: File name too long"),
    "model that is a file": ({"model": "file"}, "there is no model folder file"),
    "model folder without a model": ({"model": "void"}, "model folder void has no config.json"),
    "model on a hub out of reach": (
        {"model": "nobody/nothing"},
        "there is no model folder nobody/nothing, the Hugging Face hub cannot be reached",
    ),
    "run folder below a file": (
        {"run_dir": "file/run"},
        "the run folder file/run cannot be written: Not a directory; choose another run_dir",
    ),
    "run folder that is a file": ({"run_dir": "file"}, "the run folder file cannot be written"),
    "run folder that is in use": (
        {"run_dir": "full"},
        "the run folder full is not empty: resume the run in it, or choose another run_dir",
    ),
    "nothing to resume": (
        {"run_dir": "void", "resume": True},
        "void holds no run to resume: there is no config.toml in it",
    ),
    "resume without a folder": ({"resume": True}, "resume needs run_dir"),
}

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"model": "bare"}, "model 'bare' cannot be loaded: .*model.safetensors"),
    "torn weights": ({"model": "torn"}, "model 'torn' cannot be loaded: "),
    "pickled weights": ({"model": "pickled"}, "model 'pickled' cannot be loaded: .*safetensors"),
    "no tokenizer": ({"model": "mute"}, "model 'mute' has no tokenizer"),
    "garbled config": ({"model": "garbled"}, "model 'garbled' cannot be loaded: .*JSON"),
    "weights of another shape": ({"model": "misfit"}, "its weights lack model.layers.0.mlp"),
    "weights of fewer layers": ({"model": "deep"}, "its weights lack model.layers.2"),
    "context shorter than the prompt": (
        {"model": "short"},
        r"no prompt fits the model's context of 16 tokens, .*: use a model with a longer context",
    ),
}


def check(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Refused from the shell and from Python, with the same words, and without a trace."""
    before = snapshot(folder)
    options = SMALL | options
    assert re.search(message, refused(capsys, "train", *flags(options)))
    if not {"run_dir", "resume"} & set(options):
        assert re.search(message, refused(capsys, "train", *flags(options), "--run-dir", "a/b/run"))
    with pytest.raises(UsageError) as caught:
        grpo_gym.train(**options)
    assert re.search(message, " ".join(str(caught.value).split()))
    assert snapshot(folder) == before


@pytest.mark.parametrize("case", TRAINING)
def test_training_refuses(case: str, capsys: pytest.CaptureFixture[str], world: Path) -> None:
    options, message = TRAINING[case]
    check(options, re.escape(message), capsys, world)


@pytest.mark.parametrize("case", MODELS)
def test_training_refuses_a_model(
    case: str, capsys: pytest.CaptureFixture[str], world: Path, models: None
) -> None:
    check(*MODELS[case], capsys, world)


EVALUATION: dict[str, tuple[dict[str, Any], str]] = {
    "unknown env": ({"env": "Calculater"}, "nearest: grpo_gym/Calculator-v0"),
    "k above n": ({"n": 4, "k": (1, 8)}, "pass@8 needs at least 8 rollouts"),
    "no k": ({"k": (0,)}, "k is 0, but must be at least 1"),
    "no tasks": ({"tasks": 0}, "tasks is 0, but must be at least 1"),
    "unknown split": (
        {"env": GSM8K, "env_args": {"path": "good.jsonl"}, "split": "dev"},
        "dev",
    ),
    "result that is a folder": ({"out": "void"}, "cannot write void: it is a folder"),
    "result in no folder": ({"out": "gone/x.json"}, "cannot write gone/x.json: there is no folder"),
    "rollouts below a file": ({"rollouts": "file/x"}, "cannot write file/x: there is no folder"),
    "result of a name that cannot be": ({"out": "x" * 300}, "File name too long"),
    "result of a name that is none": ({"out": "a\0b"}, "'a\\x00b' cannot be the name of a file"),
    "result of a name beyond unicode": (
        {"rollouts": "\ud800"},
        "'\\ud800' cannot be the name of a",
    ),
    "result that is a pipe": ({"out": "pipe"}, "cannot write pipe: it is no ordinary file"),
    "two results in one file": (
        {"out": "x.json", "rollouts": "void/../x.json"},
        "cannot write two things to x.json: name another file",
    ),
    "missing model": ({"model": "./gone"}, "there is no model folder ./gone"),
}


@pytest.mark.parametrize("case", EVALUATION)
def test_evaluation_refuses(case: str, capsys: pytest.CaptureFixture[str], world: Path) -> None:
    options, message = EVALUATION[case]
    before = snapshot(world)
    assert message in refused(capsys, "eval", *flags(options))
    with pytest.raises(UsageError) as caught:
        grpo_gym.evaluate(**options)
    assert message in str(caught.value)
    assert snapshot(world) == before


def test_an_environment_that_reports_no_success_cannot_be_evaluated(
    capsys: pytest.CaptureFixture[str], world: Path
) -> None:
    words = ["--env", "tests.letters:Silent", "--n", "2", "--k", "1", "--tasks", "2"]
    assert "does not report info['success']" in refused(capsys, "eval", *words, "--max-tokens", "4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--stepz", "3"], "no option --stepz; nearest: --steps"),
        (["train", "--steps", "x"], "--steps: invalid literal for int() with base 10: 'x'"),
        (["train", "--steps"], "Missing value for argument '--steps'"),
        (["train", "--steps", "1.5"], "--steps: invalid literal for int()"),
        (["train", "surplus"], "Unrecognized options: surplus"),
        (["train", "--top-p", "0"], "top_p is 0.0, but must be above 0 and at most 1"),
        (["train", "--temperature", "-1"], "temperature is -1.0, but must be"),
        (["train", "--temperature", "nan"], "temperature is nan, but must be"),
        (["train", "--seed", "-1"], "seed is -1, but must be at least 0"),
        (["train", "--env-arg", "level"], "'level' is not of the form name=value"),
        (["train", "--env-arg", "level=1", "--env-arg", "level=2"], "gives level twice"),
        (["train", "--precision", "fp8"], "invalid choice 'fp8'"),
        (["train", "--config"], "--config needs a value"),
        (["train", "--config", "a", "--config", "b"], "--config is given twice"),
        (["train", "--config", "gone.toml"], "gone.toml: cannot be read"),
        (["train", "--config", "void"], "void: cannot be read: Is a directory"),
        (["train", "--config", "file"], "file: not a TOML file"),
        (["train", "--config", "unknown.toml"], "unknown.toml: no option 'stepz'; nearest: steps"),
        (["train", "--config", "type.toml"], "type.toml: steps is 'many', but must be a valid"),
        (["train", "--config", "range.toml"], "range.toml: steps is 0, but must be at least 1"),
        (["eval", "--k", "1,x"], "--k: invalid literal for int()"),
        (["eval", "--k", ""], "--k: invalid literal for int()"),
        (["rollout", "--episodes", "0"], "episodes is 0, but must be at least 1"),
        (["envs", "surplus"], "Unrecognized options: surplus"),
        (["agents", "explain", "grpo"], "say: agents, agents show NAME, or agents diff A B"),
        (["agents", "show"], "say: agents, agents show NAME, or agents diff A B"),
        (["agents", "show", "gprp"], "no agent 'gprp'; nearest: grpo"),
        (["agents", "diff", "grpo", "dapoo"], "no agent 'dapoo'; nearest: dapo"),
        (["check"], "Missing"),
        (["check", "grpo_gym/Kopy-v0"], "nearest: grpo_gym/Copy-v0"),
        (
            ["check", "faulty_env:Env"],
            "cannot be made: ZeroDivisionError: division by zero (faulty",
        ),
        (["check", "grpo_gym/Copy-v0", "--tasks", "0"], "tasks is 0, but must be at least 1"),
        (["init-env", "a" * 300], "File name too long"),
        (["tiny", "--seed", "-1", "--out", "new"], "seed is -1, but must be at least 0"),
        (["tiny"], "say where to write the model: --out DIR"),
        (["tiny", "--out", "full"], "full exists and is not empty"),
        (["trian"], "no command 'trian'; nearest: train"),
        (["xyzzy"], "no command 'xyzzy'; there is train, eval"),
        (["--frobnicate"], "no command '--frobnicate'"),
    ],
    ids=" ".join,
)
def test_the_command_line_refuses(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], world: Path
) -> None:
    (world / "unknown.toml").write_text("stepz = 3\n")
    (world / "type.toml").write_text('steps = "many"\n')
    (world / "range.toml").write_text("steps = 0\n")
    before = snapshot(world)
    assert message in refused(capsys, *words)
    assert snapshot(world) == before


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_the_parser_says_is_a_line_on_every_terminal(
    encoding: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert refused(capsys, "train", "--precision", "fp8") == (
        "invalid choice 'fp8' for argument '--precision'. Expected one of ('fp32', 'bf16'). "
        "(see grpo-gym train --help)"
    )
    assert refused(capsys, "eval", "--k", "x").startswith(
        "--k: invalid literal for int() with base 10"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": 3}, "agent is 3: give a name or an Agent"),
        ({"agent": dict}, "such as grpo_agents.grpo\\(\\) with brackets"),
        ({"env": 3}, "env is 3: give an id, or a class or function"),
        ({"env": dict, "env_args": {}}, "env_args are for an environment given by id"),
        ({"env_args": {"tasks": object()}}, "a config cannot hold a object"),
        ({"steps": 2.5}, "steps is 2.5, but must be a valid integer"),
        ({"stepz": 2}, "train\\(\\): no option 'stepz'; nearest: steps"),
        ({"env": "m:<lambda>"}, "has no name: give env= again"),
        ({"agent": "Agent(...)"}, "has no name: give agent= again"),
    ],
)
def test_python_refuses(options: dict[str, Any], message: str, world: Path) -> None:
    before = snapshot(world)
    with pytest.raises(UsageError, match=message):
        grpo_gym.train(**options)
    assert snapshot(world) == before


def test_an_agent_that_is_complete_takes_no_arguments() -> None:
    import grpo_agents

    with pytest.raises(UsageError, match="agent_args are for an agent given by name"):
        grpo_gym.train(agent=grpo_agents.grpo(), agent_args={"kl": 0.1})


def test_a_read_only_disk_is_refused(
    capsys: pytest.CaptureFixture[str], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    before = snapshot(world)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        line = refused(capsys, "train", "--run-dir", "runs/new")
    assert "the run folder runs/new cannot be written: Read-only file system" in line
    assert snapshot(world) == before


def test_an_environment_that_does_not_speak_text_fails_the_run(
    capsys: pytest.CaptureFixture[str], world: Path
) -> None:
    before = snapshot(world)
    assert run("train", "--env", "CartPole-v1", *flags(SMALL)) == 1
    err = capsys.readouterr().err
    assert err.startswith("grpo-gym: error: ")
    assert err.count("\n") == 1
    assert snapshot(world) == before
