"""Search by BM25 over the documents of a corpus, through the optional package `bm25s`."""

import logging
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from grpo_envs.tools.search_world import Document
from grpo_gym.errors import UsageError

_WORD = re.compile(r"\w+")
LONGEST_QUERY = 300


class Index:
    """The documents by their words.

    Args:
        documents: what is searched.

    Raises:
        UsageError: `bm25s` is not installed.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._bm25 = load_bm25s().BM25()
        self._bm25.index([words(f"{d.title} {d.text}") for d in documents], show_progress=False)

    def search(self, query: str, count: int) -> list[Document]:
        """The documents that fit a query, the best first; equal ones in their order."""
        wanted = words(query[:LONGEST_QUERY])
        if not wanted:
            return []
        scores = self._bm25.get_scores(wanted)
        best = np.argsort(-scores, kind="stable")[:count]
        return [self._documents[int(i)] for i in best if scores[i] > 0]


def words(text: str) -> list[str]:
    """The words of a text, without case."""
    return [word.casefold() for word in _WORD.findall(text)]


def load_bm25s() -> Any:
    """The package `bm25s`. Raises `UsageError` when it is not installed."""
    try:
        bm25s = import_module("bm25s")
    except ImportError as error:
        raise UsageError(
            "search needs the bm25s package: pip install 'grpo-gym[search]'"
        ) from error
    # It turns its own logging up, to a line for each corpus.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s
