"""`levada tour`: a server of its own on pretend GPUs, sample jobs that come and go, and a table to watch them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from levada.cli.interrupts import deferred, tidied_up
from levada.cli.output import chatter, data
from levada.errors import BadInput, LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_OVER = ("Succeeded", "Failed", "Cancelled")
_LOOK_S = 0.5
#: The tour is over after so long even if a job is not.
_LONGEST_S = 240.0


#: A tour has no time for the pauses that spare real jobs.
_SETUP: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "store": None,
    "checkpoints": None,
    "nodes": [{"a100": 4}, {"v100": 4}],
    "policy": None,
    "options": {"min_run_s": 5, "cooldown_s": 3, "rate_limit_s": 0.5},
    "stuck_after_s": None,
    "certfile": None,
    "keyfile": None,
    "insecure": False,
}
_NEXT = """
Next, with a server of your own:
    source .venv/bin/activate
    levada up                                    GPUs of this machine, or pretend ones
    levada submit -f examples/numpy/job.yaml     README.md goes on from here"""


class Sample(NamedTuple):
    """A job of the tour: when it comes, and what it shows."""

    #: Comes this long after the one before it has run, so that what it shows is true on a slow machine, too.
    later_s: float
    name: str
    shows: str
    spec: dict[str, Any]


#: The second and the last may go to either type, and the story is true wherever they do.
SAMPLES = (
    Sample(
        0.0,
        "first",
        "alone, it takes all v100",
        {"workers": {"min": 1, "max": 4}, "gpuTypes": ["v100"], "steps": 280},
    ),
    Sample(0.5, "second", "finds room beside it", {"workers": {"min": 1, "max": 4}, "steps": 220}),
    Sample(
        6.0,
        "third",
        "others shrink for it, without a restart",
        {"workers": {"min": 2, "max": 4}, "gpuTypes": ["v100"], "steps": 90},
    ),
    Sample(
        1.0,
        "picky",
        "wants four v100 at once, and waits with a reason",
        {"workers": 4, "gpuTypes": ["v100"], "steps": 60},
    ),
    Sample(1.0, "small", "one worker is enough", {"workers": 1, "steps": 40}),
)
#: This one has to wait; who comes after it does not wait until it runs.
_WAITS = "picky"


def register(app: typer.Typer) -> None:
    """Adds the verb `tour`."""
    app.command("tour")(tour)


def tour(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help="A training script that takes STEPS and STEP_SECONDS, as examples/numpy/train.py does.",
        ),
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server up afterwards.")] = False,
) -> None:
    """Watch real jobs start, grow, shrink, wait and finish on a pretend cluster of two GPU types; about a minute.

    It has a server and a folder of its own, and leaves nothing behind, after Ctrl-C neither.
    """
    if not os.path.isfile(script):
        raise BadInput.one(f"{script}: is no file; examples/numpy/train.py is one")
    folder = None
    with tidied_up():
        try:
            with deferred():
                folder = Path(tempfile.mkdtemp(prefix="levada-tour-"))
            with _server(folder, keep) as client:
                _watch(client, os.path.abspath(script))
                if keep:
                    chatter(f"the server stays up: levada ls --state-dir {folder}; levada down --state {folder}")
            chatter(_NEXT)
        finally:
            if folder is not None and not keep:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(folder: Path, keep: bool) -> Iterator[Client]:
    """A server that is up, and goes with all its jobs."""
    from levada.cli.starting import bring_up, take_down
    from levada.sdk.client import Client
    from levada.server.home import SERVER, Home

    home = Home(folder)
    up = False
    try:
        bring_up(home, _SETUP)
        told = home.read(SERVER)
        data(f"Levada is up at {told['url']}, for this tour alone")
        with Client(told["url"], told["token"]) as client:
            up = True
            yield client
    finally:
        if not keep or not up:
            # The terminal may be gone.
            with contextlib.suppress(OSError):
                chatter("everything is taken down")
            take_down(home)


def _watch(client: Client, script: str) -> None:
    began = ready = time.monotonic()
    coming = list(SAMPLES)
    shows: dict[str, str] = {}
    before: str | None = None
    data("\nA pretend cluster: four a100, four v100. Jobs come; watch GPUS, STATE and REASON.\n")
    with _screen() as show:
        while True:
            jobs = client.jobs()
            now = time.monotonic()
            if before is not None and any(job["id"] == before and _has_run(job) for job in jobs):
                before, ready = None, now
            if coming and before is None and now >= ready + coming[0].later_s:
                sample = coming.pop(0)
                (job,) = client.submit(_document(sample, script))
                before = job["id"]
                shows[before] = sample.shows
                continue
            show(jobs, shows)
            if not coming and all(job["phase"] in _OVER for job in jobs):
                break
            if now - began > _LONGEST_S:
                late = ", ".join(f"{job['workload']} is {job['phase']}" for job in jobs if job["phase"] not in _OVER)
                raise LevadaError(f"the tour took too long ({late}); is the machine busy?")
            time.sleep(_LOOK_S)
    _summary(client)


def _has_run(job: Any) -> bool:
    return job["workload"] == _WAITS or job["started"] is not None


def _document(sample: Sample, script: str) -> dict[str, Any]:
    env = {"STEPS": str(sample.spec["steps"]), "STEP_SECONDS": "0.35", "OMP_NUM_THREADS": "1"}
    run = {"command": [sys.executable, script], "env": env, "workdir": os.path.dirname(script)}
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": sample.name},
        "spec": {**sample.spec, "run": run, "checkpoint": {"gracePeriod": "10s"}},
    }


@contextlib.contextmanager
def _screen() -> Iterator[Any]:
    """Shows jobs: a table that changes on a terminal, a line for every change elsewhere."""
    from levada.cli.words import number

    if not sys.stdout.isatty():
        seen: dict[str, str] = {}

        def tell(jobs: list[dict[str, Any]], _names: dict[str, str]) -> None:
            for job in jobs:
                on = f"{number(job['gpus'])} {job['gpu_type'] or '-':<5}"
                line = f"{job['workload']:<8} {job['phase']:<10} {on} {job['reason']['text']}"
                if seen.get(job["id"]) != line:
                    seen[job["id"]] = line
                    data(line)

        yield tell
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda jobs, names: live.update(_table(jobs, names), refresh=True)


def _table(jobs: list[dict[str, Any]], names: dict[str, str]) -> Any:
    from rich.table import Table

    from levada.cli.jobtable import gpus as of_range
    from levada.cli.jobtable import progress

    table = Table(box=None, pad_edge=False)
    for heading in ("JOB", "STATE", "GPUS", "TYPE", "PROGRESS", "REASON", "WHAT IT SHOWS"):
        table.add_column(heading, no_wrap=heading not in ("REASON", "WHAT IT SHOWS"))
    colours = {"Running": "green", "Succeeded": "dim", "Pending": "yellow", "Failed": "red"}
    for job in jobs:
        style = colours.get(job["phase"], "cyan")
        gpus = f"{'■' * int(job['gpus'])} {of_range(job)}"
        why = "" if job["phase"] == "Running" else job["reason"]["text"]
        table.add_row(
            job["workload"],
            f"[{style}]{job['phase']}[/]",
            gpus,
            job["gpu_type"] or "-",
            progress(job),
            why,
            names.get(job["id"], ""),
        )
    return table


def _summary(client: Client) -> None:
    from levada.cli.output import columns
    from levada.cli.words import short

    rows = [
        (
            job["workload"],
            job["phase"],
            str(job["resizes"]),
            str(job["restarts"]),
            short(job["waiting_s"]),
            short(job["running_s"]),
        )
        for job in client.jobs()
    ]
    data("\n" + columns(("JOB", "STATE", "RESIZES", "RESTARTS", "WAITED", "RAN"), rows))
