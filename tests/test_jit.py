"""Kernels are compiled, cached and installed in a running process, and nothing else has to know."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import levada
from levada import jit
from levada.kernels import checks, choose
from levada.kernels.registry import MARK

pytest.importorskip("numba")

SOURCES = Path(levada.__file__).parent
ONE = np.ones(1)


@pytest.fixture(autouse=True)
def _interpreted_again():  # type: ignore[no-untyped-def]
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


def test_machine_code_is_kept_for_the_next_process(tmp_path: Path) -> None:
    assert _run(CALL.format(options=""), tmp_path) == "1 0\n"
    assert _run(CALL.format(options=""), tmp_path) == "1 1\n"


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _run(CALL.format(options=""), tmp_path / "file") == "1 0\n"


def test_a_server_interprets_what_the_cache_does_not_hold(tmp_path: Path) -> None:
    assert _run(CALL.format(options="compiles=False"), tmp_path) == "0 0\n"
    _run(CALL.format(options=""), tmp_path)
    assert _run(CALL.format(options="compiles=False"), tmp_path) == "1 1\n"


def test_a_change_of_a_module_reaches_all_kernels_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {area: jit._digest(area) for area in ("rates", "rounds", "choose")}
    source = jit._source
    monkeypatch.setattr(jit, "_source", lambda area: source(area) + ("#" if area == "rates" else ""))
    jit._digest.cache_clear()
    after = {area: jit._digest(area) for area in before}
    jit._digest.cache_clear()
    assert [area for area in before if before[area] != after[area]] == ["rates", "rounds"], "rounds imports rates"


def test_infinite_and_undefined_ratios_are_what_ieee_754_says() -> None:
    for part, whole in ((1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (1e308, 1e-308), (np.nan, 0.0)):
        with np.errstate(all="ignore"):
            wanted = np.float64(part) / np.float64(whole)
        assert np.array_equal(choose._ratio(np.float64(part), np.float64(whole)), wanted, equal_nan=True)


def test_other_packages_call_kernels_through_their_module() -> None:
    """A name that was imported from a module would stay interpreted."""
    wrong = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parent.name == "kernels":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("levada.kernels."):
                module = importlib.import_module(node.module or "")
                wrong += [f"{path}: {name.name}" for name in node.names if hasattr(getattr(module, name.name), MARK)]
    assert wrong == []


def test_commands_of_clients_import_neither_numpy_nor_numba() -> None:
    for verb in ("submit", "ls", "logs", "explain", "cancel", "nodes"):
        script = (
            "import sys; from levada.cli.main import build; build(" + repr(verb) + "); "
            "print([name for name in ('numpy', 'numba', 'highspy', 'scipy') if name in sys.modules])"
        )
        assert _run(script, Path("/nonexistent")) == "[]\n", verb
