"""The math verifier's verdicts: equal answers pass, and nothing else does."""

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.verifiers.equivalence import equivalent
from grpo_gym.verifiers.extract import MAX_TAIL, extract_answer
from grpo_gym.verifiers.math import fast_verdict, verify_math
from grpo_gym.verifiers.normalise import normalise
from tests.verifier_cases import DIFFERENT, EQUAL

POWER_TOWER = r"\boxed{\dfrac{5^{5^{5^{5^5}}-4}-5}{16}}"


def boxed(answer: str) -> str:
    return rf"We compute, and so \boxed{{{answer}}}."


@pytest.mark.parametrize(("answer", "reference"), EQUAL)
def test_equal_answers_pass(answer: str, reference: str) -> None:
    score = verify_math(boxed(answer), reference)
    assert score.value == 1.0
    assert score.success
    assert score.components == {"correct": 1.0, "answered": 1.0, "timed_out": 0.0}


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_different_answers_fail(answer: str, reference: str) -> None:
    score = verify_math(boxed(answer), reference)
    assert score.value == 0.0
    assert not score.success


@pytest.mark.parametrize("reference", sorted({reference for _, reference in EQUAL}))
def test_the_reference_itself_passes(reference: str) -> None:
    assert verify_math(boxed(reference), reference).value == 1.0


@pytest.mark.parametrize(("answer", "reference"), EQUAL + DIFFERENT)
def test_the_fast_path_never_contradicts_the_full_check(answer: str, reference: str) -> None:
    left, right = normalise(answer), normalise(reference)
    fast = fast_verdict(left, right)
    if left and fast is not None and len(left) < 500:
        assert fast == equivalent(left, right)


@pytest.mark.parametrize("answer", ["1+.x", ".", "..5", r"\sqrt", "x^", "|", "5_", r"\log_", "(,)"])
def test_the_full_check_refuses_fragments_without_an_exception(answer: str) -> None:
    assert not equivalent(normalise(answer), "x+1")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 5$", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{5} and then \boxed{", ""),
        (r"\boxed{5} put it in \boxed{}", ""),
        ("so it is 5\n#### 18", "18"),
        ("#### 18.", "18"),
        ("The answer is 7.", "7"),
        ("The final answer is: **7**", "7**"),
        ("Answer: 3.5", "3.5"),
        ("The answer is 1. No, the answer is 2. I hope", "2"),
        (r"The answer is 3, that is \boxed{4}", "4"),
        ("just 5", None),
        ("", None),
    ],
)
def test_the_last_box_or_else_the_last_mark_is_the_answer(
    completion: str, answer: str | None
) -> None:
    assert extract_answer(completion) == answer


def test_an_answer_outside_a_box_can_be_refused() -> None:
    assert verify_math("The answer is 7.", "7").value == 1.0
    score = verify_math("The answer is 7.", "7", require_boxed=True)
    assert score.value == 0.0
    assert score.components["answered"] == 0.0


def test_a_reference_may_be_a_whole_solution() -> None:
    assert verify_math(boxed("72"), "Natalia sold 48+24 = 72 clips.\n#### 72").value == 1.0
    assert verify_math(boxed("72"), r"Hence \boxed{72}, as it is not 71.").value == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "7",
        "I do not know.",
        "What is 3 + 4? Put the final answer in \\boxed{}.",
        "1 2 3 4 5 6 7 8 9",
        "The answer is 1, 2, 3, 4, 5, 6 or 7.",
        "The answer is not 7.",
        "the answer is 7 or 8",
        r"\boxed{7} \boxed{8}",
        r"\boxed{8} \text{ or } \boxed{7, 8}",
        r"\boxed{7",
        r"\boxed{7}" + "x" * MAX_TAIL,
        r"\boxed{7" + " " * 3000 + "}",
        r"\boxed{7" + " " * 3000 + "8}",
    ],
)
def test_hacks_fail(completion: str) -> None:
    assert verify_math(completion, "7").value == 0.0


def test_a_power_tower_is_settled_within_its_deadline() -> None:
    verify_math(boxed("x+1"), "1+x")
    start = time.monotonic()
    assert verify_math(POWER_TOWER, "5", deadline_s=2.0).value == 0.0
    assert time.monotonic() - start < 4.0
    assert verify_math(POWER_TOWER, POWER_TOWER).value == 1.0


NASTY = [
    "\\frac{" * 400,
    "^" * 2000,
    "x^" * 900 + "x",
    "[(" * 900,
    "\\text{" * 300,
    "\\text{a} " * 240,
    "\\text{" + "a" * 1900 + "1!}",
    "\\text{" + "1," * 900 + "a!}",
    "\x01" * 1999,
    "1," * 900,
    "1 " * 900,
    "a b " * 450,
    "{,}" * 600,
    "1{,}" * 400,
    "(1" * 600,
    "½" * 1900,
    "√" * 1900,
    "⁵" * 1900,
    "\\left(" * 300,
    "$" * 1999,
    "**" * 999,
    "5" * 1999,
    "0." + "0" * 1900 + "1",
    "." * 1999,
    "1e9999",
    "-" * 1999,
    "5" + "!" * 1900,
    "\\pm" * 600,
    "=" * 1999,
    "x=" * 900,
    "\\cup" * 400,
    "\\begin{pmatrix}" * 100,
    "\ud800" * 1999,
    "\x00" * 1999,
    "\u202e" * 1999,
    "\\" * 1999,
    "|" * 1999,
    "5 " + "per " * 400,
]


@pytest.mark.parametrize("answer", NASTY)
def test_nasty_answers_are_wrong_and_cheap_in_this_process(answer: str) -> None:
    start = time.process_time()
    assert verify_math(boxed(answer), "7", deadline_s=1.0).value == 0.0
    assert verify_math(boxed("7"), answer, deadline_s=1.0).value == 0.0
    assert time.process_time() - start < 0.5


def test_a_long_completion_is_read_quickly() -> None:
    start = time.process_time()
    for junk in ("\\boxed{", "\\boxed{}", "{", "answer is ", "#### ", "\\boxed{{", "\\"):
        verify_math(junk * (1_000_000 // len(junk)), "7")
    assert time.process_time() - start < 2.0


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_gets_a_verdict(completion: str, reference: str) -> None:
    for text in (completion, boxed(completion)):
        score = verify_math(text, reference)
        assert score.value in (0.0, 1.0)
        assert score.success == (score.value == 1.0)


COMMANDS = (
    *(r"\frac", r"\sqrt", r"\pi", r"\text{", r"\le", r"\cup", r"\pm", r"\{", r"\}", r"\infty"),
    *(r"\sin", r"\log", r"\circ", r"\begin{pmatrix}", "\\\\", "12"),
)
LATEX = st.lists(
    st.sampled_from([*"0123456789xyei+-*/^_(){}[]|,.=<>!%:' $", *COMMANDS]), max_size=14
).map("".join)


@settings(max_examples=300, deadline=None)
@given(LATEX, LATEX)
def test_any_latex_gets_a_verdict(answer: str, reference: str) -> None:
    score = verify_math(boxed(answer), reference, deadline_s=5.0)
    assert score.value in (0.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_equal_exactly_when_they_are(left: Fraction, right: Fraction) -> None:
    answer = rf"\frac{{{left.numerator}}}{{{left.denominator}}}"
    assert verify_math(boxed(answer), f"{right.numerator}/{right.denominator}").success == (
        left == right
    )
    assert verify_math(boxed(answer), f"{left.numerator}/{left.denominator}").success


@settings(max_examples=100, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=-10, max_value=10))
def test_a_change_in_the_last_digit_is_a_different_number(value: Decimal) -> None:
    text = f"{value:f}"
    assert verify_math(boxed(text), text).success
    assert not verify_math(boxed(text), f"{value + Decimal('0.00000001'):f}").success


def test_a_score_is_never_nan_while_workers_start() -> None:
    assert not math.isnan(verify_math(boxed("x"), "y").value)


INTEGERS = st.integers(-(10**18) + 1, 10**18 - 1) | st.integers(-20, 20)


@settings(max_examples=300, deadline=None)
@given(INTEGERS, INTEGERS, st.booleans(), st.integers(0, 3))
def test_whole_numbers_are_compared_as_the_slower_way_compares_them(
    left: int, right: int, same: bool, zeros: int
) -> None:
    """The shortest way never contradicts the one through normal forms."""
    right = left if same else right
    answer = f"{'-' * (left < 0)}{'0' * zeros}{abs(left)}"[:18]
    slower = fast_verdict(normalise(answer), normalise(str(right)))
    assert slower is not None
    assert verify_math(boxed(answer), str(right)).success == slower == (int(answer) == right)
