"""Questions over several documents: chains of facts, each of which stands in another document."""

from dataclasses import dataclass

import numpy as np

from grpo_envs.tools.search_world import Corpus

_STEPS: dict[str, dict[str, tuple[str, str]]] = {
    "company": {
        "founder": ("the founder of {}", "person"),
        "seat": ("the town where {} has its seat", "town"),
    },
    "person": {
        "birthplace": ("the birthplace of {}", "town"),
        "teacher": ("the teacher of {}", "person"),
        "employer": ("the company that employed {}", "company"),
    },
    "town": {"mayor": ("the mayor of {}", "person")},
}
"""From each kind, the relations that lead on: their words, and the kind they lead to."""

_ENDS: dict[str, dict[str, str]] = {
    "company": {"opened": "In what year did {} open?", "product": "What does {} make?"},
    "person": {"born": "In what year was {} born?", "craft": "What is the profession of {}?"},
    "town": {
        "region": "In which region is {}?",
        "river": "On which river is {}?",
        "founded": "In what year was {} founded?",
    },
}
"""For each kind, the relations that a question can end with."""


@dataclass(frozen=True)
class Question:
    """A question over several documents.

    Attributes:
        text: the question.
        answer: a word, or a year.
        names: the entities on the way, one document each, in order.
    """

    text: str
    answer: str
    names: tuple[str, ...]


def draw_question(corpus: Corpus, hops: int, rng: np.random.Generator) -> Question:
    """A random question that needs `hops` documents, all of them different."""
    while True:
        start = corpus.entities[int(rng.integers(len(corpus.entities)))]
        entity, names, phrase = start, [start.name], start.name
        for _ in range(hops - 1):
            steps = _STEPS[entity.kind]
            relation = list(steps)[int(rng.integers(len(steps)))]
            phrase = steps[relation][0].format(phrase)
            entity = corpus.entity(entity.facts[relation])
            names.append(entity.name)
        if len(set(names)) == hops:
            break
    ends = _ENDS[entity.kind]
    relation = list(ends)[int(rng.integers(len(ends)))]
    return Question(ends[relation].format(phrase), entity.facts[relation], tuple(names))
