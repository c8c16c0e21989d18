"""Wheel and sdist: built, installed in clean environments and used, on every installed supported Python."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from levada import __version__
from levada.cli.extras import MODULES

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
#: Dependencies of the server and the simulator, which a training image must not get.
HEAVY = ("fastapi", "sqlalchemy", "highspy", "numba", "numpy", "scipy", "polars", "uvicorn")
#: Command lines that need an extra, with its name.
MISSING = (
    ("serve", "levada serve", "server"),
    ("up", "levada up", "server"),
    ("tour nothing.py", "levada tour", "server"),
    ("sim run --policy fifo --cluster v100=1 --workload gavel --jobs 1 --rate 1", "levada sim run", "sim"),
    ("sim sweep --policy fifo --cluster v100=1 --workload gavel --jobs 1 --rate 1 --out x", "levada sim sweep", "sim"),
    ("demo", "levada demo", "sim"),
    ("precompile", "levada precompile", "sim"),
)
SIMULATION = "sim run --policy max_min_fairness --cluster v100=4 --workload gavel --jobs 8 --rate 2"


def python_of(version: str) -> str:
    """An interpreter of this version; skip the test if none is installed."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for candidate in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))):
        # A version manager leaves entries on the path that cannot be executed.
        if shutil.which(candidate) and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} on this machine")


def checked_output(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a program, assert that it succeeds, and return its output."""
    # uv uses the package index of pip.
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    result = subprocess.run(command, cwd=cwd, env={**index, **os.environ}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def build(source: Path, out: Path, *targets: str) -> list[Path]:
    """Build a source tree and return the created files."""
    checked_output(
        sys.executable, "-m", "hatchling", "build", *(f"--target={target}" for target in targets), "-d", out, cwd=source
    )
    return sorted(out.iterdir())


def contents(wheel: Path) -> dict[str, str]:
    """The digests of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


class Environment:
    """A clean virtual environment."""

    def __init__(self, folder: Path, python: str) -> None:
        self.bin = folder / "bin"
        self._uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        checked_output(
            *([self._uv, "venv", "--quiet", "--python", python] if self._uv else [python, "-m", "venv"]), folder
        )

    def install(self, *requirements: str) -> None:
        """Install with the pins of the project."""
        pip: Sequence[str | Path] = [self.bin / "python", "-m", "pip", "install", "--quiet"]
        if self._uv:
            pip = [self._uv, "pip", "install", "--quiet", "--python", self.bin / "python"]
        checked_output(*pip, "--constraint", ROOT / "constraints.txt", *requirements)

    def levada(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line outside of the project, without its settings."""
        env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = [self.bin / "levada", *line.split()]
        return subprocess.run(command, cwd=self.bin, env=env, capture_output=True, text=True, check=False)


def test_modules_of_extras_are_those_that_the_extras_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"all", "dev", "docs"}
    assert set(MODULES) == extras
    assert project["optional-dependencies"]["all"] == [f"levada[{','.join(MODULES)}]"]
    assert "urls" not in project


def test_runtime_and_client_need_only_the_standard_library() -> None:
    names = "levada.runtime, levada.runtime.gavel, levada.runtime.voda, levada.sdk, levada.sdk.aio"
    # Without site-packages.
    script = f"import sys; sys.path.append({str(ROOT / 'src')!r}); import {names}; print('imported')"
    assert checked_output(sys.executable, "-I", "-S", "-c", script) == "imported\n"


def test_pins_and_hooks_name_no_hosts() -> None:
    assert "://" not in (ROOT / "constraints.txt").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repository["repo"] for repository in hooks["repos"]} == {"local"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    [path] = build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")
    return path


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    [sdist] = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [rebuilt] = build(tmp_path / f"levada-{__version__}", tmp_path / "rebuilt", "wheel")
    assert rebuilt.name == wheel.name
    assert contents(rebuilt) == contents(wheel)
    assert {name.split("/")[0] for name in contents(wheel)} == {"levada", f"levada-{__version__}.dist-info"}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_installed_package_works_and_names_missing_extras(version: str, wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", python_of(version))
    environment.install(str(wheel))
    assert environment.levada("--version").stdout == f"levada {__version__}\n"
    assert "Usage: levada submit" in environment.levada("submit --help").stdout
    installed = f"from importlib.util import find_spec; print([name for name in {HEAVY} if find_spec(name)])"
    assert checked_output(environment.bin / "python", "-I", "-c", installed) == "[]\n"
    # Runtime, client, agent and job file reader work.
    parts = "levada.runtime, levada.sdk, levada.sdk.aio, levada.backends.local.agent, levada.jobfile.load, websockets.asyncio.client"
    checked_output(environment.bin / "python", "-I", "-W", "error", "-c", f"import {parts}")
    for line, what, extra in MISSING:
        result = environment.levada(line)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"{what} needs the extra '{extra}': pip install 'levada[{extra}]'\n"

    environment.install(f"{wheel}[server,sim]")
    simulated = environment.levada(SIMULATION)
    assert (simulated.returncode, simulated.stderr.count("Traceback")) == (0, 0), simulated.stderr
    assert "8 finished" in simulated.stdout
    sweep = tmp_path / "sweep"
    swept = environment.levada(f"{SIMULATION.replace('run', 'sweep')} --out {sweep}")
    assert swept.returncode == 0, swept.stderr
    drawn = environment.levada(f"sim plot jct {sweep} --out {tmp_path / 'jct.png'}")
    assert (drawn.returncode, drawn.stderr) == (2, "a figure needs the extra 'plot': pip install 'levada[plot]'\n")
    store = environment.levada(f"serve --state {tmp_path / 'state'} --store postgresql://localhost/levada --port 0")
    assert store.stderr.splitlines()[-1] == "PostgreSQL needs the extra 'postgres': pip install 'levada[postgres]'"
