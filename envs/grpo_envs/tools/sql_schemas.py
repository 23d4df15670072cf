"""The databases that questions are asked of: five worlds of the same shape, filled from a seed.

A world has two tables of things that have a name, and a table of events that joins them, as in
customers, products and orders. The words in which questions speak of it belong to the world.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_envs.tools.names import people, titles
from grpo_envs.tools.sql_database import Row

YEARS = (2018, 2025)
_CITIES = ("Lisbon", "Oslo", "Prague", "Turin", "Geneva", "Dublin")


@dataclass(frozen=True)
class Things:
    """A table of things that have a name.

    Attributes:
        table: its name, which is also the plural in a question.
        one: the singular.
        kind: the column of a category, and its values.
        number: the column of a whole number, and its range.
        of_kind: says in a question that things are of the category {}.
        people: whether names are those of people.
    """

    table: str
    one: str
    kind: str
    kinds: tuple[str, ...]
    number: str
    span: tuple[int, int]
    of_kind: str
    people: bool = False

    @property
    def key(self) -> str:
        """The column of events that refers to this table."""
        return f"{self.one}_id"


@dataclass(frozen=True)
class World:
    """Two tables of things and the events between them.

    Attributes:
        name: of the world.
        left: those who act.
        right: those that are acted upon.
        events: the table of events, which is also the plural in a question.
        number: the column of a whole number of an event, and its range.
        verb: what left did to right in an event, as in "ordered".
    """

    name: str
    left: Things
    right: Things
    events: str
    number: str
    span: tuple[int, int]
    verb: str

    @property
    def schema(self) -> tuple[str, ...]:
        """The CREATE TABLE statements."""
        things = [
            f"CREATE TABLE {t.table} (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, "
            f"{t.kind} TEXT NOT NULL, {t.number} INTEGER NOT NULL)"
            for t in (self.left, self.right)
        ]
        keys = ", ".join(
            f"{t.key} INTEGER NOT NULL REFERENCES {t.table}(id)" for t in (self.left, self.right)
        )
        events = (
            f"CREATE TABLE {self.events} (id INTEGER PRIMARY KEY, {keys}, "
            f"{self.number} INTEGER NOT NULL, year INTEGER NOT NULL)"
        )
        return (*things, events)

    def rows(self, seed: int) -> tuple[tuple[str, tuple[Row, ...]], ...]:
        """The rows of each table, a pure function of the seed."""
        rng = np.random.default_rng(seed)
        many_left, many_right = (int(n) for n in rng.integers((12, 10), (25, 20)))
        many = int(rng.integers(60, 140))
        left = _things(self.left, many_left, rng)
        right = _things(self.right, many_right, rng)
        # Some things have no event, so that questions about those have an answer.
        events: list[Row] = [
            (
                number,
                int(rng.integers(1, many_left)),
                int(rng.integers(1, many_right)),
                int(rng.integers(self.span[0], self.span[1] + 1)),
                int(rng.integers(*YEARS)),
            )
            for number in range(1, many + 1)
        ]
        return (
            (self.left.table, left),
            (self.right.table, right),
            (self.events, tuple(events)),
        )


def _things(things: Things, many: int, rng: np.random.Generator) -> tuple[Row, ...]:
    names = (people if things.people else titles)(rng, many)
    return tuple(
        (
            number,
            name,
            things.kinds[int(rng.integers(len(things.kinds)))],
            int(rng.integers(things.span[0], things.span[1] + 1)),
        )
        for number, name in enumerate(names, start=1)
    )


def _people(table: str, one: str) -> Things:
    return Things(table, one, "city", _CITIES, "age", (18, 80), "from {}", people=True)


WORLDS: Sequence[World] = (
    World(
        "shop",
        _people("customers", "customer"),
        Things(
            "products",
            "product",
            "category",
            ("toys", "books", "tools", "garden", "kitchen"),
            "price",
            (3, 400),
            "of the category {}",
        ),
        "orders",
        "quantity",
        (1, 12),
        "ordered",
    ),
    World(
        "school",
        _people("students", "student"),
        Things(
            "courses",
            "course",
            "subject",
            ("physics", "history", "biology", "music", "law"),
            "fee",
            (20, 900),
            "of the subject {}",
        ),
        "enrolments",
        "grade",
        (1, 100),
        "took",
    ),
    World(
        "library",
        _people("readers", "reader"),
        Things(
            "books",
            "book",
            "genre",
            ("crime", "poetry", "travel", "science", "drama"),
            "length",
            (60, 900),
            "of the genre {}",
        ),
        "loans",
        "duration",
        (1, 60),
        "borrowed",
    ),
    World(
        "clinic",
        _people("doctors", "doctor"),
        Things(
            "patients",
            "patient",
            "ward",
            ("north", "south", "east", "west"),
            "weight",
            (40, 120),
            "of the ward {}",
            people=True,
        ),
        "visits",
        "duration",
        (5, 90),
        "saw",
    ),
    World(
        "cinema",
        _people("viewers", "viewer"),
        Things(
            "films",
            "film",
            "genre",
            ("comedy", "thriller", "western", "musical", "horror"),
            "length",
            (70, 210),
            "of the genre {}",
        ),
        "reviews",
        "score",
        (1, 100),
        "reviewed",
    ),
)
