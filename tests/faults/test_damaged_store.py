"""Damaged state directories and databases: a one-line error with a remedy, and nothing is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levada.errors import LevadaError
from levada.live.store import Store
from levada.server.main import Setup, run
from tests.faults.faulty_disks import read_only, small_disk
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import document, live_server


async def start_error(home: Path, **fields: Any) -> str:
    """The error of a server that cannot start in *home*."""

    def ready(_url: str, _token: str) -> None:
        raise AssertionError("the server started")

    with pytest.raises(LevadaError) as caught:
        await run(home, Setup(port=0, nodes=[{"gpu": 1}], **fields), ready)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def damage_database(home: Path, statement: str, *values: object) -> None:
    """Change the database outside of the store."""
    with sqlite3.connect(home / "levada.db") as connection:
        result = connection.execute(statement, values)
        assert result.rowcount != 0
    connection.close()


@pytest.fixture
async def used(tmp_path: Path) -> Path:
    """The folder of a stopped server with one job, `train`."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    async with live_server(f"sqlite:///{home}/levada.db", FakeMachines()) as up:
        (view,) = await up.service.submissions.submit([document("train")], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await up.settle()
    return home


async def jobs_in(home: Path) -> list[str]:
    """The workloads of the jobs of a server in *home*."""
    async with live_server(f"sqlite:///{home}/levada.db", FakeMachines()) as up:
        views, _ = up.service.jobs.page(phases=None, user=None, queue=None, labels={}, after=None, limit=10)
        return [view["workload"] for view in views]


async def test_a_newer_database_schema_is_not_changed(used: Path) -> None:
    damage_database(used, "UPDATE alembic_version SET version_num = '9999'")
    assert "newer Levada" in (error := await start_error(used))
    assert "install that version again" in error
    damage_database(used, "UPDATE alembic_version SET version_num = '0001'")
    assert await jobs_in(used) == ["train"]


async def test_a_file_that_is_not_a_database_is_not_changed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "levada.db").write_bytes(b"not a database\n" * 500)
    assert "not a database; it is damaged: restore a backup" in await start_error(home)
    assert (home / "levada.db").read_bytes().startswith(b"not a database\n")


async def test_a_truncated_database_is_reported(used: Path) -> None:
    whole = (used / "levada.db").read_bytes()
    (used / "levada.db").write_bytes(whole[: len(whole) // 2])
    assert "it is damaged: restore a backup" in await start_error(used)
    (used / "levada.db").write_bytes(whole)
    assert await jobs_in(used) == ["train"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[: len(body) // 2],
        lambda body: b"",
        lambda body: bytes([body[0] ^ 255]) + body[1:],
        lambda body: body[:-3] + b"\xc1\xc1\xc1",
    ],
)
async def test_a_damaged_log_entry_stops_the_server_and_is_named(used: Path, damage: Callable[[bytes], bytes]) -> None:
    damage_database(used, "DELETE FROM snapshots")
    connection = sqlite3.connect(used / "levada.db")
    sequence, body = connection.execute("SELECT sequence, body FROM log ORDER BY sequence LIMIT 1 OFFSET 1").fetchone()
    connection.close()
    damage_database(used, "UPDATE log SET body = ? WHERE sequence = ?", damage(body), sequence)
    error = await start_error(used)
    assert f"turn {sequence}" in error
    assert "restore a backup" in error
    damage_database(used, "UPDATE log SET body = ? WHERE sequence = ?", body, sequence)
    assert await jobs_in(used) == ["train"]


async def test_a_missing_log_entry_stops_the_server(used: Path) -> None:
    damage_database(used, "DELETE FROM snapshots")
    damage_database(used, "DELETE FROM log WHERE sequence = 2")
    assert "turn 2" in await start_error(used)


async def test_damaged_snapshots_are_replaced_by_the_log(used: Path) -> None:
    damage_database(used, "UPDATE snapshots SET body = substr(body, 1, 100)")
    assert await jobs_in(used) == ["train"]


async def test_unwritable_folders_are_reported_at_start(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "8m"):
        home = disk / "home"
        home.mkdir(mode=0o700)
        database = f"sqlite:///{home}/levada.db"

        store = await Store.open(database)
        await store.close()
        with read_only(disk):
            assert "give the server write access" in await start_error(home)
            assert "name another folder with --state-dir" in await start_error(disk / "other")
            # The folder is writable, the database is not.
            assert "give the server write access" in await start_error(tmp_path / "home", store=database)


async def test_a_file_as_state_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "name another folder with --state-dir" in await start_error(tmp_path / "file")
    assert "name another folder with --state-dir" in await start_error(tmp_path / "file" / "below")


def test_an_unwritable_server_log_is_a_one_line_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "server.log").mkdir(parents=True)
    result = subprocess.run(
        [sys.executable, "-m", "levada", "up", "--state-dir", str(home), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=180,
        env={name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")},
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "server.log" in result.stderr
    assert "fault" not in result.stderr


async def test_a_file_in_place_of_the_jobs_folder_stops_the_server(used: Path) -> None:
    (used / "jobs").write_text("a file")
    assert "jobs" in await start_error(used)
    (used / "jobs").unlink()
    assert await jobs_in(used) == ["train"]
