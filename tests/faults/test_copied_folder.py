"""A state folder that was copied, or whose database is lost or older: refused with what to do, and nothing runs twice."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.faults.site import Site, site
from tests.live.postgres import postgres
from tests.patience import WAIT_S


def refused(here: Site, *words: str) -> str:
    """The last line of a server that does not start."""
    here.start(*words)
    assert here.server is not None
    try:
        assert here.server.wait(WAIT_S) != 0
    except BaseException:
        here.kill()
        raise
    here.server = None
    return here.log.read_text().splitlines()[-1]


def running(here: Site) -> list[str]:
    """Starts a job that runs on without its server; the lines of its ledger."""
    job = here.submit("stays", ["sh", "-c", f"echo $$ >> {here.home}.starts; exec sleep 1000"])
    here.until_phase(job, "Running")
    here.until(lambda: starts(here))
    return starts(here)


def starts(here: Site) -> list[str]:
    path = Path(f"{here.home}.starts")
    return path.read_text().splitlines() if path.exists() else []


def copy(here: Site, name: str) -> Path:
    """The folder again, as `cp -a` makes it; sockets stay behind."""
    there = here.home.with_name(name)
    shutil.copytree(
        here.home,
        there,
        symlinks=True,
        ignore=lambda at, names: [each for each in names if (Path(at) / each).is_socket()],
    )
    there.chmod(0o700)
    return there


@pytest.mark.parametrize("kind", ["sqlite", "a file elsewhere", "postgres"])
def test_a_copy_does_not_act_for_the_folder_that_it_was_copied_from(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with postgres() if kind == "postgres" else nullcontext() as database:
        urls = {"sqlite": "", "a file elsewhere": f"sqlite:///{tmp_path}/levada.db"}
        url = database.url if database is not None else urls[kind]
        with site(home, words=("--store", url) if url else ()) as here:
            first = running(here.up())
            here.kill()
            said = refused(Site(copy(here, "copy")))
            assert f"is a copy of {home}" in said
            assert "--take-over" in said
            here.up()
            assert starts(here) == first, "it was started once"
            assert [job["phase"] for job in here.client.jobs()] == ["Running"]


def test_a_folder_that_was_moved_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with site(home) as here:
        here.up()
        job = here.submit("done", ["true"])
        here.until_phase(job, "Succeeded")
        here.stop()
    home.rename(tmp_path / "moved")
    with site(tmp_path / "moved") as here:
        assert here.up().phase(job) == "Succeeded"


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
def test_a_database_that_is_lost_is_not_replaced(tmp_path: Path, lose: Callable[[Path], None], old: bool) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir(mode=0o700)
    kept.mkdir()
    with site(home) as here:
        first = running(here.up())
        here.kill()
        for path in home.glob("levada.db*"):
            shutil.copy2(path, kept)
        lose(home)
        if old:
            # Folders of earlier versions do not have it.
            (home / "store.json").unlink()
        for _ in range(2):
            said = refused(here)
            assert "put back its newest copy" in said
            assert "--state" in said
        assert [run["job"] for run in here.runs()], "what runs runs on"
        _remove(home)
        for path in kept.iterdir():
            shutil.copy2(path, home)
        here.up()
        assert [job["phase"] for job in here.client.jobs()] == ["Running"]
        assert starts(here) == first


def test_an_older_copy_of_the_database_is_refused_until_somebody_says_so(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir(mode=0o700)
    with site(home) as here:
        here.up()
        before = here.submit("before", ["true"])
        here.until_phase(before, "Succeeded")
        here.stop()
        shutil.copy2(home / "levada.db", kept)
        here.up()
        after = here.submit("after", ["true"])
        here.until_phase(after, "Succeeded")
        here.stop()
        _remove(home)
        shutil.copy2(kept, home / "levada.db")
        assert "has lost turns" in (said := refused(here))
        assert f"remove {home}/store.json" in said
        (home / "store.json").unlink()
        here.up()
        assert [job["id"] for job in here.client.jobs()] == [before]
        again = here.submit("again", ["true"])
        here.until_phase(again, "Succeeded")
