"""The SQL environment: what a query may do, how answers are compared, and which questions are asked."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.tools.sql import SQLEnv
from grpo_envs.tools.sql_answers import is_right, write_answer
from grpo_envs.tools.sql_database import Database, Row
from grpo_envs.tools.sql_questions import LEVELS
from grpo_envs.tools.sql_schemas import WORLDS
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import Call

SHOP = WORLDS[0]


@pytest.fixture
def database() -> Iterator[Database]:
    found = Database(SHOP.schema, SHOP.rows(3))
    yield found
    found.close()


class TestHardest(EnvContract):
    seeds = range(3)

    def make(self) -> SQLEnv:
        return SQLEnv(level=5)


def call(env: SQLEnv, name: str, **arguments: Any) -> str:
    observation, *_ = env.step(env.codec.render(Call(name, arguments)))
    return str(observation[0]["content"])


# Queries


def test_a_query_brings_columns_and_rows(database: Database) -> None:
    result = database.query("SELECT id, name AS n FROM customers ORDER BY id", 2)
    assert result.columns == ("id", "n")
    assert [row[0] for row in result.rows] == [1, 2]
    assert result.more
    assert not database.query("SELECT 1", 1).more


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE customers",
        "INSERT INTO customers VALUES (99, 'x', 'Oslo', 1)",
        "UPDATE customers SET age = 1",
        "WITH x AS (SELECT 1) DELETE FROM customers",
        "CREATE TEMP TABLE t(x)",
        "BEGIN",
        "SAVEPOINT s",
        "PRAGMA query_only = OFF",
        "PRAGMA table_info(customers)",
        "SELECT * FROM pragma_table_info('customers')",
        "ANALYZE",
        "REINDEX",
        "VACUUM",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT random()",
        "SELECT datetime('now')",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT 1; DROP TABLE customers",
        "SELECT",
        "",
        "-- nothing",
        "\x00",
        "SELECT '\ud800'",
        "SELECT " + "(" * 2000 + "1" + ")" * 2000,
        "SELECT 1 " * 5000,
    ],
)
def test_what_is_not_one_plain_select_is_turned_down(database: Database, sql: str) -> None:
    before = database.query("SELECT * FROM customers", 1000)
    with pytest.raises(ValueError):
        database.query(sql, 10)
    assert database.query("SELECT * FROM customers", 1000) == before


def test_no_file_can_be_read_or_written(database: Database, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE secret (x)")
    connection.close()
    for sql in (f"ATTACH '{other}' AS o", f"VACUUM INTO '{tmp_path / 'new.db'}'"):
        with pytest.raises(ValueError):
            database.query(sql, 10)
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION SELECT x + 1 FROM c) SELECT x FROM c ORDER BY -x",
        "WITH RECURSIVE c(x, y) AS (SELECT 1, 'a' UNION ALL SELECT x + 1, substr(y || y, 1, 900) "
        "FROM c) SELECT y FROM c ORDER BY x DESC",
        "SELECT COUNT(*) FROM orders, orders, orders, orders",
        "SELECT a.name || b.name || c.name || d.name AS n FROM customers a, customers b, "
        "customers c, customers d, orders, orders ORDER BY n",
    ],
)
def test_endless_work_is_stopped(database: Database, sql: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match="too much work"):
        database.query(sql, 10)
    assert time.monotonic() - start < 10
    assert database.query("SELECT 1", 1).rows == ((1,),)


@pytest.mark.parametrize(("max_ops", "max_seconds"), [(1000, 60.0), (10**9, 0.0)])
def test_work_is_limited_by_instructions_and_by_the_clock(max_ops: int, max_seconds: float) -> None:
    sql = "SELECT COUNT(*) FROM orders, orders"
    bounded = Database(SHOP.schema, SHOP.rows(3), max_ops=max_ops, max_seconds=max_seconds)
    with pytest.raises(ValueError, match="too much work"):
        bounded.query(sql, 1)
    assert Database(SHOP.schema, SHOP.rows(3)).query(sql, 1).rows > ((3600,),)


def test_large_values_are_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="too big"):
        database.query("SELECT replace(group_concat(id), ',', group_concat(id)) FROM orders", 1)
    with pytest.raises(ValueError, match="too big"):
        database.query(
            "SELECT group_concat(quantity || ' of something else, delivered soon') FROM orders", 1
        )


def test_any_bytes_come_back_as_text(database: Database) -> None:
    row = database.query("SELECT CAST(x'ff41' AS TEXT), x'00', NULL, 1.5", 1).rows[0]
    assert row == ("\ufffdA", b"\x00", None, 1.5)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_answered_or_turned_down(text: str) -> None:
    database = Database(SHOP.schema, SHOP.rows(3))
    with contextlib.suppress(ValueError):
        database.query(text, 3)
    assert database.query("SELECT 1", 1).rows == ((1,),)
    database.close()


def test_a_database_serves_several_threads(database: Database) -> None:
    seen: list[object] = []

    def ask() -> None:
        seen.extend(database.query("SELECT COUNT(*) FROM orders", 1).rows for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    assert len(set(map(str, seen))) == 1


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
        database = Database(world.schema, world.rows(5))
        rng = np.random.default_rng(1)
        for _ in range(5):
            question = kind(world, rng)
            result = database.query(question.query, 50)
            assert question.ordered == ("ORDER BY" in question.query.rpartition(")")[2]) or (
                "LIMIT 1" in question.query
            )
            assert not result.more
        database.close()


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
