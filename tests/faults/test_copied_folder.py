"""A copied state directory, or one with a lost or older database, is rejected; nothing runs twice."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.faults.real_server import RealServer, real_server
from tests.live.postgres import postgres
from tests.timeouts import WAIT_S


def start_error(server: RealServer, *arguments: str) -> str:
    """Start a server that must fail; return the last line of its log."""
    server.start(*arguments)
    assert server.process is not None
    try:
        assert server.process.wait(WAIT_S) != 0
    except BaseException:
        server.kill()
        raise
    server.process = None
    return server.log.read_text().splitlines()[-1]


def start_job(server: RealServer) -> list[str]:
    """Start a job that survives its server; return the PIDs of its starts."""
    job = server.submit("stays", ["sh", "-c", f"echo $$ >> {server.home}.starts; exec sleep 1000"])
    server.wait_phase(job, "Running")
    server.wait_until(lambda: starts(server))
    return starts(server)


def starts(server: RealServer) -> list[str]:
    path = Path(f"{server.home}.starts")
    return path.read_text().splitlines() if path.exists() else []


def copy(server: RealServer, name: str) -> Path:
    """Copy the folder like `cp -a`, without sockets."""
    target = server.home.with_name(name)
    shutil.copytree(
        server.home,
        target,
        symlinks=True,
        ignore=lambda at, names: [name for name in names if (Path(at) / name).is_socket()],
    )
    target.chmod(0o700)
    return target


@pytest.mark.parametrize("kind", ["sqlite", "a file elsewhere", "postgres"])
def test_a_copied_state_folder_is_rejected(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with postgres() if kind == "postgres" else nullcontext() as database:
        urls = {"sqlite": "", "a file elsewhere": f"sqlite:///{tmp_path}/levada.db"}
        url = database.url if database is not None else urls[kind]
        with real_server(home, arguments=("--store", url) if url else ()) as server:
            first = start_job(server.up())
            server.kill()
            error = start_error(RealServer(copy(server, "copy")))
            assert f"is a copy of {home}" in error
            assert "--take-over" in error
            server.up()
            assert starts(server) == first, "the job was started once"
            assert [job["phase"] for job in server.client.jobs()] == ["Running"]


def test_a_moved_state_folder_works(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with real_server(home) as server:
        server.up()
        job = server.submit("done", ["true"])
        server.wait_phase(job, "Succeeded")
        server.stop()
    home.rename(tmp_path / "moved")
    with real_server(tmp_path / "moved") as server:
        assert server.up().phase(job) == "Succeeded"


def _remove(home: Path) -> None:
    for path in home.glob("levada.db*"):
        path.unlink()


def _empty(home: Path) -> None:
    _remove(home)
    (home / "levada.db").touch()


def _lose_wal(home: Path) -> None:
    (home / "levada.db-wal").unlink()
    (home / "levada.db-shm").unlink()


def _replace(home: Path) -> None:
    _remove(home)
    sqlite3.connect(home / "levada.db").execute("CREATE TABLE other (id INTEGER)")


@pytest.mark.parametrize(
    ("lose", "old"), [(_remove, False), (_empty, False), (_lose_wal, False), (_replace, False), (_remove, True)]
)
def test_a_lost_database_is_not_replaced(tmp_path: Path, lose: Callable[[Path], None], old: bool) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    home.mkdir(mode=0o700)
    backup.mkdir()
    with real_server(home) as server:
        first = start_job(server.up())
        server.kill()
        for path in home.glob("levada.db*"):
            shutil.copy2(path, backup)
        lose(home)
        if old:
            # Folders of earlier versions have no store.json.
            (home / "store.json").unlink()
        for _ in range(2):
            error = start_error(server)
            assert "restore its newest backup" in error
            assert "--state-dir" in error
        assert [run["job"] for run in server.runs()], "the job keeps running"
        _remove(home)
        for path in backup.iterdir():
            shutil.copy2(path, home)
        server.up()
        assert [job["phase"] for job in server.client.jobs()] == ["Running"]
        assert starts(server) == first


def test_an_older_copy_of_the_database_is_rejected_until_confirmed(tmp_path: Path) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    home.mkdir(mode=0o700)
    with real_server(home) as server:
        server.up()
        before = server.submit("before", ["true"])
        server.wait_phase(before, "Succeeded")
        server.stop()
        shutil.copy2(home / "levada.db", backup)
        server.up()
        after = server.submit("after", ["true"])
        server.wait_phase(after, "Succeeded")
        server.stop()
        _remove(home)
        shutil.copy2(backup, home / "levada.db")
        assert "has lost turns" in (error := start_error(server))
        assert f"remove {home}/store.json" in error
        (home / "store.json").unlink()
        server.up()
        assert [job["id"] for job in server.client.jobs()] == [before]
        again = server.submit("again", ["true"])
        server.wait_phase(again, "Succeeded")
