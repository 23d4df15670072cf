"""A checkpoint is whole or absent, and one that does not fit says why."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_gym import checkpoint
from grpo_gym.errors import UsageError
from tests.models import tiny_model, tiny_tokenizer

OPTIMISER = {"optimiser": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "lr": 0.1}, "version": 4}
STATE = {"task_stream": {"position": 17, "seed": 3}, "best": 0.25}


def save(run: Path, step: int = 7, seed: int = 1, **options: Any) -> Path:
    return checkpoint.save(
        run, step, tiny_model(seed), tiny_tokenizer(), OPTIMISER, STATE, **options
    )


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2", "gemma3_text", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_is_loaded(tmp_path: Path, model_type: str, dtype: torch.dtype) -> None:
    model = tiny_model(1, model_type).to(dtype)
    path = checkpoint.save(tmp_path, 7, model, tiny_tokenizer(), OPTIMISER, STATE)
    before = torch.get_rng_state()
    loaded = checkpoint.load(path, tiny_model(2, model_type).to(dtype))
    assert torch.equal(before, torch.get_rng_state())
    assert (loaded.step, loaded.state) == (7, STATE)
    torch.testing.assert_close(loaded.optimiser, OPTIMISER, rtol=0, atol=0)
    assert loaded.weights.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.weights[name], value), name


def test_the_model_directory_is_an_ordinary_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = save(tmp_path) / "model"
    assert AutoTokenizer.from_pretrained(path).chat_template == tiny_tokenizer().chat_template
    ids = torch.tensor([[5, 6, 7]])
    logits = AutoModelForCausalLM.from_pretrained(path)(input_ids=ids).logits
    assert torch.equal(logits, tiny_model(1)(input_ids=ids).logits)


def test_latest_is_the_newest_and_the_last_k_are_kept(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    paths = [save(tmp_path, step, keep=2) for step in (9, 10, 11)]
    assert checkpoint.latest(tmp_path) == paths[-1]
    assert [path.exists() for path in paths] == [False, True, True]


def test_saving_a_step_again_replaces_nothing_in_place(tmp_path: Path) -> None:
    first, second = save(tmp_path, 10, seed=1), save(tmp_path, 10, seed=2)
    assert first != second
    assert checkpoint.latest(tmp_path) == second


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / ".saving-abc"
    left.mkdir(parents=True)
    save(tmp_path)
    assert [path.name for path in left.parent.iterdir()] == ["step-000007"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"num_hidden_layers": 3}, r"lacks model\.layers\.2\."),
        ({"num_hidden_layers": 1}, r"has model\.layers\.1\..* which this model lacks"),
        ({"vocab_size": 401}, r"embed_tokens\.weight is \(400, 32\) there and \(401, 32\) here"),
        ({"model_type": "llama"}, r"has model\.layers\.0\.self_attn\.[kqv]_proj\.bias"),
        ({"model_type": "gpt2"}, r"lacks "),
    ],
)
def test_a_checkpoint_of_another_model_says_which_weight(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    path = save(tmp_path)
    with pytest.raises(UsageError, match=f"of another model.*{message}"):
        checkpoint.load(path, tiny_model(**other))


@pytest.mark.parametrize(
    "name", ["state.json", "optimiser.pt", "model/model.safetensors", "model/config.json"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    path = save(tmp_path)
    content = (path / name).read_bytes()
    if damage == "missing":
        (path / name).unlink()
    elif damage == "changed":
        middle = len(content) // 2
        changed = bytes([content[middle] ^ 0x80])
        (path / name).write_bytes(content[:middle] + changed + content[middle + 1 :])
    else:
        (path / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(UsageError, match=name) as caught:
        checkpoint.load(path, tiny_model())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "record",
    [
        [],
        {"format": "something else"},
        {"format": checkpoint.FORMAT},
        {"format": checkpoint.FORMAT, "step": "7", "state": {}, "files": {"optimiser.pt": [1, ""]}},
        {"format": checkpoint.FORMAT, "step": 7, "state": {}, "files": {"optimiser.pt": 3}},
        {"format": checkpoint.FORMAT, "step": 7, "state": {}, "files": {}},
    ],
)
def test_a_foreign_state_file_is_refused(tmp_path: Path, record: Any) -> None:
    path = save(tmp_path)
    (path / "state.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"state\.json"):
        checkpoint.load(path, tiny_model())


def test_a_file_outside_the_directory_is_not_touched(tmp_path: Path) -> None:
    path = save(tmp_path)
    record = json.loads((path / "state.json").read_text())
    record["files"]["../../secret"] = [1, "0"]
    (path / "state.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="outside its directory"):
        checkpoint.load(path, tiny_model())


def test_pickled_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (os.system, ("true",))

    path = save(tmp_path)
    torch.save({"optimiser": Evil()}, path / "optimiser.pt")
    record = json.loads((path / "state.json").read_text())
    record["files"] = {name: list(entry) for name, entry in checkpoint._files(path).items()}
    del record["files"]["state.json"]
    (path / "state.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"optimiser\.pt"):
        checkpoint.load(path, tiny_model())


def test_a_path_that_is_no_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        checkpoint.load(tmp_path / "nowhere", tiny_model())
    with pytest.raises(UsageError, match=r"no state\.json"):
        checkpoint.load(tmp_path, tiny_model())


def test_a_state_that_json_cannot_hold_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        checkpoint.save(tmp_path, 1, tiny_model(), None, {}, {"bad": object()})
    assert list((tmp_path / "checkpoints").iterdir()) == []


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from grpo_gym import checkpoint
from tests.models import tiny_model

run = Path(sys.argv[1])
old, new = tiny_model(1), tiny_model(2)
checkpoint.save(run, 1, old, None, {"step": 1}, {}, keep=1)

def counted(function, left):
    def call(*arguments, **options):
        for when in ("before", "after"):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                result = function(*arguments, **options)
        return result
    return call

for point in range(1000):
    child = os.fork()
    if child == 0:
        left = [point]
        checkpoint._flush = counted(checkpoint._flush, left)
        Path.rename = counted(Path.rename, left)
        torch.save = counted(torch.save, left)
        shutil.rmtree = counted(shutil.rmtree, left)
        checkpoint.save(run, 2 + point, new, None, {"step": 2 + point}, {}, keep=1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = checkpoint.load(checkpoint.latest(run), old)
    expected = old if found.step == 1 else new
    assert found.optimiser["step"] == found.step
    for name, value in expected.state_dict().items():
        assert torch.equal(found.weights[name], value)
    print(point, found.step, status)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_of_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        # DeepSpeed would say on stdout that it takes the CPU, unless it is told to.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DS_ACCELERATOR": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 20
    assert lines[-1][1:] == [str(1 + len(lines)), "0"]
    steps = [int(line[1]) for line in lines]
    assert steps[0] == 1
    assert steps == sorted(steps)
