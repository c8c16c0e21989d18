"""The engine is the only owner of its state: everything else reads queries and sends events."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What an engine and its read-only views keep to themselves.
PRIVATE = {"_state", "_table", "_plane", "_inventory", "_block"}
#: The way in for tests, and a test that looks at a policy's state.
ALLOWED = {ROOT / "tests/engine/inspect.py", ROOT / "tests/sim/solving/test_solving.py"}


def reaches_in(source: str) -> list[int]:
    """Lines in which another object's private state is read or written; one's own is one's own affair."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "twin"))
    ]


def test_nothing_outside_the_engine_reaches_into_its_state() -> None:
    files = [path for part in ("src", "tests", "bench") for path in sorted((ROOT / part).rglob("*.py"))]
    outside = [path for path in files if path not in ALLOWED and not path.is_relative_to(ROOT / "src/levada/engine")]
    found = {str(path.relative_to(ROOT)): lines for path in outside if (lines := reaches_in(path.read_text()))}
    assert len(outside) > 500
    assert not found


def test_reaching_in_is_seen() -> None:
    assert reaches_in("def f(engine):\n    return engine._state.world\n") == [2]
    assert reaches_in("class A:\n    def f(self):\n        return self._state\n") == []
