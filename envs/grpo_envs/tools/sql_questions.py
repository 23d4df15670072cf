"""Questions about a database and the queries that answer them, in five levels.

Each function below draws one question of a kind. Wherever an order or a choice could tie, the
question says how: by name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grpo_envs.tools.sql_schemas import YEARS, Things, World

Rng = np.random.Generator


@dataclass(frozen=True)
class Question:
    """A question, the query that answers it, and whether the order of its rows was asked for."""

    text: str
    query: str
    ordered: bool = False


def draw_question(world: World, level: int, rng: Rng) -> Question:
    """A random question of a level, 1 to 5; whether it has an answer depends on the rows."""
    kinds = LEVELS[level - 1]
    return kinds[int(rng.integers(len(kinds)))](world, rng)


def _count_above(world: World, rng: Rng) -> Question:
    things, kind, bound = _things(world, rng)
    return Question(
        f"How many {things.table} {things.of_kind.format(kind)} are there whose {things.number} is at "
        f"least {bound}?",
        f"SELECT COUNT(*) FROM {things.table} WHERE {things.kind} = '{kind}' "
        f"AND {things.number} >= {bound}",
    )


def _names_above(world: World, rng: Rng) -> Question:
    things, kind, bound = _things(world, rng)
    return Question(
        f"Give the names of the {things.table} {things.of_kind.format(kind)} whose {things.number} is "
        f"above {bound}.",
        f"SELECT name FROM {things.table} WHERE {things.kind} = '{kind}' "
        f"AND {things.number} > {bound}",
    )


def _number_of_one(world: World, rng: Rng) -> Question:
    things, kind, _ = _things(world, rng)
    most, order = _extreme(rng)
    return Question(
        f"What is the {things.number} of the {things.one} {things.of_kind.format(kind)} with the "
        f"{most} {things.number}, and what is its name? If several share it, take the first by name.",
        f"SELECT {things.number}, name FROM {things.table} WHERE {things.kind} = '{kind}' "
        f"ORDER BY {things.number} {order}, name LIMIT 1",
    )


def _top_names(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    most, order = _extreme(rng)
    count = int(rng.integers(2, 5))
    return Question(
        f"Which {count} {things.table} have the {most} {things.number}? Give their names in that "
        f"order, beginning with the {most}; order equal ones by name.",
        f"SELECT name FROM {things.table} ORDER BY {things.number} {order}, name LIMIT {count}",
        ordered=True,
    )


def _average(world: World, rng: Rng) -> Question:
    things, kind, _ = _things(world, rng)
    return Question(
        f"What is the average {things.number} of the {things.table} {things.of_kind.format(kind)}? "
        "Round it to two decimals.",
        f"SELECT ROUND(AVG({things.number}), 2) FROM {things.table} WHERE {things.kind} = '{kind}'",
    )


def _sum_of_year(world: World, rng: Rng) -> Question:
    year, bound = _year(rng), _within(world.span, rng)
    return Question(
        f"Take the {world.events} of the year {year} with a {world.number} of at least {bound}: how "
        f"many are there, and what is the sum of their {world.number}?",
        f"SELECT COUNT(*), SUM({world.number}) FROM {world.events} "
        f"WHERE year = {year} AND {world.number} >= {bound}",
    )


def _who_did(world: World, rng: Rng) -> Question:
    left, right = world.left, world.right
    kind, year = _kind(right, rng), _year(rng)
    return Question(
        f"Which {left.table} {world.verb} {right.table} {right.of_kind.format(kind)} in {year}? "
        "Give each name once.",
        f"SELECT DISTINCT l.name FROM {_joined(world)} WHERE r.{right.kind} = '{kind}' "
        f"AND e.year = {year}",
    )


def _sum_joined(world: World, rng: Rng) -> Question:
    left, right = world.left, world.right
    one, other = _kind(left, rng), _kind(right, rng)
    return Question(
        f"What is the sum of the {world.number} of all {world.events} by {left.table} "
        f"{left.of_kind.format(one)} of {right.table} {right.of_kind.format(other)}?",
        f"SELECT SUM(e.{world.number}) FROM {_joined(world)} "
        f"WHERE l.{left.kind} = '{one}' AND r.{right.kind} = '{other}'",
    )


def _largest_event(world: World, rng: Rng) -> Question:
    left, right = world.left, world.right
    year = _year(rng)
    return Question(
        f"Of the {world.events} of the year {year}, take the three with the highest {world.number} "
        f"(of equal ones those with the lowest id first). Give for each, in that order, the name of "
        f"the {left.one} and the name of the {right.one}.",
        f"SELECT l.name, r.name FROM {_joined(world)} WHERE e.year = {year} "
        f"ORDER BY e.{world.number} DESC, e.id LIMIT 3",
        ordered=True,
    )


def _at_least(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    count = int(rng.integers(3, 12))
    return Question(
        f"Which {things.table} have at least {count} {world.events}? Give the name and the number of "
        f"{world.events} of each.",
        f"SELECT t.name, COUNT(*) FROM {world.events} e JOIN {things.table} t "
        f"ON t.id = e.{things.key} GROUP BY t.id HAVING COUNT(*) >= {count}",
    )


def _busiest(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    year, count = _year(rng), int(rng.integers(2, 4))
    return Question(
        f"Which {count} {things.table} had the largest sum of {world.number} over their "
        f"{world.events} in {year}? Give name and sum, the largest first; order equal ones by name.",
        f"SELECT t.name, SUM(e.{world.number}) AS s FROM {world.events} e JOIN {things.table} t "
        f"ON t.id = e.{things.key} WHERE e.year = {year} GROUP BY t.id "
        f"ORDER BY s DESC, t.name LIMIT {count}",
        ordered=True,
    )


def _average_per_kind(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    many = int(rng.integers(5, 20))
    return Question(
        f"For each {things.kind} of {things.table} that has at least {many} {world.events}: what is "
        f"the average {world.number} of these {world.events}, rounded to two decimals? Give "
        f"{things.kind} and average.",
        f"SELECT t.{things.kind}, ROUND(AVG(e.{world.number}), 2) FROM {world.events} e "
        f"JOIN {things.table} t ON t.id = e.{things.key} GROUP BY t.{things.kind} "
        f"HAVING COUNT(*) >= {many}",
    )


def _never(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    year = _year(rng)
    return Question(
        f"Which {things.table} have no {world.events} in the year {year}? Give their names.",
        f"SELECT name FROM {things.table} t WHERE NOT EXISTS (SELECT 1 FROM {world.events} e "
        f"WHERE e.{things.key} = t.id AND e.year = {year})",
    )


def _above_average(world: World, rng: Rng) -> Question:
    things, kind, _ = _things(world, rng)
    return Question(
        f"Give the names of the {things.table} {things.of_kind.format(kind)} whose {things.number} is "
        f"above the average of all {things.table}, in alphabetical order.",
        f"SELECT name FROM {things.table} WHERE {things.kind} = '{kind}' AND {things.number} > "
        f"(SELECT AVG({things.number}) FROM {things.table}) ORDER BY name",
        ordered=True,
    )


def _both(world: World, rng: Rng) -> Question:
    left, right = world.left, world.right
    one, other = (right.kinds[int(i)] for i in rng.permutation(len(right.kinds))[:2])
    did = (
        f"SELECT e.{left.key} FROM {world.events} e JOIN {right.table} r ON r.id = e.{right.key} "
        f"WHERE r.{right.kind} = "
    )
    return Question(
        f"How many {left.table} {world.verb} {right.table} {right.of_kind.format(one)}, but never "
        f"{right.table} {right.of_kind.format(other)}?",
        f"SELECT COUNT(*) FROM {left.table} WHERE id IN ({did}'{one}') "
        f"AND id NOT IN ({did}'{other}')",
    )


def _best_of_each(world: World, rng: Rng) -> Question:
    things, _, _ = _things(world, rng)
    return Question(
        f"For each {things.kind} of {things.table}, which {things.one} has the most {world.events}? "
        f"Leave out every {things.kind} without {world.events}; of equal ones take the first by "
        f"name. Give {things.kind} and name.",
        f"WITH c AS (SELECT t.{things.kind} AS k, t.name AS n, COUNT(*) AS m FROM {world.events} e "
        f"JOIN {things.table} t ON t.id = e.{things.key} GROUP BY t.id), "
        "o AS (SELECT k, n, ROW_NUMBER() OVER (PARTITION BY k ORDER BY m DESC, n) AS p FROM c) "
        "SELECT k, n FROM o WHERE p = 1",
    )


LEVELS: tuple[tuple[Callable[[World, Rng], Question], ...], ...] = (
    (_count_above, _names_above),
    (_number_of_one, _top_names, _average, _sum_of_year),
    (_who_did, _sum_joined, _largest_event),
    (_at_least, _busiest, _average_per_kind),
    (_never, _above_average, _both, _best_of_each),
)


def _things(world: World, rng: Rng) -> tuple[Things, str, int]:
    """One of the two tables, one of its categories, and a bound for its number."""
    things = (world.left, world.right)[int(rng.integers(2))]
    return things, _kind(things, rng), _within(things.span, rng)


def _kind(things: Things, rng: Rng) -> str:
    return things.kinds[int(rng.integers(len(things.kinds)))]


def _within(span: tuple[int, int], rng: Rng) -> int:
    """A number in the lower two thirds of a range."""
    low, high = span
    return low + int(rng.integers(1, max(2, (high - low) * 2 // 3)))


def _year(rng: Rng) -> int:
    return int(rng.integers(*YEARS))


def _extreme(rng: Rng) -> tuple[str, str]:
    return (("highest", "DESC"), ("lowest", "ASC"))[int(rng.integers(2))]


def _joined(world: World) -> str:
    left, right = world.left, world.right
    return (
        f"{world.events} e JOIN {left.table} l ON l.id = e.{left.key} "
        f"JOIN {right.table} r ON r.id = e.{right.key}"
    )
