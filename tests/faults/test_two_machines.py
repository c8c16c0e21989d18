"""Two servers on two machines and one PostgreSQL: machines are told apart by their host name, each in a namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.site import NODES, Site, site
from tests.faults.test_two_servers import refused, stands_by
from tests.live.conftest import postgres_server, postgres_url  # noqa: F401 fixtures

#: The lease of a server that nobody can see die, and some.
TAKES_OVER_S = 40.0


def named(host: str) -> tuple[str, ...]:
    """What comes before a command that shall run on a machine of this name."""
    return ("unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh")


if subprocess.run([*named("probe"), "true"], check=False, capture_output=True).returncode:
    if os.environ.get("CI") == "true":
        raise AssertionError("CI must be allowed to make namespaces")
    pytest.skip("host names of one's own need a namespace, which is not allowed here", allow_module_level=True)


@contextmanager
def machine(folder: Path, host: str, url: str, nodes: tuple[str, ...] = NODES, *words: str) -> Iterator[Site]:
    """A machine with a folder of its own."""
    home = folder / host
    home.mkdir()
    with site(home, nodes=nodes, words=("--store", url, *words)) as here:
        here.before = named(host)
        yield here


@pytest.mark.slow
def test_a_server_of_another_machine_never_doubles_what_it_cannot_see(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    with machine(tmp_path, "one", postgres_url) as first, machine(tmp_path, "two", postgres_url) as second:
        first.up()
        assert "another server acts on this store (one:" in refused(second)
        job = first.submit("stays", ["sh", "-c", f"echo x >> {tmp_path}/starts; sleep 1000"])
        first.until_phase(job, "Running")
        second.start("--wait")
        stands_by(second)
        first.kill()
        second.until(lambda: f"{job} run on one" in second.log.read_text(), TAKES_OVER_S)
        first.up()
        view = first.client.get(job)
        assert (view["phase"], view["generation"], view["restarts"]) == ("Running", 1, 0)
        first.client.cancel(job)
        first.until_phase(job, "Cancelled")
        first.kill()
        second.until(second.ready, TAKES_OVER_S)
        assert second.phase(job) == "Cancelled"
        assert (tmp_path / "starts").read_text() == "x\n", "it was started once"
        second.until_phase(second.submit("next", ["true"]), "Succeeded")
        assert "another server acts on this store (two:" in refused(first)


@contextmanager
def joined(here: Site, url: str, state: Path) -> Iterator[None]:
    """The agent of a third machine, which joins whoever answers at that address."""
    words = ["--join", url, "--token", here.client.address.token or "", "--name", "left", "--node", "a100=2"]
    with open(state.with_name("agent.log"), "wb") as log:
        command = [sys.executable, "-m", "levada", "agent", *words, "--state", str(state)]
        agent = subprocess.Popen([*named("left"), *command], stdout=log, stderr=log)
    try:
        yield
    finally:
        agent.kill()
        agent.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_jobs_on_machines_of_agents_go_over_to_another_server(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    port = free_port()
    words = ("--port", str(port), "--nodes", "1", "--gpus-per-node", "0")
    left = Site(tmp_path / "left")
    try:
        with (
            machine(tmp_path, "one", postgres_url, (), *words) as first,
            machine(tmp_path, "two", postgres_url, (), *words) as second,
        ):
            first.up()
            with joined(first, f"http://127.0.0.1:{port}", left.home):
                first.until(lambda: any(node["name"].startswith("left") for node in first.client.nodes()))
                stays, ends = (
                    first.submit("stays", script(tmp_path, "stays")),
                    first.submit("ends", script(tmp_path, "ends")),
                )
                for job in (stays, ends):
                    first.until_phase(job, "Running")
                second.start("--wait")
                stands_by(second)
                first.kill()
                (tmp_path / "ends.go").touch()  # while nobody watches
                second.until(second.ready, TAKES_OVER_S)
                assert second.phase(stays) == "Running", "until its machine has had the time to join"
                second.until_phase(ends, "Succeeded")
                (tmp_path / "stays.go").touch()
                view = second.until_phase(stays, "Succeeded")
                assert (view["generation"], view["restarts"]) == (1, 0)
                assert [(tmp_path / f"{name}.starts").read_text() for name in ("stays", "ends")] == ["x\n", "x\n"]
    finally:
        left.clear()


def script(folder: Path, name: str) -> list[str]:
    """Notes each start, and ends when it may."""
    begun, go = folder / f"{name}.starts", folder / f"{name}.go"
    return ["sh", "-c", f"echo x >> {begun}; until [ -e {go} ]; do sleep 0.05; done"]
