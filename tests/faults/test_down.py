"""`levada down` at any moment: workers save and exit; after the next `up` every job continues or has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.real_server import RealServer, real_server

_SLEEP = ["sleep", "1000"]
#: A worker with the runtime; new workers wait before they are ready while the file `hold` exists.
_ELASTIC = """
import os, pathlib, time, levada.runtime
while pathlib.Path({hold!r}).exists() and os.environ["LEVADA_RANK"] != "0": time.sleep(0.05)
for _ in levada.runtime.init().steps(10**9): time.sleep(0.01)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    (tmp_path / "home").mkdir()
    with real_server(tmp_path / "home", nodes=("a100=4",)) as real:
        yield real.up()


def test_jobs_that_just_started_continue_after_a_restart(server: RealServer) -> None:
    jobs = [server.submit(name, _SLEEP) for name in ("one", "two")]
    server.wait_until(lambda: len(server.runs()) == 2)
    assert server.down() == 0
    assert not server.job_processes()
    server.up()
    for job in jobs:
        server.wait_phase(job, "Running")
    server.wait_until(lambda: len(server.runs()) == 2)


def test_a_resizing_job_continues_after_a_restart(server: RealServer, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    script = tmp_path / "train.py"
    script.write_text(_ELASTIC.format(hold=str(hold)))
    command = [sys.executable, str(script)]
    job = server.submit("elastic", command, workers={"min": 1, "max": 1}, preemptible=True)
    server.wait_until(lambda: server.client.get(job)["progress"]["step"])
    hold.touch()
    server.client.update(job, min=2, max=2)
    server.wait_phase(job, "Resizing")
    server.wait_until(lambda: len(server.runs()) == 2)
    assert server.down() == 0
    assert not server.job_processes()
    hold.unlink()
    server.up()
    view = server.wait_phase(job, "Running")
    assert view["gpus"] == 2
    server.wait_until(lambda: len(server.runs()) == 2)


def test_a_job_cancelled_while_starting_is_ended_after_a_restart(server: RealServer) -> None:
    job = server.submit("one", _SLEEP)
    server.client.cancel(job)
    assert server.down() == 0
    server.up()
    server.wait_phase(job, "Cancelled")
    assert not server.job_processes()
