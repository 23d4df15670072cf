"""The catalogue of environments: complete, up to date, and the same whatever is installed."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_envs import catalogue
from grpo_envs.catalogue import conversation, own_rows, readme, sample_arguments
from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SandboxError, backends

README = Path(__file__).parent.parent / "envs" / "README.md"
GUIDE = Path(__file__).parent.parent / "docs" / "environments.md"


@pytest.mark.skipif(not README.is_file(), reason="a built package has no envs/README.md")
def test_the_readme_is_up_to_date() -> None:
    written = README.read_text(encoding="utf-8")
    assert readme(written) == written, "python -m grpo_envs envs/README.md"


def test_every_environment_has_a_row_and_a_sample() -> None:
    page = readme(README.read_text(encoding="utf-8") if README.is_file() else "")
    for row in own_rows():
        assert f"| `{row.id}` | {row.turns} |" in page
        assert page.count(f"\n### `{row.id}`\n\n{row.summary}") == 1
        sample = page.partition(f"\n### `{row.id}`\n")[2].partition("\n### `")[0]
        assert "\n[assistant] " in sample or not README.is_file()
        assert row.licence
        assert row.source
        assert row.verifier
        assert row.summary.endswith(".")


@pytest.mark.skipif(not GUIDE.is_file(), reason="a built package has no docs")
def test_the_guide_names_every_environment() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    names = [row.id.removeprefix("grpo_gym/").removesuffix("-v0") for row in own_rows()]
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_a_conversation_ends_with_what_it_earned() -> None:
    assert conversation("grpo_gym/Copy-v0").splitlines()[-2:] == [
        f"[assistant] {conversation('grpo_gym/Copy-v0').splitlines()[0].split()[-1]}",
        "(reward 1, success)",
    ]


def test_the_sample_of_an_environment_that_cannot_be_made_here_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = readme()

    def make(id: str, **kwargs: Any) -> Any:
        raise UsageError("not installed")

    monkeypatch.setattr(catalogue, "make", make)
    with pytest.raises(UsageError, match="not installed"):
        readme(before)
    rows = [replace(row, extra="games", needs="") for row in own_rows()]
    monkeypatch.setattr(catalogue, "own_rows", lambda: rows)
    kept = readme(before)
    assert kept.count("````text") == before.count("````text")
    needs = re.compile(" Needs `pip install [^`]+`[.]")
    assert needs.sub("", kept) == needs.sub("", before)
    assert "````text" not in readme("")


def test_the_page_is_the_same_on_a_machine_without_a_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = readme(README.read_text(encoding="utf-8") if README.is_file() else "")

    def broken(paths: Any) -> Any:
        raise SandboxError("not on this machine")

    for name in backends.SAFE:
        monkeypatch.setitem(backends.MAKERS, name, broken)
    backends.chosen.cache_clear()
    try:
        assert readme(before) == before
        assert "def roman" not in readme("")
    finally:
        backends.chosen.cache_clear()


def test_a_sample_file_is_given_as_the_path() -> None:
    assert sample_arguments("grpo_gym/Copy-v0") == {}
    assert sample_arguments("grpo_gym/GSM8K-v0")["path"].is_file()


def test_the_page_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    command = [sys.executable, "-m", "grpo_envs"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(path)], check=True, env=env)
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert path.read_text(encoding="utf-8").splitlines()[0] == printed.splitlines()[0]
