"""Only the engine accesses its state: other code uses queries and events."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Private attributes of an engine and of its read-only views.
PRIVATE = {"_state", "_table", "_plane", "_inventory", "_block"}
#: The access for tests, and a test of a policy's state.
ALLOWED = {ROOT / "tests/engine/engine_state.py", ROOT / "tests/sim/solver_bench/test_solver_bench.py"}


def reaches_in(source: str) -> list[int]:
    """Lines that access the private state of another object than `self`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "twin"))
    ]


def test_no_module_outside_the_engine_uses_its_state() -> None:
    files = [path for part in ("src", "tests", "bench") for path in sorted((ROOT / part).rglob("*.py"))]
    outside = [path for path in files if path not in ALLOWED and not path.is_relative_to(ROOT / "src/levada/engine")]
    violations = {str(path.relative_to(ROOT)): lines for path in outside if (lines := reaches_in(path.read_text()))}
    assert len(outside) > 500
    assert not violations


def test_the_check_detects_access_to_the_state() -> None:
    assert reaches_in("def f(engine):\n    return engine._state.world\n") == [2]
    assert reaches_in("class A:\n    def f(self):\n        return self._state\n") == []
