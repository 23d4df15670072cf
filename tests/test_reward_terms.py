"""Terms of a reward: form, language, repetition, length."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym.errors import UsageError
from grpo_gym.rewards import (
    CosineLength,
    Language,
    LinearLength,
    Pattern,
    Repetition,
    Score,
    Tags,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>hm</think>5", "5"),
        ("  <think>\n</think>\n\n 5 \n", "5"),
        ("<think>a < b</think> \\boxed{5}", "\\boxed{5}"),
        ("5", None),
        ("", None),
        ("<think>hm</think>", None),
        ("<think>hm</think>  ", None),
        ("<think>hm 5", None),
        ("hm</think>5", None),
        ("so <think>hm</think>5", None),
        ("</think>hm<think>5", None),
        ("<think>hm</think><think>hm</think>5", None),
        ("<think><think>hm</think>5", None),
        ("<THINK>hm</THINK>5", None),
    ],
)
def test_thinking_comes_before_the_answer(text: str, answer: str | None) -> None:
    assert Tags().answer(text) == answer
    assert Tags()(text) == float(answer is not None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>hm</think>\n<answer> 5 </answer>", "5"),
        ("<think></think><answer></answer>", ""),
        ("<think>hm</think>5<answer>5</answer>", None),
        ("<think>hm</think><answer>5</answer> right?", None),
        ("<answer>5</answer><think>hm</think>", None),
        ("<think>hm<answer>5</think></answer>", None),
        ("<answer>5</answer>", None),
    ],
)
def test_the_answer_may_have_its_own_tags(text: str, answer: str | None) -> None:
    assert Tags(("think", "answer"), rest=False).answer(text) == answer


@given(st.text())
def test_what_is_written_in_the_form_is_of_the_form(text: str) -> None:
    answer = text.replace("<", "").strip() or "5"
    for tags in (Tags(), Tags(("plan", "think")), Tags(("think", "answer"), rest=False)):
        assert tags(tags.write(answer)) == 1.0
        assert tags.answer(tags.write(answer)) == answer


def test_a_pattern_matches_the_whole_text() -> None:
    form = Pattern(r"\d+\..*")
    assert form("1. one\ntwo ") == 1.0
    assert form("so 1. one") == 0.0


@pytest.mark.parametrize(
    ("scripts", "text", "share"),
    [
        (("LATIN",), "Vingt-et-une fenêtres, ß! 42", 1.0),
        (("LATIN",), "ab бв", 0.5),
        (("CYRILLIC",), "ab бв", 0.5),
        (("LATIN", "CYRILLIC"), "ab бв", 1.0),
        (("CJK", "HIRAGANA"), "日本の", 1.0),
        (("LATIN",), "日本の", 0.0),
        (("LATIN",), "ＡＢ", 1.0),
        (("LATIN",), "1 + 1 = 2 🙂 \ud800", 1.0),
        (("LATIN",), "", 1.0),
    ],
)
def test_language_is_the_share_of_letters(
    scripts: tuple[str, ...], text: str, share: float
) -> None:
    assert Language(scripts)(text) == share


@pytest.mark.parametrize(
    ("term", "text", "share"),
    [
        (Repetition(2), "a b c d", 0.0),
        (Repetition(2), "a b a b", pytest.approx(1 / 3)),
        (Repetition(1), "a A a a", 0.75),
        (Repetition(4), "a b c", 0.0),
        (Repetition(4), "", 0.0),
        (Repetition(2, characters=True), "日日日", 0.5),
    ],
)
def test_repetition_is_the_share_of_pieces_seen_before(
    term: Repetition, text: str, share: float
) -> None:
    assert term(text) == share


@given(st.text())
def test_terms_stay_within_their_range(text: str) -> None:
    for term in (Tags(), Language(), Repetition(1), LinearLength(2, 5), Pattern(".*a")):
        assert 0.0 <= term(text) <= 1.0


def test_linear_length_falls_from_free_to_limit() -> None:
    term = LinearLength(2, 6)
    assert [term("x" * n) for n in (0, 2, 3, 5, 6, 99)] == [1.0, 1.0, 0.75, 0.25, 0.0, 0.0]
    assert LinearLength(2, 6, measure=lambda text: len(text.split()))("a b c d") == 0.5


def right(completion: str, reference: str) -> Score:
    return Score(1.0, reference in completion, {"found": 1.0})


def test_cosine_length_prefers_short_right_and_long_wrong_answers() -> None:
    term = CosineLength(right, limit=10, right=(2.0, 1.0), wrong=(-10.0, 0.0), over=-20.0)
    assert term("5", "5").value == pytest.approx(1 + (1 + math.cos(math.pi / 10)) / 2)
    assert term("5" * 10, "5").value == pytest.approx(1.0)
    assert term("", "5").value == pytest.approx(-10.0)
    assert term("x" * 5, "5").value == pytest.approx(-5.0)
    assert term("x" * 10, "5").value == pytest.approx(0.0)
    assert term("5" * 11, "5") == Score(-20.0, False, {"found": 1.0, "length": 11.0})
    assert term("5", "5").success


def test_cosine_length_cannot_score_what_cannot_be_scored() -> None:
    assert math.isnan(CosineLength(lambda *_: math.nan, limit=2)("long text", "").value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pattern("("), "not a regular expression"),
        (lambda: Tags(()), "different names"),
        (lambda: Tags(("a", "a")), "different names"),
        (lambda: Language(()), "empty"),
        (lambda: Language(("LATN",)), "nearest: LATIN"),
        (lambda: Repetition(0), "ngram"),
        (lambda: LinearLength(3, 3), "free < limit"),
        (lambda: CosineLength(right, 0), "limit"),
    ],
)
def test_senseless_terms_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
