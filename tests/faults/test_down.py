"""`levada down` at any moment: workers save and leave, and after the next `up` every job goes on, or is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.site import Site, site

_SLEEP = ["sleep", "1000"]
#: A worker that trains with the runtime; one that starts while the file `hold` is there waits before it is ready.
_ELASTIC = """
import os, pathlib, time, levada.runtime
while pathlib.Path({hold!r}).exists() and os.environ["LEVADA_RANK"] != "0": time.sleep(0.05)
for _ in levada.runtime.init().steps(10**9): time.sleep(0.01)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "home").mkdir()
    with site(tmp_path / "home", nodes=("a100=4",)) as made:
        yield made.up()


def test_jobs_that_have_just_started_go_on_after_the_next_start(here: Site) -> None:
    jobs = [here.submit(name, _SLEEP) for name in ("one", "two")]
    here.until(lambda: len(here.runs()) == 2)
    assert here.down() == 0
    assert not here.left()
    here.up()
    for job in jobs:
        here.until_phase(job, "Running")
    here.until(lambda: len(here.runs()) == 2)


def test_a_job_in_the_middle_of_a_resize_goes_on_after_the_next_start(here: Site, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    script = tmp_path / "train.py"
    script.write_text(_ELASTIC.format(hold=str(hold)))
    command = [sys.executable, str(script)]
    job = here.submit("elastic", command, workers={"min": 1, "max": 1}, preemptible=True)
    here.until(lambda: here.client.get(job)["progress"]["step"])
    hold.touch()
    here.client.update(job, min=2, max=2)
    here.until_phase(job, "Resizing")
    here.until(lambda: len(here.runs()) == 2)
    assert here.down() == 0
    assert not here.left()
    hold.unlink()
    here.up()
    view = here.until_phase(job, "Running")
    assert view["gpus"] == 2
    here.until(lambda: len(here.runs()) == 2)


def test_a_job_that_was_cancelled_while_it_started_is_over_after_the_next_start(here: Site) -> None:
    job = here.submit("one", _SLEEP)
    here.client.cancel(job)
    assert here.down() == 0
    here.up()
    here.until_phase(job, "Cancelled")
    assert not here.left()
