"""Questions over several documents of a local corpus, answered with citations."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from grpo_envs.tools.search_index import Index, load_bm25s
from grpo_envs.tools.search_questions import draw_question
from grpo_envs.tools.search_world import Corpus, make_corpus
from grpo_gym.env import check_count
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.tools import Call, ToolEnv, tool
from grpo_gym.types import Observation
from grpo_gym.verifiers.extract import BOX, last_box
from grpo_gym.verifiers.text import fold

_CITATION = re.compile(r"\[(d\d{1,4})\]")
_SNIPPET = 60
_MAX_SEED = 2**31


class SearchEnv(ToolEnv):
    r"""A question whose answer takes several documents, found by searching and reading.

    Each task has a corpus of its own, made up from the task, so that nothing can be known by heart.
    Success takes the right answer in the last box, and after it the citations of exactly the
    documents that it rests on, as in `\boxed{1904} [d12] [d7]`.

    Components: "answer", "recall" and "precision" of the citations.

    Args:
        hops: how many documents the answer takes, 2 or 3; by default either.
        results: how many documents a search shows.
        **kwargs: as in `ToolEnv`.

    Raises:
        UsageError: Other hops, `results` below 1, or `bm25s` is not installed.
    """

    max_turns = 12
    system_prompt = (
        "Answer the question from the documents. Put the final answer in \\boxed{}, then cite each "
        "document that it rests on, and no other, as in \\boxed{1904} [d12] [d7]."
    )

    def __init__(self, *, hops: int | None = None, results: int = 5, **kwargs: Any) -> None:
        if hops is not None and (not isinstance(hops, int) or hops not in (2, 3)):
            raise UsageError(f"hops must be 2 or 3, got {hops!r}")
        check_count("results", results)
        load_bm25s()
        self.hops = hops
        self.results = results
        super().__init__(**kwargs)

    @tool
    def search(self, query: str) -> str:
        """Find documents by words; shows the id, the title and the beginning of each."""
        found = _index(self._seed()).search(query, self.results)
        if not found:
            return "No document has any of these words."
        return "\n".join(f"[{d.doc_id}] {d.title}: {d.text[:_SNIPPET]}..." for d in found)

    @tool
    def read(self, doc_id: str) -> str:
        """Show a whole document, by its id such as d12."""
        for document in make_corpus(self._seed()).documents:
            if document.doc_id == doc_id.strip("[] "):
                return f"[{document.doc_id}] {document.title}\n{document.text}"
        raise ValueError("there is no document of that id")

    def default_tasks(self) -> TaskSource:
        """Endless questions, each with a corpus of its own."""
        return ProceduralTasks(lambda rng: _problem(rng, self.hops))

    def observe(self, task: Task) -> Observation:
        """The tools and the question.

        Raises:
            UsageError: The task is not one of this environment.
        """
        if not task.metadata.keys() >= {"seed", "names", "documents"}:
            raise UsageError(f"task {task.task_id!r} is none of SearchEnv's: leave tasks= away")
        return super().observe(task)

    def grade(self, task: Task, action: str) -> Score:
        """Score the boxed answer and the citations after it."""
        box = last_box(action)
        right = box is not None and fold(box) == fold(task.answer)
        cited, needed = _cited(action), set(task.metadata["documents"])
        recall = len(cited & needed) / len(needed)
        precision = len(cited & needed) / len(cited) if cited else 0.0
        success = right and cited == needed
        components = {"answer": float(right), "recall": recall, "precision": precision}
        return Score(float(success), success, components)

    def solution(self, task: Task) -> tuple[str, ...]:
        """Search and read each document on the way, then answer."""
        names, documents = task.metadata["names"], task.metadata["documents"]
        looks = [
            self.codec.render(Call(name, arguments))
            for title, doc_id in zip(names, documents, strict=True)
            for name, arguments in (("search", {"query": title}), ("read", {"doc_id": doc_id}))
        ]
        return (*looks, _write(task.answer, documents))

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """A wrong answer, or the right one without some citation or with one too many."""
        documents = list(task.metadata["documents"])
        others = [f"d{number}" for number in range(1, 50) if f"d{number}" not in documents]
        other = others[int(rng.integers(len(others)))]
        wrongs = (
            _write(f"not {task.answer}", documents),
            _write(task.answer, []),
            _write(task.answer, documents[:-1]),
            _write(task.answer, [*documents[:-1], other]),
            _write(task.answer, [*documents, other]),
        )
        return (wrongs[int(rng.integers(len(wrongs)))],)

    def _seed(self) -> int:
        if self.task is None:
            raise ValueError("there is no question yet")
        return int(self.task.metadata["seed"])


def _problem(rng: np.random.Generator, hops: int | None) -> tuple[str, str, dict[str, Any]]:
    seed = int(rng.integers(_MAX_SEED))
    corpus: Corpus = make_corpus(seed)
    question = draw_question(corpus, hops or int(rng.integers(2, 4)), rng)
    documents = tuple(corpus.document(name).doc_id for name in question.names)
    metadata = {"seed": seed, "names": question.names, "documents": documents}
    return question.text, question.answer, metadata


@lru_cache(maxsize=16)
def _index(seed: int) -> Index:
    return Index(make_corpus(seed).documents)


def _write(answer: str, documents: Sequence[str]) -> str:
    return " ".join([f"\\boxed{{{answer}}}", *(f"[{doc_id}]" for doc_id in documents)])


def _cited(action: str) -> set[str]:
    """The documents cited after the last box."""
    boxes = [match.end() for match in BOX.finditer(action)]
    return set(_CITATION.findall(action, boxes[-1])) if boxes else set()
