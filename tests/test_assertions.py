"""Every test states what it checks: it has an assertion, or calls a helper that is named as one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ASSERTING_CALL = re.compile(
    r"raises|warns|fail|_?assert\w*|equal_in_both_modes|step_and_compare|call_and_validate|wait_for(_pods|_condition)?"
)


def missing_assertions(source: str) -> list[str]:
    """Names of the test functions in *source* without an assertion."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [node.name for node in functions if node.name.startswith("test_") and not any(map(_asserts, ast.walk(node)))]


def _asserts(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Assert)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return ASSERTING_CALL.fullmatch(name) is not None


def test_every_test_has_an_assertion() -> None:
    missing = {
        str(path.relative_to(TESTS)): missing_assertions(path.read_text()) for path in sorted(TESTS.rglob("*.py"))
    }
    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize(
    ("body", "is_missing"),
    [
        ("run()", True),
        ("wait_until(done)", True),
        ("assert run()", False),
        ("with pytest.raises(ValueError):\n        run()", False),
        ("np.testing.assert_array_equal(a, b)", False),
    ],
)
def test_a_missing_assertion_is_detected(body: str, is_missing: bool) -> None:
    assert bool(missing_assertions(f"def test_x():\n    {body}\n")) == is_missing
