"""Whatever is wrong with a server's folder or database: one line that says what to do, and nothing is lost."""

from __future__ import annotations

import asyncio
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
from tests.faults.disks import read_only, small_disk
from tests.live.house import document, house
from tests.live.rehearsal import Stage


def serve(home: Path, **fields: Any) -> str:
    """What a server that cannot start in *home* says."""

    def ready(_url: str, _token: str) -> None:
        raise AssertionError("it started")

    with pytest.raises(LevadaError) as told:
        asyncio.run(run(home, Setup(port=0, nodes=[{"gpu": 1}], **fields), ready))
    assert "\n" not in str(told.value)
    return str(told.value)


def spoil(home: Path, statement: str, *values: object) -> None:
    """Changes the database behind everybody's back."""
    with sqlite3.connect(home / "levada.db") as connection:
        done = connection.execute(statement, values)
        assert done.rowcount != 0
    connection.close()


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """The folder of a server that has a job, and is down."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)

    async def story() -> None:
        async with house(f"sqlite:///{home}/levada.db", Stage()) as up:
            (view,) = await up.service.submit([document("kept")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()

    asyncio.run(story())
    return home


def jobs_in(home: Path) -> list[str]:
    """The workloads that a server in *home* knows."""

    async def story() -> list[str]:
        async with house(f"sqlite:///{home}/levada.db", Stage()) as up:
            found, _ = up.service.jobs(phases=None, user=None, queue=None, labels={}, after=None, limit=10)
            return [view["workload"] for view in found]

    return asyncio.run(story())


def test_a_newer_shape_of_the_database_is_left_alone(used: Path) -> None:
    spoil(used, "UPDATE alembic_version SET version_num = '9999'")
    assert "newer Levada" in (said := serve(used))
    assert "install that version again" in said
    spoil(used, "UPDATE alembic_version SET version_num = '0001'")
    assert jobs_in(used) == ["kept"]


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "levada.db").write_bytes(b"a letter to my aunt\n" * 500)
    assert "not a database; it is damaged: put back a copy of it" in serve(home)
    assert (home / "levada.db").read_bytes().startswith(b"a letter to my aunt\n")


def test_a_database_cut_short_is_told_of(used: Path) -> None:
    whole = (used / "levada.db").read_bytes()
    (used / "levada.db").write_bytes(whole[: len(whole) // 2])
    assert "it is damaged: put back a copy of it" in serve(used)
    (used / "levada.db").write_bytes(whole)
    assert jobs_in(used) == ["kept"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[: len(body) // 2],
        lambda body: b"",
        lambda body: bytes([body[0] ^ 255]) + body[1:],
        lambda body: body[:-3] + b"\xc1\xc1\xc1",
    ],
)
def test_a_damaged_row_of_the_log_stops_the_server_and_says_which(used: Path, damage: Callable[[bytes], bytes]) -> None:
    spoil(used, "DELETE FROM snapshots")
    connection = sqlite3.connect(used / "levada.db")
    sequence, body = connection.execute("SELECT sequence, body FROM log ORDER BY sequence LIMIT 1 OFFSET 1").fetchone()
    connection.close()
    spoil(used, "UPDATE log SET body = ? WHERE sequence = ?", damage(body), sequence)
    said = serve(used)
    assert f"turn {sequence}" in said
    assert "put back a copy" in said
    spoil(used, "UPDATE log SET body = ? WHERE sequence = ?", body, sequence)
    assert jobs_in(used) == ["kept"]


def test_a_row_that_is_missing_from_the_log_stops_the_server(used: Path) -> None:
    spoil(used, "DELETE FROM snapshots")
    spoil(used, "DELETE FROM log WHERE sequence = 2")
    assert "turn 2" in serve(used)


def test_snapshots_that_are_damaged_cost_only_time(used: Path) -> None:
    spoil(used, "UPDATE snapshots SET body = substr(body, 1, 100)")
    assert jobs_in(used) == ["kept"]


def test_folders_that_cannot_be_written_to_are_told_of_at_once(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "8m"):
        home = disk / "home"
        home.mkdir(mode=0o700)
        database = f"sqlite:///{home}/levada.db"

        async def first() -> None:
            store = await Store.open(database)
            await store.close()

        asyncio.run(first())
        with read_only(disk):
            assert "let the server write there" in serve(home)
            assert "name another folder with --state" in serve(disk / "other")
            # The folder can be written to, the database cannot.
            assert "let the server write there" in serve(tmp_path / "home", store=database)


def test_what_is_no_folder_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "name another folder with --state" in serve(tmp_path / "file")
    assert "name another folder with --state" in serve(tmp_path / "file" / "below")


def test_up_says_in_one_line_why_it_cannot_write_its_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "server.log").mkdir(parents=True)
    told = subprocess.run(
        [sys.executable, "-m", "levada", "up", "--state", str(home), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=180,
        env={name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")},
    )
    assert told.returncode == 1
    assert len(told.stderr.splitlines()) == 1
    assert "server.log" in told.stderr
    assert "fault" not in told.stderr


def test_jobs_whose_folder_cannot_be_made_say_so_and_wait(used: Path) -> None:
    (used / "jobs").write_text("in the way")
    assert "jobs" in serve(used)
    (used / "jobs").unlink()
    assert jobs_in(used) == ["kept"]
