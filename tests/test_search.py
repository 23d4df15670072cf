"""The search environment: its corpus, its questions, and answers with citations."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.tools.search import SearchEnv
from grpo_envs.tools.search_index import Index
from grpo_envs.tools.search_questions import draw_question
from grpo_envs.tools.search_world import Document, make_corpus
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import Call


class TestThreeHops(EnvContract):
    seeds = range(3)

    def make(self) -> SearchEnv:
        pytest.importorskip("bm25s")
        return SearchEnv(hops=3)


@pytest.fixture
def env() -> SearchEnv:
    pytest.importorskip("bm25s")
    found = SearchEnv()
    found.reset(seed=1)
    return found


def call(env: SearchEnv, name: str, **arguments: Any) -> str:
    observation, *_ = env.step(env.codec.render(Call(name, arguments)))
    return str(observation[0]["content"])


def answered(env: SearchEnv, action: str) -> dict[str, Any]:
    env.reset(seed=1)
    return env.step(action)[4]


# The corpus


def test_a_corpus_is_a_function_of_its_seed() -> None:
    make_corpus.cache_clear()
    first = make_corpus(7)
    make_corpus.cache_clear()
    assert make_corpus(7) == first
    assert make_corpus(8) != first


@pytest.mark.parametrize("seed", range(5))
def test_names_and_ids_are_unique_and_every_fact_is_written_down(seed: int) -> None:
    corpus = make_corpus(seed)
    names = [entity.name for entity in corpus.entities]
    assert len(set(names)) == len(names) == len({d.doc_id for d in corpus.documents})
    for entity in corpus.entities:
        document = corpus.document(entity.name)
        assert all(value in document.text for value in entity.facts.values())
        assert entity.facts.get("teacher") != entity.name


def test_ids_say_nothing_of_what_is_in_a_document() -> None:
    kinds = [[e.kind for e in make_corpus(seed).entities][:10] for seed in range(4)]
    assert all(len(set(first)) > 1 for first in kinds)
    assert len({tuple(first) for first in kinds}) == 4


# Questions


@pytest.mark.parametrize("hops", [2, 3])
def test_an_answer_takes_as_many_documents_as_hops(hops: int) -> None:
    rng = np.random.default_rng(hops)
    for seed in range(30):
        corpus = make_corpus(seed % 5)
        question = draw_question(corpus, hops, rng)
        assert len(set(question.names)) == hops
        assert question.names[0] in question.text
        chain = [corpus.entity(name) for name in question.names]
        for entity, after in zip(chain, question.names[1:], strict=False):
            assert after in entity.facts.values()
            assert after not in question.text
        assert question.answer in chain[-1].facts.values()
        for name in question.names[:-1]:
            assert question.answer not in corpus.document(name).text.split(question.names[-1])


# Search


def documents(*texts: str) -> Index:
    return Index([Document(f"d{i}", "", text) for i, text in enumerate(texts, start=1)])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("river", ["d1", "d3"]),
        ("RIVER!", ["d1", "d3"]),
        ("mayor of the river", ["d3", "d1"]),
        ("nothing", []),
        ("", []),
        ("\ud800 \x00 ?", []),
        ("river " * 100_000, ["d1", "d3"]),
    ],
)
def test_the_best_documents_come_first(query: str, found: Sequence[str]) -> None:
    pytest.importorskip("bm25s")
    index = documents("a river", "a hill and a town", "mayor near river", "some wood")
    assert [d.doc_id for d in index.search(query, 3)] == list(found)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_any_query_is_answered(query: str) -> None:
    pytest.importorskip("bm25s")
    found = documents("a river", "one two three", "ひらがな").search(query, 2)
    assert len(found) <= 2


def test_search_shows_ids_and_read_shows_the_text(env: SearchEnv) -> None:
    assert env.task is not None
    name, doc_id = env.task.metadata["names"][0], env.task.metadata["documents"][0]
    lines = call(env, "search", query=name).splitlines()
    assert len(lines) <= 5
    assert lines[0].startswith(f"[{doc_id}] {name}: ")
    text = call(env, "read", doc_id=doc_id)
    assert text.startswith(f"[{doc_id}] {name}\n")
    assert text.endswith(".")
    assert call(env, "read", doc_id=f"[{doc_id}]") == text
    assert call(env, "search", query="xyzzy").startswith("No document")
    assert call(env, "read", doc_id="d999").startswith("Error: there is no document")


# Answers


def test_the_answer_and_exactly_its_documents_win(env: SearchEnv) -> None:
    assert env.task is not None
    cites = [f"[{d}]" for d in env.task.metadata["documents"]]
    answer = env.task.answer
    info = answered(env, f"\\boxed{{{answer.upper()}}}, see {''.join(reversed(cites))}.")
    assert info["success"]
    assert info["reward_components"] == {"answer": 1.0, "recall": 1.0, "precision": 1.0}


@pytest.mark.parametrize(
    ("form", "answer", "recall", "precision"),
    [
        ("\\boxed{{{a}}}", 1.0, 0.0, 0.0),
        ("{c}", 0.0, 0.0, 0.0),
        ("{c} \\boxed{{{a}}}", 1.0, 0.0, 0.0),
        ("{a} {c}", 0.0, 0.0, 0.0),
        ("\\boxed{{x}} {c}", 0.0, 1.0, 1.0),
        ("\\boxed{{{a}}} {c} \\boxed{{x}} {c}", 0.0, 1.0, 1.0),
        ("\\boxed{{{a} or x}} {c}", 0.0, 1.0, 1.0),
        ("\\boxed{{}} {c}", 0.0, 1.0, 1.0),
        ("\\boxed{{{a}}} {c} [d9999]", 1.0, 1.0, 2 / 3),
        ("\\boxed{{{a}}} {c}{every}", 1.0, 1.0, 2 / 80),
    ],
)
def test_all_else_loses_and_the_components_show_why(
    form: str, answer: float, recall: float, precision: float
) -> None:
    pytest.importorskip("bm25s")
    env = SearchEnv(hops=2)
    env.reset(seed=1)
    assert env.task is not None
    cites = "".join(f"[{d}]" for d in env.task.metadata["documents"])
    every = "".join(f"[d{n}]" for n in range(1, 81))
    info = answered(env, form.format(a=env.task.answer, c=cites, every=every))
    assert info["success"] is False
    expected = {"answer": answer, "recall": recall, "precision": precision}
    assert info["reward_components"] == pytest.approx(expected)


def test_solutions_win_and_every_kind_of_mistake_loses() -> None:
    pytest.importorskip("bm25s")
    env = SearchEnv()
    for seed in range(20):
        env.reset(seed=seed)
        assert env.task is not None
        *looks, answer = env.solution(env.task)
        shown = "".join(str(env.step(look)[0][0]["content"]) for look in looks)
        assert env.task.answer in shown
        assert env.step(answer)[4]["success"] is True
        env.reset(seed=seed)
        (wrong,) = env.mistakes(env.task, np.random.default_rng(seed))
        assert env.step(wrong)[4]["success"] is False


@pytest.mark.parametrize("arguments", [{"hops": 1}, {"hops": 4}, {"hops": "2"}, {"results": 0}])
def test_wrong_arguments_are_told(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SearchEnv(**arguments)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UsageError, match=r"grpo-gym\[search\]"):
        SearchEnv()


def test_a_task_of_another_kind_is_refused() -> None:
    pytest.importorskip("bm25s")
    env = SearchEnv(tasks=ListTasks([Task("t", "What?", "x")]))
    with pytest.raises(UsageError, match="'t' is none of SearchEnv's"):
        env.reset(seed=1)


def test_the_package_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("bm25s")
    documents("a river").search("river", 1)
    assert not [record for record in caplog.records if record.name.startswith("bm25s")]
