"""A small made-up world, written down as documents that each tell of one person, company or town.

Every fact stands in one document only, so the documents that an answer rests on are determined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from grpo_envs.tools.names import pairs, people, titles

_TOWN_BEGINNINGS = """
Ash Birch Black Clear Cold Deep East Elm Fair Fern Gray Green High Lake Long Marsh North Oak Red
River South Stone West White
"""
_TOWN_ENDINGS = (
    "bridge brook bury dale field ford gate ham haven hill mouth port stead ton wick wood"
)
_REGIONS = (
    "Alvania Borland Castria Dorvale Estmark Fenwold Gorania Halden Islemark Jarland Kelmar Lorne"
)
_RIVERS = "Arl Bree Cald Dove Esk Fal Garn Hodder Isk Lune Mere Nidd Orr Pell Rye Sabel Tamble Ure"
_COMPANIES = "Works Foundry Press Mills Shipping Optics Bakery Motors"
_TRADES = "clocks paper bicycles glass maps engines tea boats"
_CRAFTS = "painter engineer botanist composer surgeon printer architect chemist"

TOWNS, PERSONS, FIRMS = 16, 40, 24


@dataclass(frozen=True)
class Document:
    """A document of the corpus.

    Attributes:
        doc_id: as in "d17"; says nothing of what is in it.
        title: the name of the one that it tells of.
        text: a few sentences.
    """

    doc_id: str
    title: str
    text: str


@dataclass(frozen=True)
class Entity:
    """One that a document tells of.

    Attributes:
        kind: "town", "person" or "company".
        name: which nobody else has.
        facts: what is said of it, by relation: a value, or the name of another one.
    """

    kind: str
    name: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Corpus:
    """The documents in the order of their ids, and the entity behind each."""

    documents: tuple[Document, ...]
    entities: tuple[Entity, ...]

    def document(self, name: str) -> Document:
        """The document about the one of that name."""
        return next(d for d in self.documents if d.title == name)

    def entity(self, name: str) -> Entity:
        """The one of that name."""
        return next(e for e in self.entities if e.name == name)

    def of_kind(self, kind: str) -> list[Entity]:
        """All of a kind."""
        return [e for e in self.entities if e.kind == kind]


@lru_cache(maxsize=64)
def make_corpus(seed: int) -> Corpus:
    """The corpus of a seed, and of nothing else."""
    rng = np.random.default_rng(seed)
    towns = pairs(rng, TOWNS, _TOWN_BEGINNINGS.split(), _TOWN_ENDINGS.split(), joint="")
    persons = people(rng, PERSONS)
    firms = [f"{title} {_pick(_COMPANIES.split(), rng)}" for title in titles(rng, FIRMS)]
    entities = [
        *(_town(name, persons, rng) for name in towns),
        *(_person(name, towns, firms, persons, rng) for name in persons),
        *(_company(name, towns, persons, rng) for name in firms),
    ]
    order = [entities[int(i)] for i in rng.permutation(len(entities))]
    documents = tuple(
        Document(f"d{number}", entity.name, _text(entity, rng))
        for number, entity in enumerate(order, start=1)
    )
    return Corpus(documents, tuple(order))


def _town(name: str, persons: Sequence[str], rng: np.random.Generator) -> Entity:
    facts = {
        "region": _pick(_REGIONS.split(), rng),
        "river": _pick(_RIVERS.split(), rng),
        "mayor": _pick(persons, rng),
        "founded": str(int(rng.integers(900, 1700))),
    }
    return Entity("town", name, facts)


def _person(
    name: str,
    towns: Sequence[str],
    firms: Sequence[str],
    persons: Sequence[str],
    rng: np.random.Generator,
) -> Entity:
    facts = {
        "birthplace": _pick(towns, rng),
        "born": str(int(rng.integers(1850, 1960))),
        "craft": _pick(_CRAFTS.split(), rng),
        "teacher": _pick([other for other in persons if other != name], rng),
        "employer": _pick(firms, rng),
    }
    return Entity("person", name, facts)


def _company(
    name: str, towns: Sequence[str], persons: Sequence[str], rng: np.random.Generator
) -> Entity:
    facts = {
        "seat": _pick(towns, rng),
        "founder": _pick(persons, rng),
        "opened": str(int(rng.integers(1880, 2000))),
        "product": _pick(_TRADES.split(), rng),
    }
    return Entity("company", name, facts)


_SENTENCES = {
    "region": ("{n} is a town in the region of {v}.", "The town of {n} belongs to {v}."),
    "river": ("It lies on the river {v}.", "The river {v} runs through it."),
    "mayor": ("Its mayor is {v}.", "The town is governed by mayor {v}."),
    "founded": ("It was founded in {v}.", "Its first houses were built in {v}."),
    "birthplace": ("{n} was born in {v}.", "{n} comes from {v}."),
    "born": ("The year of birth is {v}.", "Parish books give {v} as the year of birth."),
    "craft": ("The world knows a gifted {v}.", "By profession a {v}."),
    "teacher": ("The teacher of {n} was {v}.", "{n} was taught by {v}."),
    "employer": ("A post at {v} followed.", "Later years were spent working for {v}."),
    "seat": ("{n} has its seat in {v}.", "The head office of {n} stands in {v}."),
    "founder": ("It was founded by {v}.", "{v} founded the company."),
    "opened": ("It opened in {v}.", "Business began in {v}."),
    "product": ("It makes {v}.", "It is known for its {v}."),
}


def _text(entity: Entity, rng: np.random.Generator) -> str:
    return " ".join(
        _pick(_SENTENCES[relation], rng).format(n=entity.name, v=value)
        for relation, value in entity.facts.items()
    )


def _pick(items: Sequence[str], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]
