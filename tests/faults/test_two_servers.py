"""Two servers for one store: one acts, the other waits or is turned away, and takes over when the first is gone."""

from __future__ import annotations

from pathlib import Path

from tests.faults.site import Site, site
from tests.live.conftest import postgres_server, postgres_url  # noqa: F401 fixtures


def refused(here: Site) -> str:
    """A server that is not let in ends with the code of what is refused."""
    here.start()
    assert here.server is not None
    assert here.server.wait(60) == 5
    here.server = None
    return here.log.read_text().splitlines()[-1]


def stands_by(here: Site) -> None:
    """It lives, waits, and says so."""
    here.until(lambda: "stands by" in here.log.read_text())
    assert here.server is not None
    assert here.server.poll() is None
    assert not here.ready()


def test_who_stands_by_in_the_same_folder_goes_on_with_what_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with site(home) as first, site(home, log=tmp_path / "second.log") as second:
        first.up()
        job = first.submit("stays", ["sh", "-c", f"echo x >> {tmp_path}/starts; sleep 1000"])
        first.until_phase(job, "Running")
        assert "is up" in refused(second)
        second.start("--wait")
        stands_by(second)
        assert first.phase(job) == "Running"
        first.kill()
        second.until(second.ready)
        view = second.client.get(job)
        assert (view["phase"], view["generation"], view["restarts"]) == ("Running", 1, 0)
        assert (tmp_path / "starts").read_text() == "x\n", "it was started once"
        second.client.cancel(job)
        second.until_phase(job, "Cancelled")
        second.until(lambda: not second.left())


def test_of_two_servers_on_one_postgresql_one_acts(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    words = ("--store", postgres_url)
    homes = tmp_path / "one", tmp_path / "two"
    for home in homes:
        home.mkdir()
    with site(homes[0], words=words) as first, site(homes[1], words=words) as second:
        first.up()
        tokens = [each["id"] for each in first.client.tokens()]
        assert "another server acts" in refused(second)
        assert [each["id"] for each in first.client.tokens()] == tokens, "who may not act makes no token"
        second.start("--wait")
        stands_by(second)
        waits = first.submit("waits", ["true"], gpuTypes=["a100"], workers=5)
        done = first.submit("done", ["true"])
        first.until_phase(done, "Succeeded")
        first.kill()
        second.until(second.ready, 30)
        assert second.phase(done) == "Succeeded"
        assert second.phase(waits) == "Pending"
        second.client.scale(waits, 2)
        second.until_phase(waits, "Succeeded")
        # The first one comes back, and has to stand back.
        assert "another server acts" in refused(first)


def test_jobs_that_run_in_one_folder_are_not_started_again_from_another(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    words = ("--store", postgres_url)
    homes = tmp_path / "one", tmp_path / "two"
    for home in homes:
        home.mkdir()
    with site(homes[0], words=words) as first, site(homes[1], words=words) as second:
        first.up()
        job = first.submit("stays", ["sh", "-c", f"echo x >> {tmp_path}/starts; sleep 1000"])
        first.until_phase(job, "Running")
        first.kill()
        assert f"--state {homes[0]}" in refused(second)
        first.up()
        assert first.phase(job) == "Running"
        first.client.cancel(job)
        first.until_phase(job, "Cancelled")
        first.kill()
        second.up()
        assert second.phase(job) == "Cancelled"
        assert (tmp_path / "starts").read_text() == "x\n", "it was started once"
