"""A database that goes away while a server runs: nothing new is taken, what runs runs on, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from levada.errors import LevadaError
from tests.faults.commits import commit_cutter
from tests.faults.site import Site, document, site
from tests.live.postgres import Postgres, postgres
from tests.patience import WAIT_S


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as made:
        yield made


@pytest.fixture
def database(server: Postgres) -> Iterator[Postgres]:
    yield server
    if not server.is_up:
        server.start()


def jobs_named(here: Site, name: str) -> list[str]:
    return [job["id"] for job in here.client.jobs() if job["workload"] == name]


def test_a_postgresql_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path, database: Postgres) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with site(home, words=("--store", database.fresh())) as here:
        here.up()
        stays = here.submit("stays", ["sleep", "1000"])
        ends = here.submit("ends", ["sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.1; done; exit 3"])
        for job in (stays, ends):
            here.until_phase(job, "Running")
        (shim,) = [run["shim"] for run in here.runs() if run["job"] == stays]
        database.stop()
        # Refused in one line that says what to do, and looking still works.
        with pytest.raises(LevadaError, match="is it up"):
            here.client.submit(document("refused", ["true"]))
        assert here.phase(stays) == "Running"
        # What ends meanwhile is told when it can be written down.
        (tmp_path / "go").touch()
        here.until(lambda: (home / "jobs" / ends / "workers" / "g1-0" / "exit.json").exists())
        database.start()
        here.until(lambda: here.client.ready() == "")
        assert here.until_phase(ends, "Failed")["exit_code"] == 3
        assert here.until_phase(here.submit("after", ["true"]), "Succeeded")["exit_code"] == 0
        assert [run["shim"] for run in here.runs() if run["job"] == stays] == [shim], "it ran on"


def test_a_submission_that_was_refused_never_happens(tmp_path: Path, database: Postgres) -> None:
    home, starts = tmp_path / "home", tmp_path / "starts"
    home.mkdir()
    command = ["sh", "-c", f"echo started >> {starts}"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document("refused", command)))
    words = [sys.executable, "-m", "levada", "submit", "--state", str(home), "-f", str(file)]
    with site(home, words=("--store", database.fresh())) as here:
        here.up()
        stays = here.submit("stays", ["sleep", "1000"])
        here.until_phase(stays, "Running")
        database.stop()
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 1
        assert "nothing of it was done" in done.stderr
        # Nor is a job cancelled later whose user was told that it is not.
        with pytest.raises(LevadaError, match="is it up"):
            here.client.cancel(stays)
        assert here.phase(stays) == "Running"
        database.start()
        here.until(lambda: here.client.ready() == "")
        here.until_phase(here.submit("after", ["true"]), "Succeeded")
        assert not jobs_named(here, "refused")
        assert here.phase(stays) == "Running"
        subprocess.run(words, capture_output=True, timeout=WAIT_S, check=True)
        (job,) = jobs_named(here, "refused")
        here.until_phase(job, "Succeeded")
        assert starts.read_text().splitlines() == ["started"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submission_whose_commit_got_no_answer_is_made_once(
    tmp_path: Path, database: Postgres, when: Literal["before", "after"]
) -> None:
    home, starts = tmp_path / "home", tmp_path / "starts"
    home.mkdir()
    cut = document("cut", ["sh", "-c", f"echo started >> {starts}"])
    with commit_cutter(database.fresh()) as wire, site(home, words=("--store", wire.url)) as here:
        here.up()
        wire.arm(str(starts), when)
        with ThreadPoolExecutor(1) as threads:
            # The client asks again with the same key until the server knows.
            asked = threads.submit(here.client.submit, cut)
            here.until(wire.was_cut.is_set)
            here.until(here.client.ready)
            # Nothing is shown that may not be there.
            here.until(lambda: not jobs_named(here, "cut"))
            assert not asked.done()
            wire.restore()
            (job,) = asked.result(WAIT_S)
        here.until_phase(job["id"], "Succeeded")
        assert jobs_named(here, "cut") == [job["id"]]
        assert starts.read_text().splitlines() == ["started"]
        here.kill()
        here.up()
        assert jobs_named(here, "cut") == [job["id"]]
