"""Pages agree with the structure; functions and files have a sensible size."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SOURCES = ROOT / "src" / "levada"

#: ruff checks complexity and parameters of functions; their length is checked here.
MAX_LINES = 80
#: Longer functions. Those without a reason are to be split; remove the row then.
LONG_FUNCTIONS = {
    "live/store/migrations/versions/0001_first.py upgrade": "a migration is never edited",
}

#: A file this short belongs into its only importer, if that stays below 300 lines.
SMALL_FILE, LARGE_FILE = 50, 300
#: Short files with one importer. Those without a reason are to be merged; remove the row then.
SMALL_FILES = {
    "backends/kubernetes/ordinals.py": "one rule, tested by itself",
    "cli/panels.py": "",
    "cli/usage.py": "",
    "jobfile/batch_job.py": "one kind of job per file",
    "jobfile/jobset.py": "one kind of job per file",
    "jobfile/own_job.py": "one kind of job per file",
    "jobfile/single_pod.py": "one kind of job per file",
    "kernels/checks.py": "kernels are compiled per module",
    "server/routes/health.py": "one group of routes per file",
    "sim/protocol.py": "protocol",
    "sim/traces/philly.py": "one trace format per file",
    "sim/workloads/philly.py": "one workload per file",
}


def test_architecture_page_lists_the_layers_in_the_checked_order() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if "containers" in contract]
    checked = [re.findall(r"\w+", layer) for layer in layers]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == checked


def test_files_named_on_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:core|engine|perf|policies|live|backends)/[\w/]+\.py)`", text)
    assert named
    assert [name for name in named if not (ROOT / "src" / "levada" / name).exists()] == []


def test_tests_readme_names_every_test_folder() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.glob("*/**/test_*.py")}
    rows = re.findall(r"^\| `([\w/]+)` \|", (TESTS / "README.md").read_text(), re.MULTILINE)
    assert folders - set(rows) == set()
    assert [row for row in rows if "/" in row and not (TESTS / row).is_dir()] == []


def test_tests_readme_names_every_module_directly_in_tests() -> None:
    text = (TESTS / "README.md").read_text()
    modules = [path.name for path in TESTS.glob("*.py") if path.name not in {"__init__.py", "conftest.py"}]
    assert [name for name in modules if f"`{name}`" not in text] == []


def test_modules_named_in_tests_readme_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (TESTS / "README.md").read_text())
    assert named
    assert [name for name in named if not (TESTS / name).is_file()] == []


def test_tests_readme_names_every_marker() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    markers = [marker.split(":")[0] for marker in settings["tool"]["pytest"]["ini_options"]["markers"]]
    text = (TESTS / "README.md").read_text()
    assert [marker for marker in markers if f"| `{marker}` |" not in text] == []


def test_functions_are_short() -> None:
    lengths = {
        f"{path.relative_to(SOURCES)} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in SOURCES.rglob("*.py")
        if "kernels" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert {name: lines for name, lines in too_long.items() if name not in LONG_FUNCTIONS} == {}, "split them"
    assert LONG_FUNCTIONS.keys() - too_long.keys() == set(), "remove these rows from LONG_FUNCTIONS"


def test_short_files_with_one_importer_are_merged_into_it() -> None:
    modules = {_module(path): path for path in SOURCES.rglob("*.py")}
    lines = {module: len(path.read_text().splitlines()) for module, path in modules.items()}
    importers = defaultdict(set)
    for module, path in modules.items():
        for name in _imported(path):
            if name in modules and name != module:
                importers[name].add(module)
    small = {
        str(path.relative_to(SOURCES)): importer
        for module, path in modules.items()
        if path.name != "__init__.py" and lines[module] <= SMALL_FILE and len(importers[module]) == 1
        for importer in importers[module]
        if lines[module] + lines[importer] < LARGE_FILE
    }
    assert {file: importer for file, importer in small.items() if file not in SMALL_FILES} == {}, "merge them"
    assert SMALL_FILES.keys() - small.keys() == set(), "remove these rows from SMALL_FILES"


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> Iterator[str]:
    """The names of modules, and of names in modules, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
