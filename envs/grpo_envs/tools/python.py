"""Questions that take some code: a Python session in the sandbox, then the answer in a box."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.math.dataset import Columns, prompt_and_answer
from grpo_envs.math.grading import near, verify_answer
from grpo_envs.rows import load_tasks
from grpo_envs.tools.python_questions import LEVELS, question
from grpo_envs.tools.python_session import Session
from grpo_gym.env import Reply
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.sandbox import Limits, SandboxError, backend
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.tools import BlockCodec, Call, Codec, ToolEnv, tool
from grpo_gym.types import Observation


class PythonEnv(ToolEnv):
    """A question of number theory or counting, a Python session, and the answer in a box.

    An action with a fenced Python block is run as the next cell of the session; one without is the final
    answer. See `Session` for what a cell sees of the earlier ones. Problems of your own, from `path=` or
    `dataset=`, are read and graded as in `MathDatasetEnv`.

    Args:
        level: size of the numbers in the questions that come from a seed, 1 to 3.
        path: a `.jsonl` or `.parquet` file, or a folder with one for each split.
        dataset: id of a data set on the Hugging Face hub, instead of `path`.
        config: the configuration of that data set.
        split: the split that `reset` draws from, and that the rows of a single file belong to.
        columns: which column is the "prompt" (by default "problem") and which the "answer".
        call_seconds: time for one cell, after which it is killed.
        session_seconds: time for all cells of an episode.
        memory_mb: address space of the session.
        sandbox: name of the back end; see `grpo_gym.sandbox.backend`.
        paths: folders that the session may import from; without them it has the standard library.
        **kwargs: as in `ToolEnv`.

    Raises:
        SandboxError: No back end confines programs on this machine.
        UsageError: As in `ToolEnv`; a level or a limit that is out of range.
    """

    max_turns = 6
    system_prompt = "Put the final answer in \\boxed{}, without a call beside it."
    codec: Codec = BlockCodec()
    fault: SandboxError | None = None

    def __init__(
        self,
        *,
        level: int = 1,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str | None = None,
        split: str = "train",
        columns: Mapping[str, str] | None = None,
        call_seconds: float = 5.0,
        session_seconds: float = 20.0,
        memory_mb: int = 512,
        sandbox: str = "auto",
        paths: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if level not in range(1, LEVELS + 1):
            raise UsageError(f"level must be between 1 and {LEVELS}, got {level}")
        for name, value in (("call_seconds", call_seconds), ("session_seconds", session_seconds)):
            if not 0 < value < math.inf:
                raise UsageError(f"{name} must be positive and finite, got {value!r}")
        self.level = level
        self.limits = Limits(wall_s=call_seconds, cpu_s=call_seconds, memory_mb=memory_mb)
        self.session_seconds = session_seconds
        self.sandbox = sandbox
        self.paths = tuple(paths)
        backend(sandbox)  # fails here rather than in the first episode
        if path is not None or dataset is not None:
            kwargs["tasks"] = load_tasks(
                Columns(**prompt_and_answer(columns), skip_unanswerable=True),
                path=path,
                dataset=dataset,
                config=config,
                split=split,
            )
        # The sandbox ends a cell in time; a thread that is given up on would add nothing.
        super().__init__(split=split, call_seconds=math.inf, **kwargs)
        self._begin()

    @tool
    def python(self, code: str) -> str:
        """Run code; what it prints and the value of its last line come back. Names stay for later calls."""
        try:
            return self.session.run(code)
        except SandboxError as error:
            self.fault = error
            raise

    def default_tasks(self) -> TaskSource:
        """Endless questions of this level."""
        return ProceduralTasks(lambda rng: question(rng, self.level))

    def observe(self, task: Task) -> Observation:
        """A new session, and the question."""
        self._begin()
        return super().observe(task)

    def respond(self, task: Task, action: str) -> Score | Observation | Reply:
        """Run the cells of an action, or score it when it has none.

        Raises:
            SandboxError: A cell could not be confined any more; it was not run.
        """
        answer = super().respond(task, action)
        if self.fault is not None:
            raise self.fault  # nothing that the model did
        return answer

    def grade(self, task: Task, action: str) -> Score:
        """Score the boxed answer."""
        return verify_answer(action, task.answer, task.prompt)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The cells that work the answer out, then the answer; without known cells the answer alone."""
        return self._play(task, task.answer)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The same cells, and an answer that is a little off."""
        return self._play(task, near(task.answer))

    def _play(self, task: Task, answer: str) -> tuple[str, ...]:
        cells = task.metadata.get("cells", ())
        calls = (self.codec.render(Call("python", {"code": cell})) for cell in cells)
        return (*calls, f"\\boxed{{{answer}}}")

    def _begin(self) -> None:
        self.session = Session(
            self.limits, self.session_seconds, backend=self.sandbox, paths=self.paths
        )
        self.fault = None
