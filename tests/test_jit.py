"""Compilation of kernels: installed in a running process, cached on disk, invisible to callers."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import levada
from levada import jit
from levada.kernels import checks, greedy
from levada.kernels.registry import MARK

pytest.importorskip("numba")

SOURCES = Path(levada.__file__).parent
ONE = np.ones(1)


@pytest.fixture(autouse=True)
def _uninstall_after_test():  # type: ignore[no-untyped-def]
    yield
    jit.uninstall()


def _run(script: str, cache: Path) -> str:
    env = {**os.environ, "LEVADA_KERNEL_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installing_replaces_kernels_in_place_and_can_be_undone() -> None:
    plain = checks.sane
    assert jit.install()
    assert jit.is_compiled()
    assert checks.sane is not plain
    assert checks.sane(np.ones((1, 1)), ONE, ONE, ONE)
    jit.uninstall()
    assert not jit.is_compiled()
    assert checks.sane is plain


CALL = """
import numpy as np
from levada import jit
from levada.kernels import checks
jit.install({options})
one = np.ones(1)
assert checks.sane(np.ones((1, 1)), one, one, one)
print(len(checks.sane.overloads), sum(checks.sane.stats.cache_hits.values()))
"""


def test_machine_code_is_cached_for_the_next_process(tmp_path: Path) -> None:
    assert _run(CALL.format(options=""), tmp_path) == "1 0\n"
    assert _run(CALL.format(options=""), tmp_path) == "1 1\n"


CALL_NESTED = """
import sys
import numpy as np
from levada import jit
from levada.kernels import invariants
jit.install()
ones = np.ones((9, 9), np.int64)
print(len(invariants.devices_within_whole(ones[0], ones, ones).T), "scipy.linalg" in sys.modules)
"""


def test_compiling_a_kernel_uses_cached_callees(tmp_path: Path) -> None:
    _run(CALL_NESTED, tmp_path)
    assert _run(CALL_NESTED, tmp_path) == "2 False\n"  # loading from the cache imports no compiler
    for index in tmp_path.rglob("invariants.devices_within_whole*.nbi"):
        index.unlink()
    assert _run(CALL_NESTED, tmp_path) == "2 True\n"
    assert _run(CALL_NESTED, tmp_path) == "2 False\n"


def test_without_a_writable_cache_kernels_are_compiled_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _run(CALL.format(options=""), tmp_path / "file") == "1 0\n"


def test_with_compiles_false_only_cached_kernels_are_compiled(tmp_path: Path) -> None:
    assert _run(CALL.format(options="compiles=False"), tmp_path) == "0 0\n"
    _run(CALL.format(options=""), tmp_path)
    assert _run(CALL.format(options="compiles=False"), tmp_path) == "1 1\n"


def test_a_changed_module_invalidates_the_cache_of_its_importers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("kernels.rates", "kernels.rounds", "kernels.greedy", "compat.gavel.kernels.published_round")
    before = {name: jit._digest(f"levada.{name}") for name in names}
    source = jit._source
    monkeypatch.setattr(jit, "_source", lambda name: source(name) + ("#" if name == "levada.kernels.rates" else ""))
    jit._digest.cache_clear()
    after = {name: jit._digest(f"levada.{name}") for name in names}
    jit._digest.cache_clear()
    changed = [name for name in names if before[name] != after[name]]
    # Published rounds import rounds, which import rates.
    assert changed == ["kernels.rates", "kernels.rounds", "compat.gavel.kernels.published_round"]


def test_ratios_follow_ieee_754() -> None:
    for part, whole in ((1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (1e308, 1e-308), (np.nan, 0.0)):
        with np.errstate(all="ignore"):
            expected = np.float64(part) / np.float64(whole)
        assert np.array_equal(greedy._ratio(np.float64(part), np.float64(whole)), expected, equal_nan=True)


def test_other_packages_import_kernel_modules_not_functions() -> None:
    """A kernel imported by name would stay interpreted."""
    wrong = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parent.name == "kernels":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and re.match(r"levada\.(compat\.gavel\.)?kernels\.", node.module or ""):
                module = importlib.import_module(node.module or "")
                wrong += [f"{path}: {name.name}" for name in node.names if hasattr(getattr(module, name.name), MARK)]
    assert wrong == []


def test_client_commands_import_neither_numpy_nor_numba() -> None:
    for verb in ("submit", "ls", "logs", "explain", "cancel", "nodes"):
        script = (
            "import sys; from levada.cli.main import build; build(" + repr(verb) + "); "
            "print([name for name in ('numpy', 'numba', 'highspy', 'scipy') if name in sys.modules])"
        )
        assert _run(script, Path("/nonexistent")) == "[]\n", verb
