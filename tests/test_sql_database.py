"""The database that anybody's query may be run on: what a query may do, and how much."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.tools.sql_database import Database, in_memory
from grpo_envs.tools.sql_schemas import WORLDS

SHOP = WORLDS[0]


@pytest.fixture
def database() -> Iterator[Database]:
    found = in_memory(SHOP.schema, SHOP.rows(3))
    yield found
    found.close()


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
    bounded = in_memory(SHOP.schema, SHOP.rows(3), max_ops=max_ops, max_seconds=max_seconds)
    with pytest.raises(ValueError, match="too much work"):
        bounded.query(sql, 1)
    assert in_memory(SHOP.schema, SHOP.rows(3)).query(sql, 1).rows > ((3600,),)


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
    database = in_memory(SHOP.schema, SHOP.rows(3))
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


def test_memory_is_given_back_with_the_object() -> None:
    database = in_memory(SHOP.schema, SHOP.rows(3))
    connection = database._connection
    del database
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_closed_database_answers_no_more(database: Database) -> None:
    database.close()
    with pytest.raises(ValueError, match="closed"):
        database.query("SELECT 1", 1)
