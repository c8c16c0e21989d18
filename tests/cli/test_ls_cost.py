"""What a list of thousands of jobs costs whoever asks for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from levada.cli import jobtable
from levada.sdk import Client
from tests.server.serving import Served, document, served

MANY = 10_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[Served]:
    """A server with very many jobs."""
    with served() as up, Client(up.url, up.tokens["admin"]) as client:
        client.submit([document("crowd", array=f"0-{MANY - 1}")])
        yield up


def cpu_s(up: Served, home: Path, *words: str) -> float:
    """CPU seconds of one command, the least of some: others use this machine, too."""
    mine = {"LEVADA_SERVER": up.url, "LEVADA_TOKEN": up.tokens["admin"], "XDG_CONFIG_HOME": str(home)}

    def once() -> float:
        process = subprocess.Popen(
            [sys.executable, "-m", "levada", *words], env={**os.environ, **mine}, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    return min(once() for _ in range(4))


# The wide table has twice the columns, and its rows are the half of what it costs.
@pytest.mark.parametrize(("form", "starts"), [("table", 2.0), ("wide", 3.0)])
def test_ten_thousand_jobs_cost_little_more_than_to_start(
    crowded: Served, tmp_path: Path, form: str, starts: float
) -> None:
    few = cpu_s(crowded, tmp_path, "ls", "--state", "failed")
    assert cpu_s(crowded, tmp_path, "ls", "-o", form) <= starts * few


def test_the_table_of_columns_is_the_table_of_jobs(crowded: Served) -> None:
    with Client(crowded.url, crowded.tokens["admin"]) as client:
        jobs = client.jobs(limit=20)
        for wide in (False, True):
            names = jobtable.fields(wide)
            assert client.job_columns(names, limit=20) == jobtable.columns_of(jobs, names)
