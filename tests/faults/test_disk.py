"""A disk that is full: nothing new is taken, nothing that was taken is lost, and it goes on when there is room."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from levada.errors import LevadaError
from tests.faults.disks import fill, small_disk
from tests.faults.site import Site, document, site

_ANSWER_S = 10.0


def post(here: Site, name: str, key: str) -> tuple[int, dict[str, Any]]:
    """Status and body of a submission, as the wire has them."""
    address = here.client.address
    parts = urlsplit(address.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json", "Idempotency-Key": key}
    try:
        connection.request("POST", "/api/v1/jobs", json.dumps(document(name, ["true"])), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_full_disk_refuses_loses_nothing_and_heals_by_itself(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m"), site(tmp_path / "disk") as here:
        here.up()
        wait = f"until test -e {tmp_path}/{{0}}; do sleep 0.2; done; touch {tmp_path}/{{0}}-seen; {{1}}"
        stays = here.submit("stays", ["sleep", "1000"])
        ends = here.submit("ends", ["sh", "-c", wait.format("go", "true")])
        fails = here.submit("fails", ["sh", "-c", wait.format("go", "exit 3")])
        gone = here.submit("gone", ["sleep", "1000"])
        for job in (ends, fails, gone, stays):
            here.until_phase(job, "Running")
        waits = here.submit("waits", ["true"], gpuTypes=["a100"], workers=2)
        ballast = tmp_path / "disk" / "ballast"
        here.until(lambda: here.client.get(waits)["position"] == 1)
        fill(ballast)
        assert "make room" in here.client.ready()
        # Refused, at once and with what to do, however often.
        for attempt in range(3):
            began = time.monotonic()
            status, body = post(here, "refused", f"key-{attempt}")
            assert (status, body["code"]) == (503, "not_ready")
            assert "full" in body["detail"]
            assert "make room" in body["detail"]
            assert time.monotonic() - began < _ANSWER_S
        # What is under way when the disk turns out to be full is refused, too, and nothing is left of it.
        with pytest.raises(LevadaError, match="make room"):
            here.client.cancel(gone)
        # Looking still works, and a job that is done meanwhile is not lost.
        assert here.phase(stays) == "Running"
        (tmp_path / "go").touch()
        here.until(lambda: (here.home / "jobs" / ends / "workers" / "g1-0" / "exit.json").exists())
        here.until(lambda: (here.home / "jobs" / fails / "workers" / "g1-0" / "exit.json").exists())
        time.sleep(0.5)  # the server sees it and can do nothing about it
        ballast.unlink()
        here.until(lambda: here.client.ready() == "")
        assert here.until_phase(ends, "Succeeded")["exit_code"] == 0
        assert here.until_phase(fails, "Failed")["exit_code"] == 3
        assert here.phase(gone) == "Running"
        here.client.cancel(gone)
        here.until_phase(gone, "Cancelled")
        assert here.until_phase(waits, "Succeeded")["exit_code"] == 0
        # What is sent again with the same key is one job.
        assert not [job for job in here.client.jobs() if job["workload"] == "refused"]
        status, first = post(here, "refused", "key-0")
        assert (status, post(here, "refused", "key-0")[1]["id"]) == (201, first["id"])
        here.kill()
        here.up()
        phases = sorted((job["workload"], job["phase"]) for job in here.client.jobs() if job["workload"] != "refused")
        assert phases == [
            ("ends", "Succeeded"),
            ("fails", "Failed"),
            ("gone", "Cancelled"),
            ("stays", "Running"),
            ("waits", "Succeeded"),
        ]


def test_a_server_whose_disk_is_full_can_be_stopped_and_says_so_when_it_is_started(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m"), site(tmp_path / "disk") as here:
        here.up()
        job = here.submit("waits", ["true"], gpuTypes=["v100"], workers=4)
        here.until_phase(job, "Succeeded")
        stays = here.submit("stays", ["sleep", "1000"])
        here.until_phase(stays, "Running")
        ballast = tmp_path / "disk" / "ballast"
        fill(ballast)
        with pytest.raises(LevadaError, match="make room"):
            here.client.cancel(stays)
        # It can be stopped, too; the exit code tells whether something that happened could not be stored.
        assert here.stop() in (0, 1)
        here.start()
        server = here.server
        assert server is not None
        assert server.wait(60) == 1
        here.server = None
        last = here.log.read_text().splitlines()[-1]
        assert last.startswith("levada: ")
        assert "space" in last or "full" in last
        ballast.unlink()
        here.up()
        assert here.phase(job) == "Succeeded"
        assert here.phase(stays) == "Running"


def test_up_on_a_full_disk_asks_for_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m"):
        fill(tmp_path / "disk" / "ballast")
        words = ["up", "--state", str(tmp_path / "disk" / "home"), "--port", "0", "--node", "gpu=1"]
        done = subprocess.run([sys.executable, "-m", "levada", *words], capture_output=True, text=True, timeout=180)
        assert done.returncode == 1
        assert "make room on" in done.stderr
