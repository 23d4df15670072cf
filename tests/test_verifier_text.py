"""Text verifiers: exact, normalised, and by pattern within bounded time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.verifiers.text import verify_exact, verify_regex, verify_text


def test_exact_forgives_only_spaces_at_the_ends() -> None:
    assert verify_exact(" Paris\n", "Paris").value == 1.0
    assert verify_exact("paris", "Paris").value == 0.0
    assert verify_exact("Paris.", "Paris").value == 0.0


@pytest.mark.parametrize(
    "completion", ["Paris", "paris", " PARIS. ", '"Paris"', "**Paris**", "Ｐａｒｉｓ", "Paris\n"]
)
def test_normalised_text_forgives_case_spacing_and_punctuation(completion: str) -> None:
    assert verify_text(completion, "Paris").success


@pytest.mark.parametrize("completion", ["", "?!", "Paris or Rome", "Par is", "not Paris", "Rome"])
def test_normalised_text_forgives_nothing_else(completion: str) -> None:
    assert verify_text(completion, "Paris").value == 0.0


def test_inner_spacing_is_one_space() -> None:
    assert verify_text("New\n  York", "new york").success


def test_a_reference_without_words_is_compared_exactly() -> None:
    assert verify_text("?", "?").success
    assert not verify_text("", "?").success
    assert not verify_text("!", "?").success


def test_a_pattern_matches_anywhere() -> None:
    assert verify_regex("It is 42 degrees", r"\b4\d\b").success
    assert not verify_regex("It is 52 degrees", r"\b4\d\b").success


def test_a_pattern_that_explodes_costs_its_deadline() -> None:
    verify_regex("warm", "up")
    start = time.monotonic()
    score = verify_regex("a" * 60 + "!", r"^(a+)+$", deadline_s=0.4)
    assert time.monotonic() - start < 3.0
    assert score.value == 0.0
    assert score.components["timed_out"] == 1.0
    assert verify_regex("aaa", r"^(a+)+$").success


def test_text_longer_than_a_pipe_holds_is_searched() -> None:
    assert verify_regex("é" * 300_000 + "needle", "needle$", deadline_s=10.0).success


def test_what_is_no_pattern_cannot_be_scored() -> None:
    score = verify_regex("text", "(")
    assert score.value != score.value
    assert not score.success


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_gets_a_verdict(completion: str, reference: str) -> None:
    for verify in (verify_exact, verify_text):
        assert verify(completion, reference).value in (0.0, 1.0)
        assert verify(completion, completion).success
