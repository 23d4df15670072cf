"""The environment contract as a report, and as a class of tests."""

import traceback
import unittest
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

from grpo_gym.testing import checks

LONGEST_DETAIL = 800


@dataclass(frozen=True)
class Outcome:
    """What came of one check: its name, and why it failed or was skipped."""

    name: str
    result: Literal["passed", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """What came of all checks of one environment."""

    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(outcome.result != "failed" for outcome in self.outcomes)

    def __str__(self) -> str:
        return "\n".join(f"{o.result:8}{o.name:16}{o.detail}".rstrip() for o in self.outcomes)


def check_environment(make: checks.Make, seeds: Sequence[int] = range(8)) -> Report:
    """Check an environment against the contract.

    Args:
        make: builds a fresh environment each time it is called.
        seeds: each check plays the tasks that these seeds draw.

    Returns:
        One outcome a check. An exception of the environment fails the check it was raised in.
    """
    outcomes = []
    for check in checks.CHECKS:
        name = check.__name__.removeprefix("check_")
        try:
            check(make, seeds)
        except unittest.SkipTest as reason:
            outcomes.append(Outcome(name, "skipped", str(reason)))
        except (Exception, SystemExit) as error:  # whatever goes wrong is the environment's failure
            outcomes.append(Outcome(name, "failed", _told(error)))
        else:
            outcomes.append(Outcome(name, "passed"))
    return Report(tuple(outcomes))


def _told(error: BaseException) -> str:
    """What went wrong, on one line; of anything but a broken clause also where it was raised."""
    if isinstance(error, AssertionError):
        return " ".join(str(error).split())[:LONGEST_DETAIL]
    detail = " ".join(repr(error).split())[:LONGEST_DETAIL]
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{detail} at {last.filename}:{last.lineno}"


class EnvContract:
    """The contract as tests: subclass it in a test file, and say how to make the environment.

    ```python
    class TestMyEnv(EnvContract):
        def make(self):
            return MyEnv()
    ```
    """

    seeds: Sequence[int] = range(8)

    def make(self) -> gymnasium.Env[Any, Any]:
        """Build a fresh environment."""
        raise TypeError(f"{type(self).__name__} must define make()")

    def test_gymnasium(self) -> None:
        """Gymnasium's own checker passes without a warning."""
        checks.check_gymnasium(self.make, self.seeds)

    def test_determinism(self) -> None:
        """Equal seeds and actions give equal episodes."""
        checks.check_determinism(self.make, self.seeds)

    def test_group(self) -> None:
        """Copies of one task do not disturb each other."""
        checks.check_group(self.make, self.seeds)

    def test_task_id(self) -> None:
        """A task comes back by its id."""
        checks.check_task_id(self.make, self.seeds)

    def test_solution(self) -> None:
        """The solution of every task earns the maximum."""
        checks.check_solution(self.make, self.seeds)

    def test_mistakes(self) -> None:
        """Plausible mistakes fail."""
        checks.check_mistakes(self.make, self.seeds)

    def test_hacks(self) -> None:
        """Answers that know nothing fail."""
        checks.check_hacks(self.make, self.seeds)

    def test_junk(self) -> None:
        """No text makes `step` raise."""
        checks.check_junk(self.make, self.seeds)

    def test_end(self) -> None:
        """Every episode ends."""
        checks.check_end(self.make, self.seeds)

    def test_global_rng(self) -> None:
        """No global random generator is touched."""
        checks.check_global_rng(self.make, self.seeds)
