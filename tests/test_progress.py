"""What a person sees: a bar on a terminal, lines in a pipe, nothing where nothing is wanted."""

import io

import pytest
from rich.console import Console

from grpo_gym import progress as module
from grpo_gym.conversation import ending, show
from grpo_gym.progress import Progress
from grpo_gym.types import Completion, Message, Rollout, Turn
from tests.test_runs import EVALUATION

METRICS = {"reward": 0.5, "entropy": 1.25, "tokens_per_rollout": 7.6, "sync_gap": 0.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def drive(console: Console | None, clock: list[float]) -> None:
    with Progress(console, 4) as progress:
        progress.evaluated(0, EVALUATION)
        for step in range(1, 5):
            progress.rollouts(4, 8)
            progress.rollouts(8, 8)
            progress.evaluation(1, 2)
            clock[0] += 3
            progress.step(step, METRICS)
        progress.evaluated(4, EVALUATION)


def test_a_pipe_gets_a_line_every_few_seconds_and_the_last_one(clock: list[float]) -> None:
    out = io.StringIO()
    drive(Console(file=out, width=20), clock)
    shown = "pass@1 0.500 [0.250, 0.750]  pass@4 1.000 [0.500, 1.000]"
    note = "reward 0.500  entropy 1.25  8 tokens"
    assert out.getvalue().splitlines() == [
        f"evaluation after step 0:  {shown}",
        f"step 1/4  {note}",
        f"step 3/4  {note}",
        f"step 4/4  {note}",
        f"evaluation after step 4:  {shown}",
    ]


def test_a_terminal_gets_a_bar_that_goes_away(clock: list[float]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    drive(console, clock)
    text = out.getvalue()
    assert "training" in text
    assert "4/4" in text
    assert "reward 0.500" in text
    assert "evaluation after step 4" in text


def test_without_a_console_nothing_is_shown(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    drive(None, clock)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (2, "going on after step 2 of 4"),
        (4, "the run is complete: 4 steps are done, 4 were asked for"),
    ],
)
def test_a_resumed_run_says_so(step: int, line: str) -> None:
    out = io.StringIO()
    Progress(Console(file=out, width=200), 4).resumed(step)
    assert out.getvalue() == f"{line}\n"


def rollout(**changes: object) -> Rollout:
    completion = Completion([5], [-0.5], "stop")
    turn = Turn(completion, "[bold]4\x1b[31m", (Message(role="tool", content="[red]x"),), 1.0)
    values: dict[str, object] = {
        "task_id": "[a]",
        "prompt_ids": [1, 2],
        "token_ids": [5],
        "mask": [True],
        "logprobs": [-0.5],
        "versions": [0],
        "prompt": (
            Message(role="system", content="Be [brief]."),
            Message(role="user", content="2+2?"),
        ),
        "turns": (turn,),
        "reward": 1.0,
        "success": True,
        "terminated": True,
    }
    return Rollout(**(values | changes))  # type: ignore[arg-type]


def test_a_conversation_is_shown_as_it_was_said_without_control_characters() -> None:
    out = io.StringIO()
    show(rollout(), Console(file=out, width=60))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("task [a] ─")
    assert lines[1:] == [
        "   system: Be [brief].",
        "     user: 2+2?",
        "assistant: [bold]4\N{REPLACEMENT CHARACTER}[31m",
        "     tool: [red]x",
        "terminated, solved, reward 1, 1 tokens sampled",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"success": False, "reward": 0.0}, "terminated, not solved, reward 0, 1 tokens sampled"),
        ({"success": None}, "terminated, success unknown, reward 1, 1 tokens sampled"),
        (
            {"terminated": False, "truncated": True, "truncation": "turn_tokens", "success": False},
            "truncated (turn_tokens), not solved, reward 1, 1 tokens sampled",
        ),
        (
            {"terminated": False, "error": "step raised KeyError: 1", "reward": float("nan")},
            "lost: step raised KeyError: 1",
        ),
    ],
)
def test_how_a_rollout_ended(changes: dict[str, object], line: str) -> None:
    assert ending(rollout(**changes)) == line
