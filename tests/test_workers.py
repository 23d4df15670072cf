"""An environment in a thread of its own."""

import threading
import time
from typing import Any

import pytest

from grpo_gym.answers import Answer, BadAnswer, Start
from grpo_gym.errors import UsageError
from grpo_gym.workers import EnvWorker
from tests.playing import END, Fake, goes_on

WAIT_S = 20


def test_everything_happens_in_the_one_thread_of_the_environment() -> None:
    threads: list[str] = []

    class Noting(Fake):
        def __init__(self) -> None:
            super().__init__(self.note, self.note)
            self.note()

        def note(self, *_: Any) -> Any:
            threads.append(str(threading.get_ident()))
            return END if _ and len(_) == 2 else ("q", {})

        def close(self) -> None:
            self.note()

    worker = EnvWorker(Noting)
    assert worker.reset(0, None).result(WAIT_S) == Start(({"role": "user", "content": "q"},), None)
    assert isinstance(worker.step("a").result(WAIT_S), Answer)
    worker.close()
    worker.join(WAIT_S)
    assert len(threads) == 4
    assert len(set(threads)) == 1
    assert threads[0] != str(threading.get_ident())


def test_the_environment_is_built_once_and_again_only_after_it_could_not_be() -> None:
    made: list[Fake] = []

    def make() -> Fake:
        made.append(Fake())
        if len(made) == 1:
            raise OSError("not yet")
        return made[-1]

    worker = EnvWorker(make)
    with pytest.raises(BadAnswer, match="reset raised OSError: not yet"):
        worker.reset(0, None).result(WAIT_S)
    for _ in range(2):
        worker.reset(0, None).result(WAIT_S)
    assert len(made) == 2
    worker.close()
    worker.join(WAIT_S)
    assert made[1].closed


def test_what_the_environment_raises_is_a_line_that_says_where() -> None:
    worker = EnvWorker(lambda: Fake(lambda env, action: {}["missing"]))
    with pytest.raises(
        BadAnswer, match=r"^step raised KeyError: 'missing' \(test_workers\.py:\d+\)$"
    ):
        worker.step("a").result(WAIT_S)
    worker.close()


def test_a_usage_error_stays_one() -> None:
    def step(env: Fake, action: str) -> Any:
        raise UsageError("no such file")

    worker = EnvWorker(lambda: Fake(step))
    with pytest.raises(UsageError, match=r"^no such file$"):
        worker.step("a").result(WAIT_S)
    worker.close()


def test_questions_are_answered_in_their_order_without_anybody_waiting() -> None:
    gate = threading.Event()

    def step(env: Fake, action: str) -> Any:
        assert gate.wait(WAIT_S)
        return goes_on(f"{action}{len(env.seen)}")

    worker = EnvWorker(lambda: Fake(step))
    answers = [worker.step(text) for text in "abc"]
    worker.close()
    assert not any(answer.done() for answer in answers)
    gate.set()
    contents = [answer.result(WAIT_S).messages[0]["content"] for answer in answers]
    assert contents == ["a1", "b2", "c3"]


def test_it_notes_how_long_answers_took_but_not_the_building() -> None:
    def make() -> Fake:
        time.sleep(0.3)
        return Fake(step)

    def step(env: Fake, action: str) -> Any:
        time.sleep(0.05)
        return END

    worker = EnvWorker(make)
    worker.reset(0, None).result(WAIT_S)
    worker.step("a").result(WAIT_S)
    assert worker.seconds["reset"] < 0.2
    assert worker.seconds["step"] >= 0.05
    worker.close()


def test_joining_a_stuck_environment_ends() -> None:
    stuck = threading.Event()
    worker = EnvWorker(lambda: Fake(lambda env, action: stuck.wait()))
    worker.step("a")
    worker.close()
    began = time.monotonic()
    worker.join(0.05)
    assert time.monotonic() - began < 5
    stuck.set()
    worker.join(WAIT_S)
