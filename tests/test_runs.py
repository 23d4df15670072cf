"""The folder of a run: new or resumed, never half made."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_gym import UsageError
from grpo_gym.config import TrainConfig
from grpo_gym.evaluation import Estimate, Evaluation
from grpo_gym.runs import evaluation_path, open_run, save_config, saved_config, saved_evaluations

EVALUATION = Evaluation(
    env="grpo_gym/Copy-v0",
    tasks=2,
    n=4,
    pass_at={1: Estimate(0.5, 0.25, 0.75), 4: Estimate(1.0, 0.5, 1.0)},
    reward=0.5,
    tokens=3.5,
    truncated=0.0,
    failures=1,
    unscored=0,
    confidence=0.95,
    successes={"a": (2, 4), "b": (1, 3)},
)


def config(folder: Path, **options: object) -> TrainConfig:
    return TrainConfig(run_dir=str(folder), **options)  # type: ignore[arg-type]


def test_a_new_run_makes_its_folder_and_parents(tmp_path: Path) -> None:
    with open_run(config(tmp_path / "a" / "b")) as folder:
        assert folder == tmp_path / "a" / "b"
        assert list(folder.iterdir()) == []
    assert folder.is_dir()


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    with open_run(config(tmp_path)) as folder:
        assert folder == tmp_path


@pytest.mark.parametrize("error", [UsageError("x"), RuntimeError("x"), KeyboardInterrupt()])
def test_an_error_before_anything_was_trained_leaves_what_was_there(
    tmp_path: Path, error: BaseException
) -> None:
    def fail(folder: Path) -> None:
        with open_run(config(folder)) as made:
            save_config(config(folder), "agent", made)
            (made / "rollouts").mkdir()
            (made / "rollouts" / "eval-000000.jsonl").write_text("")
            raise error

    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "a" / "b" / "run", tmp_path / "there"):
        with pytest.raises(type(error)):
            fail(folder)
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/step-000001/state.json"])
def test_an_error_after_that_leaves_everything(tmp_path: Path, name: str) -> None:
    def fail() -> None:
        with open_run(config(tmp_path / "run")) as folder:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "run" / name).exists()


def test_a_linked_folder_is_not_followed_when_a_run_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("the only copy")

    def fail() -> None:
        with open_run(config(tmp_path / "run")) as folder:
            (folder / "link").symlink_to(tmp_path / "precious", target_is_directory=True)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "precious" / "file").read_text() == "the only copy"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "/proc/nothing/run"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    refused = pytest.raises(UsageError, match=r"cannot be written: .*; choose another run_dir")
    with refused, open_run(config(tmp_path / name)):
        raise AssertionError("not reached")


def test_the_config_of_a_run_is_read_back_ready_to_resume(tmp_path: Path) -> None:
    before = config(tmp_path, seed=7, env_arg=("level=2",), eval_k=(1, 4), patience_s=math.inf)
    save_config(before, "agent", tmp_path)
    assert saved_config(tmp_path) == replace(before, resume=True)
    assert (tmp_path / "agent.txt").read_text() == "'agent'\n"
    text = (tmp_path / "config.toml").read_text()
    assert "run_dir" not in text  # a run may be moved
    assert "resume" not in text


def test_a_saved_config_that_was_spoilt_says_where(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("stepz = 1\n")
    with pytest.raises(UsageError, match=r"config.toml: no option 'stepz'; nearest: steps"):
        saved_config(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(UsageError, match=r"config.toml lacks agent: it is not as the run wrote it"):
        saved_config(tmp_path)


def test_evaluations_are_read_back(tmp_path: Path) -> None:
    unscored = replace(EVALUATION, reward=math.nan)
    evaluation_path(tmp_path, 0).write_text(EVALUATION.to_json())
    evaluation_path(tmp_path, 40).write_text(unscored.to_json())
    found = saved_evaluations(tmp_path)
    assert found[0] == EVALUATION
    assert math.isnan(found[40].reward)
    assert replace(found[40], reward=0.5) == EVALUATION
    assert set(found) == {0, 40}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"env": 3}', "[" * 100_000])
def test_an_evaluation_that_cannot_be_read_is_as_if_it_were_not_there(
    tmp_path: Path, text: str
) -> None:
    evaluation_path(tmp_path, 0).write_text(text)
    (tmp_path / "eval-x.json").write_text(json.dumps({}))
    assert saved_evaluations(tmp_path) == {}


def test_runs_that_start_at_once_get_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [open_run(TrainConfig()) for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda run: run.__enter__(), runs))
    assert {str(folder) for folder in folders} == {
        f"runs/Arithmetic-grpo-{n + 1}" for n in range(24)
    }


def test_names_are_made_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        open_run(TrainConfig()).__enter__()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    for folder in (tmp_path / "locked", tmp_path / "locked" / "run"):
        with pytest.raises(UsageError, match="cannot be written: Permission denied"):
            open_run(config(folder)).__enter__()
