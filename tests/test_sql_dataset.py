"""Questions about a user's own databases: what is read, what is refused, and that nothing is written."""

import json
import os
import random
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_envs.tools.sql_answers import is_right, read_rows, write_answer
from grpo_envs.tools.sql_database import Row
from grpo_envs.tools.sql_dataset import SQLDatasetEnv
from grpo_gym.errors import UsageError
from grpo_gym.tools import Call

SCHEMA = """
CREATE TABLE people (name TEXT, born TEXT, height REAL, note BLOB, big INTEGER);
INSERT INTO people VALUES ('Holm, Ada', '1901-05-04', 0.0123, x'00ff', 9007199254740993);
INSERT INTO people VALUES ('Ivan "I" Sato', '1950-01-02', 1.5, NULL, 2);
"""
ASKED = {"question": "How many?", "database": "a", "query": "SELECT 10 + COUNT(*) FROM people"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Databases under the names that people give them, and a secret outside."""
    root = tmp_path / "data"
    for path in ("a.sqlite", "b.db", "c/c.sqlite", "deep/er/d.sqlite"):
        make_database(root / path)
    make_database(tmp_path / "secret.sqlite")
    (root / "link.sqlite").symlink_to(tmp_path / "secret.sqlite")
    (root / "loop.sqlite").symlink_to(root / "loop.sqlite")
    (root / "text.sqlite").write_text("these are no tables" * 100)
    os.mkfifo(root / "pipe.sqlite")
    return root


def make_database(path: Path, script: str = SCHEMA) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def asked(folder: Path, *rows: Mapping[str, Any], **arguments: Any) -> SQLDatasetEnv:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SQLDatasetEnv(path=path, **arguments)


def call(env: SQLDatasetEnv, name: str, **arguments: Any) -> str:
    observation, *_ = env.step(env.codec.render(Call(name, arguments)))
    return str(observation[0]["content"])


def wins(env: SQLDatasetEnv, *actions: str) -> bool:
    env.reset(seed=0)
    for action in actions:
        *_, info = env.step(action)
    return bool(info["success"])


@pytest.mark.parametrize("name", ["a", "a.sqlite", "b", "b.db", "c", "deep/er/d", "./a.sqlite"])
def test_a_database_is_found_by_its_path_or_name(folder: Path, name: str) -> None:
    env = asked(folder, ASKED | {"database": name})
    assert wins(env, "\\boxed{12}")
    assert not wins(env, "\\boxed{13}")


def test_the_tools_show_the_file(folder: Path) -> None:
    env = asked(folder, ASKED)
    env.reset(seed=0)
    assert call(env, "schema").startswith("CREATE TABLE people (name TEXT")
    assert call(env, "query", sql="SELECT strftime('%Y', born) AS y FROM people") == (
        "y\n1901\n1950\n(2 rows)"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM people",
        "CREATE TABLE x (y)",
        "ATTACH 'secret.sqlite' AS s",
        "PRAGMA query_only = OFF",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT writefile('x', 'y')",
        "SELECT load_extension('x')",
    ],
)
def test_nothing_is_written_and_nothing_else_is_opened(folder: Path, sql: str) -> None:
    before = {path: path.read_bytes() for path in folder.glob("*.sqlite") if path.is_file()}
    env = asked(folder, ASKED)
    env.reset(seed=0)
    assert call(env, "query", sql=sql).startswith("Error:")
    env.close()
    assert before == {path: path.read_bytes() for path in folder.glob("*.sqlite") if path.is_file()}
    assert not list(folder.glob("*-wal")) + list(folder.glob("*-shm"))
    with pytest.raises(UsageError, match="the query fails"):
        asked(folder, ASKED | {"query": sql})


def test_a_folder_that_cannot_be_written_to_will_do(folder: Path) -> None:
    (folder / "a.sqlite").chmod(0o444)
    assert wins(asked(folder, ASKED), "\\boxed{12}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret", "is not inside"),
        ("../secret.sqlite", "is not inside"),
        ("c/../../secret.sqlite", "is not inside"),
        ("/etc/passwd", "is not inside"),
        ("link", "is not inside"),
        ("link.sqlite", "is not inside"),
        ("a.sqlite?mode=rw", "no database"),
        ("file:a.sqlite", "no database"),
        (":memory:", "no database"),
        ("pipe.sqlite", "no database"),
        ("c", "no database"),
        ("", "no database"),
        (".", "no database"),
        ("loop.sqlite", "cannot be the name of a file"),
        ("a\0b", "cannot be the name of a file"),
        ("\ud800", "cannot be the name of a file"),
        ("x" * 5000, "cannot be the name of a file"),
        ("text", "cannot be read as a SQLite database"),
        (7, "no database '7'"),
        (None, "must be text"),
        (["a"], "must be text"),
    ],
)
def test_other_paths_are_refused(folder: Path, name: Any, message: str) -> None:
    (folder / "c" / "c.sqlite").unlink()
    for skip in (False, True):  # a bad path is never just left out
        with pytest.raises(UsageError, match=message) as raised:
            asked(folder, ASKED | {"database": name}, skip_unanswerable=skip)
        assert "questions.jsonl:1" in str(raised.value) or "text.sqlite" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 800


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "SELECT missing"}, "the query fails: no such column: missing"),
        ({"query": "DROP TABLE people"}, "the query fails: only SELECT is allowed"),
        ({"query": "SELECT 1 WHERE 0"}, "no row in the answer"),
        ({"query": "SELECT note FROM people"}, ""),
        ({"query": "SELECT 9e999"}, "cannot be written"),
        ({"query": "SELECT '}'"}, "cannot be written"),
        ({"query": "SELECT ''"}, "cannot be written"),
        (
            {"query": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) TABLE c"},
            "the query fails",
        ),
        (
            {
                "query": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
                "SELECT n FROM c"
            },
            "more than 20 rows",
        ),
        (
            {
                "query": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
                "SELECT SUM(n) FROM c"
            },
            "too much work",
        ),
        ({"question": " "}, "no question"),
        ({"query": None, "answer": ""}, "cannot be written"),
        ({"query": None, "answer": []}, "no row"),
        ({"query": None, "answer": [[1], [2, 3]]}, "different lengths"),
        ({"query": None, "answer": list(range(21))}, "more than 20 rows"),
    ],
)
def test_what_cannot_be_answered_is_refused_or_left_out(
    folder: Path, row: dict[str, Any], message: str
) -> None:
    if not message:  # a blob can be written
        assert asked(folder, ASKED | row)
        return
    with pytest.raises(UsageError, match=message) as raised:
        asked(folder, ASKED | row, max_ops=200_000)
    assert "questions.jsonl:1" in str(raised.value)
    assert "skip_unanswerable" in str(raised.value)
    kept = asked(folder, ASKED | row, ASKED, max_ops=200_000, skip_unanswerable=True)
    assert kept.tasks.task_ids("train") == ("questions.jsonl:2",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": None}, "no query, and no column 'answer'"),
        ({"query": 3}, "'query' must be str"),
        ({"query": None, "answer": {"a": 1}}, "a number, a text or a list"),
        ({"query": None, "answer": [[True]]}, "a number, a text or a list"),
        ({"query": None, "answer": [[]]}, "a number, a text or a list"),
        ({"query": None, "answer": True}, "a number, a text or a list"),
        ({"ordered": "yes"}, "'ordered' must be bool"),
        ({"hint": 3}, "'hint' must be str"),
        ({"question": None}, "'question' must be text"),
    ],
)
def test_a_malformed_row_is_named(folder: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        asked(folder, ASKED | row, skip_unanswerable=True)
    assert "questions.jsonl:1" in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (42, "42", "43"),
        ("42", "42.0", "42.5"),
        ("Ada, 3; Ivan, 4", "ivan, 4; ada, 3", "ada, 4; ivan, 3"),
        ([["Ada", 3], ["Ivan", 4]], "Ivan, 4; Ada, 3", "Ivan, 4"),
        (["Ada", "Ivan"], "Ada, Ivan", "Ada"),
        ([["Holm, Ada"]], '"holm, ada"', "Ada Holm"),
        ([[None]], "null", "0"),
    ],
)
def test_an_answer_may_be_given_itself(folder: Path, answer: Any, right: str, wrong: str) -> None:
    env = asked(folder, {"question": "Who?", "database": "a", "answer": answer})
    assert wins(env, f"\\boxed{{{right}}}")
    assert not wins(env, f"\\boxed{{{wrong}}}")


def test_texts_with_commas_large_numbers_and_small_ones_are_told_apart(folder: Path) -> None:
    query = "SELECT name, big, height FROM people WHERE height < 1"
    env = asked(folder, ASKED | {"query": query})
    assert wins(env, '\\boxed{"Holm, Ada", 9007199254740993, 0.0123}')
    assert not wins(env, '\\boxed{"Holm, Ada", 9007199254740992, 0.0123}')
    assert not wins(env, '\\boxed{"Holm, Ada", 9007199254740993, 0.01}')
    assert not wins(env, "\\boxed{Holm, Ada, 9007199254740993, 0.0123}")


@pytest.mark.parametrize(
    ("query", "ordered", "counts"),
    [
        ("SELECT name FROM people ORDER BY born DESC", None, True),
        ("SELECT name FROM people order  by\n born desc LIMIT 5;", None, True),
        ("SELECT name FROM people GROUP BY name ORDER BY COUNT(*), name", None, True),
        ("SELECT name, 'order by (' FROM people", None, False),
        ("SELECT name, RANK() OVER (ORDER BY born) FROM people", None, False),
        ("SELECT name FROM (SELECT name FROM people ORDER BY born)", None, False),
        ("SELECT name FROM people ORDER BY born DESC", False, False),
        ("SELECT name FROM people", True, True),
    ],
)
def test_the_order_of_rows_counts_where_it_was_asked_for(
    folder: Path, query: str, ordered: bool | None, counts: bool
) -> None:
    env = asked(folder, ASKED | {"query": query, "ordered": ordered})
    rows = env.tasks.get("questions.jsonl:1").metadata["rows"]
    assert wins(env, write_answer(rows))
    assert wins(env, write_answer(rows[::-1])) is not counts


def test_a_long_query_is_read_in_no_time(folder: Path) -> None:
    for piece in ("order by ", "(", "'", '"', "order  ", "''"):
        started = time.process_time()
        with pytest.raises(UsageError, match="the query fails"):
            asked(folder, ASKED | {"query": "SELECT " + piece * 50_000})
        assert time.process_time() - started < 2


def test_spider_and_bird_need_a_map_of_columns(folder: Path) -> None:
    row = {"question": "How many?", "db_id": "c", "SQL": ASKED["query"], "evidence": "Count them."}
    columns = {"database": "db_id", "query": "SQL", "hint": "evidence"}
    env = asked(folder, row, columns=columns)
    observation, _ = env.reset(seed=0)
    assert observation[-1]["content"] == "How many?\nCount them."
    assert wins(env, *env.solution(env.tasks.get("questions.jsonl:1")))


def test_databases_may_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    assert asked(tmp_path / "asked", ASKED, databases=folder)
    with pytest.raises(UsageError, match="no database 'a'"):
        asked(tmp_path / "asked", ASKED)


def test_changes_that_wait_in_a_log_are_not_overlooked(folder: Path) -> None:
    connection = sqlite3.connect(folder / "a.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("DELETE FROM people")
    connection.commit()
    with pytest.raises(UsageError, match="wal_checkpoint"):
        asked(folder, ASKED)
    connection.close()
    assert wins(asked(folder, ASKED), "\\boxed{10}")


def test_a_schema_that_is_a_trap_harms_nobody(folder: Path) -> None:
    deep = "SELECT 1 AS n" + "".join(
        f"; CREATE VIEW v{i} AS SELECT * FROM v{i - 1}, v{i - 1}" for i in range(1, 40)
    )
    make_database(
        folder / "trap.sqlite",
        f"CREATE VIEW v0 AS {deep}; CREATE TABLE t (x); INSERT INTO t VALUES (77)",
    )
    env = asked(folder, ASKED | {"database": "trap", "query": "SELECT x FROM t"})
    env.reset(seed=0)
    assert call(env, "query", sql="SELECT COUNT(*) FROM v39").startswith("Error:")
    assert len(call(env, "schema")) < 5000
    assert call(env, "query", sql="SELECT x FROM t").startswith("x\n77")


def test_a_file_that_is_cut_short_is_an_error_and_no_crash(folder: Path) -> None:
    whole = (folder / "a.sqlite").read_bytes()
    for keep in (1, 50, 100, 1000, len(whole) // 2):
        (folder / "a.sqlite").write_bytes(whole[:keep])
        with pytest.raises(UsageError):
            asked(folder, ASKED)


def test_a_damaged_file_is_an_error_and_no_crash(folder: Path) -> None:
    whole = (folder / "a.sqlite").read_bytes()
    used = [place for place, byte in enumerate(whole) if byte]
    rng = random.Random(0)
    told: list[str] = []
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.choices(used, k=rng.choice([1, 5, 50])):
            damaged[place] = rng.randrange(256)
        (folder / "a.sqlite").write_bytes(damaged)
        try:
            asked(folder, ASKED)
        except UsageError as error:
            told.append(str(error))
    assert len(told) > 20
    assert not any("\n" in message for message in told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_answer_rows": 0}, "max_answer_rows"),
        ({"max_ops": 0}, "max_ops"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_seconds": float("nan")}, "max_seconds"),
        ({"columns": {"sql": "query"}}, "not sql"),
        ({"columns": "query"}, "columns is a map"),
        ({"databases": "/nowhere"}, "no folder /nowhere"),
    ],
)
def test_wrong_arguments_are_told(folder: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(folder, ASKED, **arguments)


def test_without_a_file_the_folder_must_be_named() -> None:
    with pytest.raises(UsageError, match="databases="):
        SQLDatasetEnv(dataset="someone/questions")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1", ((1,),)),
        ("a, 2.5; b, -3", (("a", 2.5), ("b", -3))),
        ('"1", " x; ""y"""', (("1", ' x; "y"'),)),
        ('"open, b', (('"open', "b"),)),
        ('"a" b, c', (('"a" b', "c"),)),
        ("a\nb;", (("a",), ("b",))),
    ],
)
def test_an_answer_is_read_as_it_is_written(text: str, rows: tuple[Row, ...]) -> None:
    assert read_rows(text) == rows
    assert is_right(write_answer(rows), rows, True)
