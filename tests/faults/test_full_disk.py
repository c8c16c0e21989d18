"""A full disk: requests are rejected, nothing accepted is lost, and the server recovers."""

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
from tests.faults.faulty_disks import fill, small_disk
from tests.faults.real_server import RealServer, document, real_server

_RESPONSE_S = 10.0


def post(server: RealServer, name: str, key: str) -> tuple[int, dict[str, Any]]:
    """Status and body of the response to a submission."""
    address = server.client.address
    parts = urlsplit(address.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_RESPONSE_S)
    headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json", "Idempotency-Key": key}
    try:
        connection.request("POST", "/api/v1/jobs", json.dumps(document(name, ["true"])), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_full_disk_rejects_requests_loses_nothing_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m"), real_server(tmp_path / "disk") as server:
        server.up()
        wait = f"until test -e {tmp_path}/{{0}}; do sleep 0.2; done; touch {tmp_path}/{{0}}-seen; {{1}}"
        stays = server.submit("stays", ["sleep", "1000"])
        ends = server.submit("ends", ["sh", "-c", wait.format("go", "true")])
        fails = server.submit("fails", ["sh", "-c", wait.format("go", "exit 3")])
        gone = server.submit("gone", ["sleep", "1000"])
        for job in (ends, fails, gone, stays):
            server.wait_phase(job, "Running")
        waits = server.submit("waits", ["true"], gpuTypes=["a100"], workers=2)
        ballast = tmp_path / "disk" / "ballast"
        server.wait_until(lambda: server.client.get(waits)["position"] == 1)
        fill(ballast)
        assert "space" in server.client.ready()
        # Every submission is rejected at once with a remedy.
        for attempt in range(3):
            began = time.monotonic()
            status, body = post(server, "rejected", f"key-{attempt}")
            assert (status, body["code"]) == (503, "not_ready")
            assert "full" in body["detail"]
            assert "space" in body["detail"]
            assert time.monotonic() - began < _RESPONSE_S
        # A request that finds the disk full is rejected and leaves nothing.
        with pytest.raises(LevadaError, match=r"free (some )?space"):
            server.client.cancel(gone)
        # Queries still work, and the end of a job is not lost.
        assert server.phase(stays) == "Running"
        (tmp_path / "go").touch()
        server.wait_until(lambda: (server.home / "jobs" / ends / "workers" / "g1-0" / "exit.json").exists())
        server.wait_until(lambda: (server.home / "jobs" / fails / "workers" / "g1-0" / "exit.json").exists())
        time.sleep(0.5)  # the server sees the end but cannot store it
        ballast.unlink()
        server.wait_until(lambda: server.client.ready() == "")
        assert server.wait_phase(ends, "Succeeded")["exit_code"] == 0
        assert server.wait_phase(fails, "Failed")["exit_code"] == 3
        assert server.phase(gone) == "Running"
        server.client.cancel(gone)
        server.wait_phase(gone, "Cancelled")
        assert server.wait_phase(waits, "Succeeded")["exit_code"] == 0
        # Submissions with the same key create one job.
        assert not [job for job in server.client.jobs() if job["workload"] == "rejected"]
        status, first = post(server, "rejected", "key-0")
        assert (status, post(server, "rejected", "key-0")[1]["id"]) == (201, first["id"])
        server.kill()
        server.up()
        phases = sorted(
            (job["workload"], job["phase"]) for job in server.client.jobs() if job["workload"] != "rejected"
        )
        assert phases == [
            ("ends", "Succeeded"),
            ("fails", "Failed"),
            ("gone", "Cancelled"),
            ("stays", "Running"),
            ("waits", "Succeeded"),
        ]


def test_a_server_on_a_full_disk_can_be_stopped_and_reports_it_at_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m"), real_server(tmp_path / "disk") as server:
        server.up()
        job = server.submit("waits", ["true"], gpuTypes=["v100"], workers=4)
        server.wait_phase(job, "Succeeded")
        stays = server.submit("stays", ["sleep", "1000"])
        server.wait_phase(stays, "Running")
        ballast = tmp_path / "disk" / "ballast"
        fill(ballast)
        with pytest.raises(LevadaError, match=r"free (some )?space"):
            server.client.cancel(stays)
        # The server can be stopped; its exit code is 1 if an event could not be stored.
        assert server.stop() in (0, 1)
        server.start()
        process = server.process
        assert process is not None
        assert process.wait(60) == 1
        server.process = None
        last = server.log.read_text().splitlines()[-1]
        assert last.startswith("levada: ")
        assert "space" in last or "full" in last
        ballast.unlink()
        server.up()
        assert server.phase(job) == "Succeeded"
        assert server.phase(stays) == "Running"


def test_up_on_a_full_disk_asks_to_free_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m"):
        fill(tmp_path / "disk" / "ballast")
        arguments = ["up", "--state-dir", str(tmp_path / "disk" / "home"), "--port", "0", "--node", "gpu=1"]
        result = subprocess.run(
            [sys.executable, "-m", "levada", *arguments], capture_output=True, text=True, timeout=180
        )
        assert result.returncode == 1
        assert "free space on the disk of" in result.stderr
