"""A database that goes away while a server runs: nothing new is taken, what runs runs on, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.errors import LevadaError
from tests.faults.site import document, site
from tests.live.postgres import postgres


def test_a_postgresql_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with postgres() as database, site(home, words=("--store", database.url)) as here:
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
