"""Rollouts as conversations to read."""

from rich.console import Console
from rich.markup import escape

from grpo_gym.types import Message, Rollout

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}


def show(rollout: Rollout, console: Console) -> None:
    """Print a rollout: its messages, and how it ended."""
    console.rule(escape(f"task {rollout.task_id}"), align="left")
    for message in rollout.prompt:
        _show_message(message, console)
    for turn in rollout.turns:
        _show_message(Message(role="assistant", content=turn.action), console)
        for message in turn.observation:
            _show_message(message, console)
    console.print(f"[bold]{escape(ending(rollout))}[/bold]", highlight=False)


def ending(rollout: Rollout) -> str:
    """How a rollout ended, in a line."""
    if rollout.error is not None:
        return f"lost: {rollout.error}"
    end = f"truncated ({rollout.truncation})" if rollout.truncated else "terminated"
    solved = {True: "solved", False: "not solved", None: "success unknown"}[rollout.success]
    return f"{end}, {solved}, reward {rollout.reward:g}, {rollout.sampled_tokens} tokens sampled"


def _show_message(message: Message, console: Console) -> None:
    role = message["role"]
    style = _STYLES.get(role, "white")
    text = escape("".join(c if c.isprintable() or c == "\n" else "�" for c in message["content"]))
    console.print(f"[{style}]{escape(role):>9}:[/{style}] {text}", highlight=False, soft_wrap=True)
