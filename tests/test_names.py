"""Names: a public class name exists once in the source tree, and once in the tests."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Names that exist more than once in src/levada, with their modules and the reason. The package says which one is meant.
ALLOWED = {
    "Job": (
        {"core.job", "jobfile.model", "runtime.job"},
        "the value in the engine, the document, the public API inside scripts",
    ),
    "ParameterServers": ({"core.job", "jobfile.model"}, "the value in the engine and the section of the job file"),
    "Queue": ({"core.queue", "jobfile.model"}, "the value in the engine and the document"),
}


def public_classes(folder: Path) -> dict[str, set[str]]:
    """The modules below *folder* by the names of their public classes."""
    modules: dict[str, set[str]] = defaultdict(set)
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(module)
    return modules


def test_public_class_names_are_unique() -> None:
    duplicates = {name: places for name, places in public_classes(ROOT / "src" / "levada").items() if len(places) > 1}
    assert duplicates == {name: places for name, (places, _) in ALLOWED.items()}


def test_public_class_names_in_tests_are_unique() -> None:
    assert {name: places for name, places in public_classes(ROOT / "tests").items() if len(places) > 1} == {}


def test_every_allowed_duplicate_has_a_reason() -> None:
    assert [name for name, (_, reason) in ALLOWED.items() if not reason] == []
