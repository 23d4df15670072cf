"""The math verifier's verdicts."""

import pytest

from grpo_gym.verifiers.math import verify_math


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("18", "18"), ("1,234", "1234"), (r"\frac{1}{2}", "0.5"), ("x+1", "1+x")],
)
def test_equal_answers_pass(answer: str, reference: str) -> None:
    score = verify_math(rf"So \boxed{{{answer}}}.", reference)
    assert score.value == 1.0
    assert score.success
