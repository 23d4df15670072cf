"""Scores, rubrics that make one of several, and terms for form, language, repetition and length."""

from grpo_gym.rewards.formats import Pattern, Tags
from grpo_gym.rewards.rubric import Clip, Criterion, Gate, Product, Rubric
from grpo_gym.rewards.score import Score, Verifier, as_score
from grpo_gym.rewards.terms import CosineLength, Language, LinearLength, Measure, Repetition

__all__ = [
    "Clip",
    "CosineLength",
    "Criterion",
    "Gate",
    "Language",
    "LinearLength",
    "Measure",
    "Pattern",
    "Product",
    "Repetition",
    "Rubric",
    "Score",
    "Tags",
    "Verifier",
    "as_score",
]
