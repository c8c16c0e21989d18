"""`levada tour`: run sample jobs on a temporary server with simulated GPUs."""

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

from levada.cli.extras import require
from levada.cli.interrupts import cleanup_protected, signals_deferred
from levada.cli.output import data, message
from levada.errors import BadInput, LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_FINISHED = ("Succeeded", "Failed", "Cancelled")
_POLL_S = 0.5
#: Time limit of the tour.
_MAX_S = 240.0


#: Shorter minimum run times and cooldowns than for real jobs.
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
    levada up                                    GPUs of this machine, or simulated ones
    levada submit -f examples/numpy/job.yaml     README.md continues from here"""


class Sample(NamedTuple):
    """A job of the tour."""

    #: Delay after the start of the previous job; the tour then works on a slow machine, too.
    delay_s: float
    name: str
    shows: str
    spec: dict[str, Any]


#: `second` and `small` may run on either type; their texts hold for both.
SAMPLES = (
    Sample(
        0.0,
        "first",
        "alone: uses all four v100",
        {"workers": {"min": 1, "max": 4}, "gpuTypes": ["v100"], "steps": 280},
    ),
    Sample(0.5, "second", "runs beside the first", {"workers": {"min": 1, "max": 4}, "steps": 220}),
    Sample(
        6.0,
        "third",
        "the others shrink for it, without a restart",
        {"workers": {"min": 2, "max": 4}, "gpuTypes": ["v100"], "steps": 90},
    ),
    Sample(
        1.0,
        "picky",
        "needs four v100 at once: waits",
        {"workers": 4, "gpuTypes": ["v100"], "steps": 60},
    ),
    Sample(1.0, "small", "needs one worker: starts at once", {"workers": 1, "steps": 40}),
)
#: This job has to wait; the job after it is submitted before it starts.
_WAITING_SAMPLE = "picky"


def register(app: typer.Typer) -> None:
    """Add the verb `tour`."""
    app.command("tour")(tour)


def tour(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help="Training script that reads STEPS and STEP_SECONDS, like examples/numpy/train.py.",
        ),
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Keep the server running afterwards.")] = False,
) -> None:
    """Watch real jobs share a simulated cluster (1 minute).

    Jobs start, grow, shrink, wait and finish on two GPU types. The tour uses its own server and folder and removes
    both at the end, also after Ctrl-C.
    """
    require("server", "levada tour")
    if not os.path.isfile(script):
        raise BadInput.one(f"{script}: no such file; use e.g. examples/numpy/train.py")
    folder = None
    with cleanup_protected():
        try:
            with signals_deferred():
                folder = Path(tempfile.mkdtemp(prefix="levada-tour-"))
            with _server(folder, keep) as client:
                _watch(client, os.path.abspath(script))
                if keep:
                    message(f"the server keeps running; stop it with `levada down --state-dir {folder}`")
            message(_NEXT)
        finally:
            if folder is not None and not keep:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(folder: Path, keep: bool) -> Iterator[Client]:
    """Start a server; stop it and its jobs at the end unless *keep*."""
    from levada.cli.daemon import start_server, stop_server
    from levada.sdk.client import Client
    from levada.server.state_dir import SERVER, StateFolder

    home = StateFolder(folder)
    is_up = False
    try:
        start_server(home, _SETUP)
        server = home.read(SERVER)
        data(f"Levada is up at {server['url']} for this tour")
        with Client(server["url"], server["token"]) as client:
            is_up = True
            yield client
    finally:
        if not keep or not is_up:
            # The terminal may be closed.
            with contextlib.suppress(OSError):
                message("stopping the server and its jobs")
            stop_server(home)


def _watch(client: Client, script: str) -> None:
    began = ready = time.monotonic()
    remaining = list(SAMPLES)
    shows: dict[str, str] = {}
    previous: str | None = None
    data("\nA simulated cluster: 4 a100, 4 v100. Five jobs arrive; watch GPUS, STATE and REASON.\n")
    with _screen() as show:
        while True:
            jobs = client.jobs()
            now = time.monotonic()
            if previous is not None and any(job["id"] == previous and _has_run(job) for job in jobs):
                previous, ready = None, now
            if remaining and previous is None and now >= ready + remaining[0].delay_s:
                sample = remaining.pop(0)
                (job,) = client.submit(_document(sample, script))
                previous = job["id"]
                shows[previous] = sample.shows
                continue
            show(jobs, shows)
            if not remaining and all(job["phase"] in _FINISHED for job in jobs):
                break
            if now - began > _MAX_S:
                late = ", ".join(
                    f"{job['workload']} is {job['phase']}" for job in jobs if job["phase"] not in _FINISHED
                )
                raise LevadaError(
                    f"the tour did not finish within {_MAX_S:.0f} s ({late}); try again when the machine is less busy"
                )
            time.sleep(_POLL_S)
    _summary(client)


def _has_run(job: Any) -> bool:
    return job["workload"] == _WAITING_SAMPLE or job["started"] is not None


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
    """Show jobs: a live table on a terminal, else one line per change."""
    from levada.cli.formatting import exact, number

    if not sys.stdout.isatty():
        seen: dict[str, tuple[str, ...]] = {}
        began = time.monotonic()
        form = "{:<6} {:<8} {:<10} {:<4} {:<5} {}"
        data(form.format("TIME", "JOB", "STATE", "GPUS", "TYPE", "REASON"))

        def print_changes(jobs: list[dict[str, Any]], _names: dict[str, str]) -> None:
            passed = exact(time.monotonic() - began)
            for job in jobs:
                on = (number(job["gpus"]), job["gpu_type"] or "-")
                cells = (job["workload"], job["phase"], *on, job["reason"]["text"])
                if seen.get(job["id"]) != cells:
                    seen[job["id"]] = cells
                    data(form.format(passed, *cells).rstrip())

        yield print_changes
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda jobs, names: live.update(_table(jobs, names), refresh=True)


def _table(jobs: list[dict[str, Any]], names: dict[str, str]) -> Any:
    from rich.table import Table

    from levada.cli.job_table import gpus as of_range
    from levada.cli.job_table import progress

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
    from levada.cli.formatting import short
    from levada.cli.output import columns

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
