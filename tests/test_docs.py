"""Every code block of the documentation runs."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from grpo_gym.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PAGES = [page for page in PAGES if page.exists()]

# A documented run is long; here its length is cut, and nothing else.
SHORTER = [
    (r"--steps \d+", "--steps 1"),
    (r"\bsteps=\d+", "steps=1, groups_per_step=2, max_tokens=24"),
    (r"--eval-tasks \d+", "--eval-tasks 2"),
    (r"(grpo-gym train)", r"\1 --groups-per-step 2"),
    (r"(grpo-gym eval)", r"\1 --tasks 2"),
    (r"n=16, k=\(1, 8\)\)", "n=16, k=(1, 8), tasks=2)"),
]


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def shorter(text: str) -> str:
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model and the data that the pages speak of."""
    from grpo_gym import tiny

    tiny.write(tmp_path / "my-model")
    rows = [
        {"question": f"What is {n} + {n}?", "answer": f"Twice.\n#### {2 * n}"} for n in range(4)
    ]
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def with_python(pages: list[Path]) -> list[Path]:
    return [page for page in pages if blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.parametrize("page", with_python(PAGES), ids=lambda page: page.name)
def test_python_blocks(page: Path, folder: Path) -> None:
    """The blocks of a page, one after the other in one interpreter."""
    script = folder / "page.py"
    script.write_text("\n\n".join(shorter(block) for block in blocks(page, "python")))
    python([str(script)], folder)


COMMANDS = [
    (page, line)
    for page in PAGES
    for block in blocks(page, "bash")
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=[f"{page.name}-{i}" for i, (page, _) in enumerate(COMMANDS)]
)
def test_shell_lines(page: Path, line: str, folder: Path) -> None:
    """A line of a shell block: ours run; the scripts of the checkout exist."""
    words = shorter(line).split("#")[0].split()
    if words[0].startswith("./"):
        if (ROOT / ".git").exists():
            assert shutil.which(str(ROOT / words[0])), f"{page.name} names {words[0]}"
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"\[([\w,]+)\]", line):
            assert set(extra.split(",")) <= set(extras["optional-dependencies"])
    elif words[0] in ("git", "cd"):
        pass
    elif words[0] == "python":
        script = ROOT / words[1]
        assert script.exists(), f"{page.name} names {words[1]}"
        python([str(script), *words[2:]], folder)
    elif words[:3] == ["accelerate", "launch", "--config_file"]:
        launcher = ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / words[3])]
        python([*launcher, *words[4:]], folder)
    else:
        assert words[0] == "grpo-gym", f"{page.name}: cannot test {line!r}"
        assert main(words[1:]) == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_blocks(page: Path) -> None:
    """Options in TOML are options of a run."""
    from grpo_gym.config import TrainConfig, from_values

    for block in blocks(page, "toml"):
        values = tomllib.loads(block)
        if "env" in values:
            from_values(TrainConfig, values, page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """What a page links to in the checkout is there."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_block_has_a_language_that_is_tested() -> None:
    """Blocks in any other language would go untested."""
    for page in PAGES:
        languages = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        assert set(languages) <= {"python", "bash", "toml", "text"}, page.name


def test_the_design_shows_the_layers_that_are_enforced() -> None:
    """The list in docs/design.md is that of import-linter."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    assert "\n".join(layers) + "\n" in blocks(ROOT / "docs" / "design.md", "text")
