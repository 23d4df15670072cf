"""The SQL environment: how answers are compared, and which questions are asked."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_envs.tools.sql import SQLEnv
from grpo_envs.tools.sql_answers import is_right, write_answer
from grpo_envs.tools.sql_database import Row, in_memory
from grpo_envs.tools.sql_questions import LEVELS
from grpo_envs.tools.sql_schemas import WORLDS, World
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import Call


class TestHardest(EnvContract):
    seeds = range(3)

    def make(self) -> SQLEnv:
        return SQLEnv(level=5)


def call(env: SQLEnv, name: str, **arguments: Any) -> str:
    observation, *_ = env.step(env.codec.render(Call(name, arguments)))
    return str(observation[0]["content"])


# Answers


@pytest.mark.parametrize(
    ("rows", "ordered", "text", "right"),
    [
        (((42,),), False, "42", True),
        (((42,),), False, "42.0", True),
        (((42,),), False, " 42 ", True),
        (((42,),), False, "43", False),
        (((42,),), False, "42.4", False),
        (((42,),), False, "42, 43", False),
        (((42,),), False, "41; 42", False),
        (((42,),), False, "", False),
        (((42,),), False, "nan", False),
        (((42,),), False, "4_2", False),
        (((42,),), False, "forty-two", False),
        (((12.35,),), False, "12.35", True),
        (((12.35,),), False, "12.3467", True),
        (((12.35,),), False, "12.36", False),
        (((12.35,),), False, "12", False),
        ((("Ada Holm",), ("Ivan Sato",)), False, "Ivan Sato; Ada Holm", True),
        ((("Ada Holm",), ("Ivan Sato",)), False, "ivan sato, ada holm", True),
        ((("Ada Holm",), ("Ivan Sato",)), False, "Ada Holm\nIvan Sato", True),
        ((("Ada Holm",), ("Ivan Sato",)), False, "Ada Holm", False),
        ((("Ada Holm",), ("Ivan Sato",)), False, "Ada Holm; Ada Holm", False),
        ((("Ada Holm",), ("Ivan Sato",)), False, "Ada Holm; Ivan Sato; Zoe Klein", False),
        ((("Ada Holm",), ("Ivan Sato",)), True, "Ada Holm; Ivan Sato", True),
        ((("Ada Holm",), ("Ivan Sato",)), True, "Ivan Sato; Ada Holm", False),
        ((("toys", 3), ("books", 4)), False, "books, 4; toys, 3", True),
        ((("toys", 3), ("books", 4)), False, "books, 4; toys, 3;", True),
        ((("toys", 3), ("books", 4)), False, "books, 3; toys, 4", False),
        ((("toys", 3), ("books", 4)), False, "3, toys; 4, books", False),
        ((("toys", 3), ("books", 4)), True, "books, 4; toys, 3", False),
    ],
)
def test_answers_are_compared_by_value(
    rows: tuple[Row, ...], ordered: bool, text: str, right: bool
) -> None:
    assert is_right(f"So it is \\boxed{{{text}}}.", rows, ordered) is right


def test_the_last_box_counts_and_prose_does_not() -> None:
    rows: tuple[Row, ...] = ((42,),)
    assert is_right("\\boxed{1} no, \\boxed{42}", rows, False)
    assert not is_right("\\boxed{42} no, \\boxed{1}", rows, False)
    assert not is_right("42", rows, False)
    assert not is_right("\\boxed{42", rows, False)


cells = st.integers(-(10**6), 10**6) | st.sampled_from(["Ada Holm", "toys", "Oslo"])


@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[cells] * n), min_size=1)))
def test_what_is_written_is_read_as_right_in_any_order(rows: list[Row]) -> None:
    assert is_right(write_answer(rows), tuple(rows), True)
    assert is_right(write_answer(rows[::-1]), tuple(rows), False)
    assert not is_right(write_answer([*rows, rows[0]]), tuple(rows), False)


# Questions


@pytest.mark.parametrize("level", range(1, 6))
def test_solutions_win_and_mistakes_lose(level: int) -> None:
    env = SQLEnv(level=level)
    for seed in range(25):
        env.reset(seed=seed)
        assert env.task is not None
        rows = env.task.metadata["rows"]
        assert 1 <= len(rows) <= 8
        query, answer = env.solution(env.task)
        shown = env.step(query)[0][0]["content"]
        assert all(str(value) in shown for row in rows for value in row if isinstance(value, str))
        assert env.step(answer)[4]["success"] is True
        env.reset(seed=seed)
        for action in env.mistakes(env.task, np.random.default_rng(seed)):
            last = env.step(action)
        assert last[4]["success"] is False
    env.close()


@pytest.mark.parametrize("kind", [kind for level in LEVELS for kind in level])
def test_every_kind_of_question_can_be_asked_of_every_world(kind: Any) -> None:
    for world in WORLDS:
        database = in_memory(world.schema, world.rows(5))
        rng = np.random.default_rng(1)
        for _ in range(5):
            question = kind(world, rng)
            result = database.query(question.query, 50)
            assert question.ordered == ("ORDER BY" in question.query.rpartition(")")[2]) or (
                "LIMIT 1" in question.query
            )
            assert not result.more
        database.close()


def rows_of(world: World, seed: int) -> tuple[dict[int, Any], dict[int, Any], list[Any]]:
    """Left and right things by id, as (name, kind, number), and events (left, right, number, year)."""
    (_, left), (_, right), (_, events) = world.rows(seed)
    by_id: list[dict[Any, Any]] = [{row[0]: row[1:] for row in table} for table in (left, right)]
    return by_id[0], by_id[1], [row[1:] for row in events]


def asked(level: int, text: str) -> Iterator[tuple[World, int, re.Match[str], Any]]:
    """Questions whose text matches: world, seed, the match, and the rows of the answer."""
    env = SQLEnv(level=level)
    found = 0
    for seed in range(150):
        env.reset(seed=seed)
        assert env.task is not None
        match = re.fullmatch(text, env.task.prompt)
        if match is not None:
            found += 1
            data = env.task.metadata
            yield WORLDS[data["world"]], data["seed"], match, sorted(data["rows"])
    assert found > 2


def test_counts_mean_what_they_say() -> None:
    text = r"How many (\w+) .*?(\w+) are there whose \w+ is at least (\d+)\?"
    for world, seed, match, rows in asked(1, text):
        left, right, _ = rows_of(world, seed)
        things = left if match[1] == world.left.table else right
        found = [
            1
            for _, kind, number in things.values()
            if (kind, number >= int(match[3])) == (match[2], True)
        ]
        assert rows == [(len(found),)]


def test_joins_mean_what_they_say() -> None:
    text = r"Which \w+ \w+ \w+ .*?(\w+) in (\d+)\? Give each name once\."
    for world, seed, match, rows in asked(3, text):
        left, right, events = rows_of(world, seed)
        found = {
            left[one][0]
            for one, other, _, year in events
            if right[other][1] == match[1] and year == int(match[2])
        }
        assert rows == sorted((name,) for name in found)


def test_but_never_means_never() -> None:
    text = r"How many \w+ \w+ \w+ .*?(\w+), but never \w+ .*?(\w+)\?"
    for world, seed, match, rows in asked(5, text):
        _, right, events = rows_of(world, seed)
        did, never = (
            {one for one, other, *_ in events if right[other][1] == kind} for kind in match.groups()
        )
        assert rows == [(len(did - never),)]


def test_the_best_of_each_kind_ties_by_name() -> None:
    for world, seed, match, rows in asked(5, r"For each \w+ of (\w+), which .*"):
        left, right, events = rows_of(world, seed)
        side = 0 if match[1] == world.left.table else 1
        things = (left, right)[side]
        counts = Counter(event[side] for event in events)
        best: dict[str, str] = {}
        for number in sorted(counts, key=lambda n: (-counts[n], things[n][0])):
            best.setdefault(things[number][1], things[number][0])
        assert rows == sorted(best.items())


def test_the_schema_tool_shows_the_tables() -> None:
    env = SQLEnv()
    env.reset(seed=1)
    text = call(env, "schema")
    assert text.count("CREATE TABLE") == 3
    assert "REFERENCES" in text


def test_rows_are_capped_and_faults_are_told() -> None:
    env = SQLEnv(max_rows=2)
    env.reset(seed=1)
    assert call(env, "query", sql="SELECT 1").endswith("1\n(1 row)")
    many = call(env, "query", sql="SELECT 1 UNION SELECT 2 UNION SELECT 3")
    assert many.splitlines()[-1] == "(the first 2 rows; there are more)"
    assert call(env, "query", sql="DELETE FROM x").startswith("Error:")
    assert call(env, "query", sql="DROP TABLE sqlite_master").startswith("Error:")


def test_each_episode_has_its_own_database_and_close_gives_it_back() -> None:
    env = SQLEnv()
    env.reset(seed=1)
    schema = call(env, "schema")
    assert all(call(env, "schema") == schema for _ in range(2))
    env.close()
    env.close()
    env.reset(seed=1)
    assert call(env, "schema") == schema


def test_an_environment_may_be_stepped_in_another_thread() -> None:
    env = SQLEnv()
    env.reset(seed=1)
    assert env.task is not None
    found: list[Any] = []
    actions = env.solution(env.task)
    thread = threading.Thread(target=lambda: found.extend(env.step(a)[1] for a in actions))
    thread.start()
    thread.join()
    assert found == [0.0, 1.0]


@pytest.mark.parametrize("arguments", [{"level": 0}, {"level": 6}, {"max_rows": 0}])
def test_wrong_arguments_are_told(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        SQLEnv(**arguments)


def test_a_task_of_another_kind_is_refused() -> None:
    env = SQLEnv(tasks=ListTasks([Task("t", "What?", "x")]))
    with pytest.raises(UsageError, match="'t' is none of SQLEnv's"):
        env.reset(seed=1)
