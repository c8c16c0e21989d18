"""Two servers for one store: one leads; the other is rejected or stands by, and takes over."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.real_server import RealServer, real_server
from tests.live.conftest import postgres_server, postgres_url  # noqa: F401 fixtures


def start_error(server: RealServer) -> str:
    """Start a server that must be rejected with exit code 5; return the last line of its log."""
    server.start()
    assert server.process is not None
    assert server.process.wait(60) == 5
    server.process = None
    return server.log.read_text().splitlines()[-1]


def assert_standby(server: RealServer) -> None:
    """Assert that the server runs, stands by and logs it."""
    server.wait_until(lambda: re.search("stand(s|ing)? ?by", server.log.read_text()))
    assert server.process is not None
    assert server.process.poll() is None
    assert not server.ready()


def test_a_standby_in_the_same_folder_continues_running_jobs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with real_server(home) as first, real_server(home, log=tmp_path / "second.log") as second:
        first.up()
        job = first.submit("stays", ["sh", "-c", f"echo x >> {tmp_path}/starts; sleep 1000"])
        first.wait_phase(job, "Running")
        assert "is already running" in start_error(second)
        second.start("--wait")
        assert_standby(second)
        assert first.phase(job) == "Running"
        first.kill()
        second.wait_until(second.ready)
        view = second.client.get(job)
        assert (view["phase"], view["generation"], view["restarts"]) == ("Running", 1, 0)
        assert (tmp_path / "starts").read_text() == "x\n", "the job was started once"
        second.client.cancel(job)
        second.wait_phase(job, "Cancelled")
        second.wait_until(lambda: not second.job_processes())


def test_only_one_of_two_servers_on_one_postgresql_leads(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    arguments = ("--store", postgres_url)
    homes = tmp_path / "one", tmp_path / "two"
    for home in homes:
        home.mkdir()
    with real_server(homes[0], arguments=arguments) as first, real_server(homes[1], arguments=arguments) as second:
        first.up()
        tokens = [token["id"] for token in first.client.tokens()]
        assert "another server uses this store" in start_error(second)
        assert [token["id"] for token in first.client.tokens()] == tokens, "a server without the lease creates no token"
        second.start("--wait")
        assert_standby(second)
        waits = first.submit("waits", ["true"], gpuTypes=["a100"], workers=5)
        done = first.submit("done", ["true"])
        first.wait_phase(done, "Succeeded")
        first.kill()
        second.wait_until(second.ready, 30)
        assert second.phase(done) == "Succeeded"
        assert second.phase(waits) == "Pending"
        second.client.scale(waits, 2)
        second.wait_phase(waits, "Succeeded")
        # The former leader is rejected when it returns.
        assert "another server uses this store" in start_error(first)


def test_jobs_running_in_one_folder_are_not_started_from_another(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    arguments = ("--store", postgres_url)
    homes = tmp_path / "one", tmp_path / "two"
    for home in homes:
        home.mkdir()
    with real_server(homes[0], arguments=arguments) as first, real_server(homes[1], arguments=arguments) as second:
        first.up()
        job = first.submit("stays", ["sh", "-c", f"echo x >> {tmp_path}/starts; sleep 1000"])
        first.wait_phase(job, "Running")
        first.kill()
        assert f"--state-dir {homes[0]}" in start_error(second)
        first.up()
        assert first.phase(job) == "Running"
        first.client.cancel(job)
        first.wait_phase(job, "Cancelled")
        first.kill()
        second.up()
        assert second.phase(job) == "Cancelled"
        assert (tmp_path / "starts").read_text() == "x\n", "the job was started once"
