"""CPU time of listing thousands of jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from levada.cli import job_table
from levada.sdk import Client
from tests.server.http_server import Served, document, served

MANY = 10_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[Served]:
    """A server with thousands of jobs."""
    with served() as up, Client(up.url, up.tokens["admin"]) as client:
        client.submit([document("crowd", array=f"0-{MANY - 1}")])
        yield up


def cpu_s(up: Served, home: Path, *words: str) -> float:
    """Minimum CPU seconds of several runs of a command; other processes disturb some runs."""
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


# The wide table has twice the columns; formatting rows is half of its cost.
@pytest.mark.parametrize(("form", "starts"), [("table", 2.0), ("wide", 3.0)])
def test_ls_of_10000_jobs_costs_little_more_than_startup(
    crowded: Served, tmp_path: Path, form: str, starts: float
) -> None:
    few = cpu_s(crowded, tmp_path, "ls", "--state", "failed")
    assert cpu_s(crowded, tmp_path, "ls", "-o", form) <= starts * few


def test_column_table_equals_job_table(crowded: Served) -> None:
    with Client(crowded.url, crowded.tokens["admin"]) as client:
        jobs = client.jobs(limit=20)
        for wide in (False, True):
            names = job_table.fields(wide)
            assert client.job_columns(names, limit=20) == job_table.columns_of(jobs, names)
