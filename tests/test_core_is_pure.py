"""The functional core touches no clock, file, network, log, environment or global randomness.

Linters check imports; this test also sees calls of builtins and is the one place that lists what the core may import.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "levada"
CORE = ("core", "kernels", "perf", "solve", "policies", "placement", "engine")
FILES = sorted(path for package in CORE for path in (SOURCE / package).rglob("*.py"))

# fmt: off
BANNED_MODULES = frozenset({
    "asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading",
    "datetime", "sched", "time", "zoneinfo",
    "fileinput", "glob", "io", "mmap", "os", "pathlib", "pickle", "shelve", "shutil", "sqlite3", "tempfile",
    "http", "select", "selectors", "socket", "socketserver", "ssl", "urllib",
    "getpass", "logging", "platform", "syslog",
    "random", "secrets", "uuid",
})
# fmt: on
BANNED_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})
#: What the core may import from outside, beside the standard library and Levada.
THIRD_PARTY = {
    "core": {"msgspec", "numpy"},
    "kernels": {"msgspec", "numpy", "numba"},
    "perf": {"msgspec", "numpy", "scipy"},
    "solve": {"msgspec", "numpy", "numba", "scipy", "highspy"},
    "policies": {"msgspec", "numpy"},
    "placement": {"msgspec", "numpy", "scipy"},
    "engine": {"msgspec", "numpy"},
}
#: `numpy.random` is for generators that are made from a seed and passed on.
NUMPY_RANDOM = {"Generator", "PCG64", "SeedSequence", "default_rng"}


def offences(source: str, package: str) -> list[str]:
    """Every impure import or call in *source*, as `line: what`."""
    tree = ast.parse(source)
    return [f"{line}: {what}" for line, what in [*_imports(tree, package), *_calls(tree)]]


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            if root in BANNED_MODULES:
                yield node.lineno, f"imports {name}"
            elif root not in sys.stdlib_module_names and root not in THIRD_PARTY[package] | {"levada"}:
                yield node.lineno, f"imports {name}, which {package} may not"
            elif name.startswith("numpy.random.") and name.split(".")[2] not in NUMPY_RANDOM:
                yield node.lineno, f"imports {name}"


def _makes_unseeded_generator(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "default_rng" and not call.args and not call.keywords


def _calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_BUILTINS:
            yield node.lineno, f"calls {node.func.id}()"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"np.random", "numpy.random"}:
            if node.attr not in NUMPY_RANDOM:
                yield node.lineno, f"uses numpy.random.{node.attr}"
        elif isinstance(node, ast.Call) and _makes_unseeded_generator(node):
            yield node.lineno, "makes a generator without a seed"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_core_is_pure(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).parts[0]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from datetime import datetime",
        "def f():\n    import random",
        "from numpy.random import seed",
        "import numpy as np\nnp.random.shuffle([1])",
        "import numpy as np\nnp.random.default_rng()",
        "print('x')",
        "with open('x') as f: pass",
        "import pydantic",
        "import rich.table",
    ],
)
def test_impure_source_is_found(source: str) -> None:
    assert offences(source, "core")


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nrng = np.random.default_rng(7)\nrng.shuffle([1])",
        "from numpy.random import Generator",
        "import math\nfrom collections.abc import Iterable\nfrom levada.core.job import Job",
    ],
)
def test_pure_source_passes(source: str) -> None:
    assert offences(source, "core") == []
