"""One server for all tests of verbs; other tests leave only finished jobs in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_server import Shell, running_server
from tests.server.http_server import Served


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State folder of the server."""
    home = tmp_path_factory.mktemp("state") / "levada"
    home.mkdir()
    return home


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[Served]:
    """A server that runs jobs on this machine."""
    with running_server(home) as running:
        yield running


@pytest.fixture
def shell(
    up: Served,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """A user without settings, connected to the server of this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("LEVADA_SERVER", "LEVADA_TOKEN", "LEVADA_STATE", "LEVADA_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, up, tmp_path)
