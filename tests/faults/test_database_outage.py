"""An outage of the database: requests are rejected, jobs keep running, nothing is lost."""

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
from tests.faults.commit_proxy import commit_proxy
from tests.faults.real_server import RealServer, document, real_server
from tests.live.postgres import Postgres, postgres
from tests.timeouts import WAIT_S


@pytest.fixture(scope="module")
def shared_database() -> Iterator[Postgres]:
    with postgres() as database:
        yield database


@pytest.fixture
def database(shared_database: Postgres) -> Iterator[Postgres]:
    yield shared_database
    if not shared_database.is_up:
        shared_database.start()


def jobs_named(server: RealServer, name: str) -> list[str]:
    return [job["id"] for job in server.client.jobs() if job["workload"] == name]


def test_an_outage_of_postgresql_loses_nothing(tmp_path: Path, database: Postgres) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with real_server(home, arguments=("--store", database.fresh())) as server:
        server.up()
        stays = server.submit("stays", ["sleep", "1000"])
        ends = server.submit("ends", ["sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.1; done; exit 3"])
        for job in (stays, ends):
            server.wait_phase(job, "Running")
        (shim,) = [run["shim"] for run in server.runs() if run["job"] == stays]
        database.stop()
        # Submissions are rejected with a remedy, and queries still work.
        with pytest.raises(LevadaError, match="check that it runs"):
            server.client.submit(document("rejected", ["true"]))
        assert server.phase(stays) == "Running"
        # The end of a job is stored after the outage.
        (tmp_path / "go").touch()
        server.wait_until(lambda: (home / "jobs" / ends / "workers" / "g1-0" / "exit.json").exists())
        database.start()
        server.wait_until(lambda: server.client.ready() == "")
        assert server.wait_phase(ends, "Failed")["exit_code"] == 3
        assert server.wait_phase(server.submit("after", ["true"]), "Succeeded")["exit_code"] == 0
        assert [run["shim"] for run in server.runs() if run["job"] == stays] == [shim], "the job kept running"


def test_a_rejected_submission_never_runs(tmp_path: Path, database: Postgres) -> None:
    home, starts = tmp_path / "home", tmp_path / "starts"
    home.mkdir()
    command = ["sh", "-c", f"echo started >> {starts}"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document("rejected", command)))
    command_line = [sys.executable, "-m", "levada", "submit", "--state-dir", str(home), "-f", str(file)]
    with real_server(home, arguments=("--store", database.fresh())) as server:
        server.up()
        stays = server.submit("stays", ["sleep", "1000"])
        server.wait_phase(stays, "Running")
        database.stop()
        result = subprocess.run(command_line, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert result.returncode == 1
        assert "the request had no effect" in result.stderr
        # A rejected cancel does not take effect later.
        with pytest.raises(LevadaError, match="check that it runs"):
            server.client.cancel(stays)
        assert server.phase(stays) == "Running"
        database.start()
        server.wait_until(lambda: server.client.ready() == "")
        server.wait_phase(server.submit("after", ["true"]), "Succeeded")
        assert not jobs_named(server, "rejected")
        assert server.phase(stays) == "Running"
        subprocess.run(command_line, capture_output=True, timeout=WAIT_S, check=True)
        (job,) = jobs_named(server, "rejected")
        server.wait_phase(job, "Succeeded")
        assert starts.read_text().splitlines() == ["started"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submission_with_an_unconfirmed_commit_is_created_once(
    tmp_path: Path, database: Postgres, when: Literal["before", "after"]
) -> None:
    home, starts = tmp_path / "home", tmp_path / "starts"
    home.mkdir()
    cut = document("cut", ["sh", "-c", f"echo started >> {starts}"])
    with commit_proxy(database.fresh()) as proxy, real_server(home, arguments=("--store", proxy.url)) as server:
        server.up()
        proxy.arm(str(starts), when)
        with ThreadPoolExecutor(1) as threads:
            # The client retries with the same key until the outcome is known.
            submission = threads.submit(server.client.submit, cut)
            server.wait_until(proxy.was_cut.is_set)
            server.wait_until(server.client.ready)
            # The job is not listed while its commit is unconfirmed.
            server.wait_until(lambda: not jobs_named(server, "cut"))
            assert not submission.done()
            proxy.restore()
            (job,) = submission.result(WAIT_S)
        server.wait_phase(job["id"], "Succeeded")
        assert jobs_named(server, "cut") == [job["id"]]
        assert starts.read_text().splitlines() == ["started"]
        server.kill()
        server.up()
        assert jobs_named(server, "cut") == [job["id"]]
