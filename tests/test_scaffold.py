"""`grpo-gym init-env`: what is generated installs, imports, and passes its own tests and the check."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from grpo_gym.cli import main
from grpo_gym.errors import UsageError
from grpo_gym.scaffold import write_plugin

ROOT = Path(__file__).parent.parent


def python(folder: Path, *arguments: str) -> str:
    paths = [str(ROOT), str(ROOT / "envs"), str(ROOT / "agents")]
    paths = [path for path in paths if Path(path).is_dir()] + [os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_three_files_are_written(tmp_path: Path) -> None:
    files = write_plugin("word-sort", tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in files]
    assert names == [
        "word-sort/pyproject.toml",
        "word-sort/word_sort.py",
        "word-sort/test_word_sort.py",
    ]
    project = tomllib.loads(files[0].read_text())
    assert project["project"]["name"] == "word-sort"
    assert project["project"]["entry-points"]["grpo_gym.envs"] == {"word_sort": "word_sort"}
    assert not any("$" in path.read_text() for path in files)


@pytest.mark.slow
def test_what_is_written_passes_its_tests_and_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init-env", "letter-soup", "--folder", str(tmp_path)]) == 0
    assert "next: cd" in capsys.readouterr().out
    folder = tmp_path / "letter-soup"
    assert "12 passed" in python(folder, "-m", "pytest", "-q", "-W", "error")
    out = python(folder, "-m", "grpo_gym.cli", "check", "letter_soup:letter_soup/LetterSoup-v0")
    assert "keeps the contract" in out
    assert "failed" not in out
    assert "skipped" not in out
    # With what our own check has found out of the libraries already.
    cache = tmp_path / "cache"
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", cache)
    settings = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(cache))
    out = python(folder, "-m", "mypy", *settings, "letter_soup.py", "test_letter_soup.py")
    assert "Success" in out


@pytest.mark.slow
def test_the_wheel_of_a_plugin_makes_its_environment_known(tmp_path: Path) -> None:
    write_plugin("letter-soup", tmp_path)
    site = tmp_path / "site"
    folder = tmp_path / "letter-soup"
    python(folder, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site))
    python(tmp_path, *pip, str(wheel))
    code = (
        f"import sys; sys.path.append({str(site)!r}); import grpo_gym; "
        "print([row.id for row in grpo_gym.environments()])"
    )
    assert "letter_soup/LetterSoup-v0" in python(tmp_path, "-c", code)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Word", "cannot be the name"),
        ("word sort", "cannot be the name"),
        ("../word", "cannot be the name"),
        ("", "cannot be the name"),
        ("1word", "cannot be the name"),
        ("word-", "cannot be the name"),
        ("json", "another Python module"),
        ("class", "another Python module"),
        ("grpo-gym", "another Python module"),
        ("numpy", "another Python module"),
    ],
)
def test_a_name_that_will_not_do_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        write_plugin(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        write_plugin("mine", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_plugin("mine", tmp_path / "file")


def test_the_check_finds_a_class_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_own_env.py").write_text(
        "from grpo_gym.testing import CopyEnv\n\n\nclass Mine(CopyEnv):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["check", "my_own_env:Mine", "--tasks", "1"]) == 0
    assert "my_own_env:Mine keeps the contract" in capsys.readouterr().out
    assert sys.path[-1] == str(tmp_path)
