"""Whether two answers are the same mathematics. Runs in a worker process only: it may not return."""

from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify


@lru_cache(maxsize=256)
def parsed(answer: str) -> list[Any]:
    """What math-verify reads in a normalised answer."""
    parsed_answer: list[Any] = parse(
        rf"\boxed{{{answer}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        parsing_timeout=None,
    )
    return parsed_answer


def equivalent(answer: str, reference: str) -> bool:
    """Whether a normalised answer equals a normalised reference."""
    return bool(verify(parsed(reference), parsed(answer), timeout_seconds=None))
