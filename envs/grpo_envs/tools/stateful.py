"""Conversations with a user whose wishes are met by calling tools that keep state."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_envs.tools.stateful_backends import Backends, make_tools, parameter_names
from grpo_envs.tools.stateful_cases import CATEGORIES, Case, TruthCall, load_tasks
from grpo_gym.env import Reply
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task, TaskSource, check_source
from grpo_gym.tools import Call, ToolEnv
from grpo_gym.tools.function import AnyTool
from grpo_gym.types import Observation

_DONE = "Done."


class StatefulToolsEnv(ToolEnv):
    """The multi-turn cases of the Berkeley Function Calling Leaderboard.

    The user says a few things one after another. An action without a call says that what the user
    asked for is done; the next request follows. Each time the state of the back ends must be that
    of the published solution, and the results so far must hold all of its results, as in the
    benchmark's own evaluation (extra calls that change nothing do no harm). The first request that
    was not met ends the episode.

    In the category miss_func a tool is missing until a later turn, in miss_param a request lacks
    something until the user adds it, and long_context has much more in the back ends. There the
    right thing to do in a turn may be nothing.

    Components: "turns", the share of requests met; "state" and "calls", whether the state and the
    results were right when the episode ended.

    Args:
        categories: which cases; see `grpo_envs.tools.stateful_cases.CATEGORIES`.
        max_calls: most calls in one episode.
        **kwargs: as in `ToolEnv`.

    Raises:
        UsageError: `bfcl-eval` is not installed, or an unknown category.
    """

    max_turns = 40
    call_seconds = math.inf  # the back ends are quick, and their arguments are bounded
    system_prompt = (
        "Do what the user asks for by calling tools. When it is done, or cannot be done with what "
        "there is, answer without a call; the user then goes on."
    )

    def __init__(
        self,
        *,
        categories: Sequence[str] = CATEGORIES,
        tasks: TaskSource | None = None,
        split: str = "train",
        max_calls: int = 100,
        **kwargs: Any,
    ) -> None:
        if isinstance(categories, str):
            raise UsageError(f"categories is a list of names, got {categories!r}")
        self.categories = tuple(categories)
        source = check_source(self.default_tasks() if tasks is None else tasks)
        self._begin(_case(source.draw(np.random.default_rng(0), split)))
        tools = tuple(self._every_tool.values())
        super().__init__(tools=tools, tasks=source, split=split, max_calls=max_calls, **kwargs)

    def default_tasks(self) -> TaskSource:
        """The cases of the categories."""
        return load_tasks(self.categories)

    def observe(self, task: Task) -> Observation:
        """The tools and the first request, with the back ends as the case begins."""
        self._begin(_case(task))
        self.tools = self._tools_now()
        return super().observe(task)

    def respond(self, task: Task, action: str) -> Score | Observation | Reply:
        """Run the calls of an action; without one, check the request and go on to the next."""
        if self.codec.parse(action, 1):
            messages = super().respond(task, action)
            return self.grade(task, action) if self._mine.too_large else messages
        if not self._is_met():
            return self.grade(task, action)
        self._request += 1
        if self._request == len(self._case.truth):
            return self.grade(task, action)
        self._calls_before = len(self._mine.results)
        self.tools = self._tools_now()
        new = [self.tools[n] for n in self._case.late.get(self._request, ()) if n in self.tools]
        words = ["There are more tools now.", self.codec.instructions(new)] if new else []
        return "\n".join(filter(None, [*words, self._case.requests[self._request]]))

    def grade(self, task: Task, action: str) -> Score:
        """The score of the whole episode as it stands."""
        met = self._request / len(self._case.truth)
        components = {"turns": met, "state": float(self._state), "calls": float(self._calls)}
        return Score(float(met == 1), met == 1, components)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The calls of the published solution for each request, then a word that it is done.

        None, where the solution takes a tool that is not there yet.
        """
        case = _case(task)
        if not case.is_solvable:
            return ()
        actions: list[str] = []
        for turn in case.truth:
            actions += ["\n".join(self._render(case, call) for call in turn)] if turn else []
            actions.append(_DONE)
        return tuple(actions)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """A word that it is done, before the calls."""
        calls = [action for action in self.solution(task) if action != _DONE][:1]
        return (*[_DONE] * len(_case(task).truth), *calls)

    def _begin(self, case: Case) -> None:
        self._case = case
        self._mine, self._published = Backends(case), Backends(case)
        self._every_tool = make_tools(case, self._mine.call)
        self._request = 0
        self._calls_before = 0
        self._state = self._calls = False

    def _tools_now(self) -> dict[str, AnyTool]:
        """The tools that are there at the current request."""
        late = [n for turn, names in self._case.late.items() if turn > self._request for n in names]
        return {name: tool for name, tool in self._every_tool.items() if name not in late}

    def _is_met(self) -> bool:
        """Whether the current request is met; the published calls of it are run for comparison."""
        turn = self._case.truth[self._request]
        wanted = [self._published.call(call.name, *call.args, **call.kwargs) for call in turn]
        self._state = self._mine.same_state(self._published)
        self._calls = self._mine.has_results(wanted)
        if not turn:  # nothing to do here; what was done shows at the next request
            return True
        return self._state and self._calls and len(self._mine.results) > self._calls_before

    def _render(self, case: Case, call: TruthCall) -> str:
        names = parameter_names(case, call.name)
        arguments = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        return self.codec.render(Call(call.name, arguments))


def _case(task: Task) -> Case:
    case = task.metadata.get("case")
    if not isinstance(case, Case):
        raise UsageError(f"task {task.task_id!r} has no case of bfcl-eval in its metadata")
    return case
