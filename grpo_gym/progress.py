"""What a person sees of a run: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grpo_gym.evaluation import Evaluation

_SHOWN = {
    "reward": "reward {:.3f}",
    "success": "success {:.3f}",
    "entropy": "entropy {:.2f}",
    "tokens_per_rollout": "{:.0f} tokens",
    "grad_norm": "grad {:.2g}",
}
_LINE_EVERY_S = 5.0


class Progress:
    """Shows training steps and, within one, rollouts.

    Args:
        console: where to; None shows nothing.
        steps: of the run; 0 for an evaluation alone.
    """

    def __init__(self, console: Console | None, steps: int = 0) -> None:
        self._console = console
        self._steps = steps
        self._last_line = -_LINE_EVERY_S
        self._bar: Bar | None = None
        if console is not None and console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )
            self._train = self._bar.add_task("training", total=steps, note="", visible=steps > 0)
            self._within = self._bar.add_task("rollouts", total=1, note="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def rollouts(self, ended: int, total: int) -> None:
        """Rollouts of a training step."""
        if self._bar is not None:
            self._bar.update(self._within, description="rollouts", completed=ended, total=total)

    def evaluation(self, ended: int, total: int) -> None:
        """Rollouts of an evaluation."""
        if self._bar is not None:
            self._bar.update(self._within, description="evaluating", completed=ended, total=total)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done."""
        note = "  ".join(
            form.format(metrics[name]) for name, form in _SHOWN.items() if name in metrics
        )
        if self._bar is not None:
            self._bar.update(self._train, completed=step, note=note)
        elif self._console is not None and (
            time.monotonic() - self._last_line >= _LINE_EVERY_S or step == self._steps
        ):
            self._last_line = time.monotonic()
            self._say(f"step {step}/{self._steps}  {note}")

    def warn(self, line: str | None) -> None:
        """Something to know before the run; None: nothing."""
        if line is not None:
            self._say(line)

    def resumed(self, step: int) -> None:
        """A run goes on."""
        if self._bar is not None:
            self._bar.update(self._train, completed=step)
        if step >= self._steps:
            self._say(f"the run is complete: {step} steps are done, {self._steps} were asked for")
        else:
            self._say(f"going on after step {step} of {self._steps}")

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """An evaluation is done."""
        shown = "  ".join(f"pass@{k} {value}" for k, value in evaluation.pass_at.items())
        self._say(f"evaluation after step {step}:  {shown}")

    def _say(self, line: str) -> None:
        if self._console is not None:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
