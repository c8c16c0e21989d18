"""`levada wait`: wait until jobs finish."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from levada.cli.connection import JobNames, Server, StateDir, connect
from levada.cli.exit import ExitCode
from levada.cli.output import data, message
from levada.errors import NotFound

_CODES = {"Succeeded": ExitCode.OK, "Failed": ExitCode.JOB_FAILED, "Cancelled": ExitCode.JOB_CANCELLED}


def register(app: typer.Typer) -> None:
    """Add the verb `wait`."""
    app.command("wait")(wait)


def wait(
    names: JobNames,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", "-t", metavar="TIME", help="Give up after TIME, e.g. 90s or 2h. Default: never."),
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--for", metavar="STATE", help="Wait until jobs are in this state or finished.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; set only the exit code.")] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Wait until jobs finish.

    Exit code: 0 all succeeded, 100 a job failed, 101 timed out, 102 not found, 103 cancelled.
    """
    from levada.cli.logs import seconds
    from levada.cli.ls import phases_of
    from levada.sdk.client import never_starts

    limit_s = None if timeout is None else seconds(timeout, "--timeout")
    until = None if limit_s is None else time.monotonic() + limit_s
    wanted = phases_of(phase, "--for") or []
    worst = ExitCode.OK
    with connect(server, state) as client:
        for name in names:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                with _spinner(client.get(name), quiet):
                    job: Any = client.wait(name, timeout_s=left, phases=wanted or None)
            except NotFound as error:
                message(f"levada: {error}")
                raise typer.Exit(ExitCode.JOB_NOT_FOUND) from None
            except TimeoutError:
                message(
                    f"levada: timed out after {limit_s:g} s: {name} is not {phase or 'finished'}; the job continues"
                )
                raise typer.Exit(ExitCode.JOB_TIMED_OUT) from None
            if not quiet:
                data(f"{job['id']} {job['phase']}")
            if job["phase"] not in wanted and never_starts(job):
                message(never_starts_line(job))
                worst = worst or ExitCode.JOB_FAILED
            else:
                worst = worst or (ExitCode.OK if job["phase"] in wanted else code_of_phase(job["phase"]))
    raise typer.Exit(worst)


def _spinner(job: Any, quiet: bool) -> AbstractContextManager[None]:
    """Show phase and reason of a job during the wait."""
    from levada.cli.spinner import Spinner

    if quiet or job["finished"] is not None:
        return nullcontext()
    if job["phase"] == "Pending" and job.get("reason"):
        return Spinner(f"{job['id']} is Pending: {job['reason']['text']}")
    return Spinner(f"{job['id']} is {job['phase']}") if sys.stderr.isatty() else nullcontext()


def never_starts_line(job: Any) -> str:
    """Return the error for a job that depends on a failed or cancelled job."""
    return (
        f"levada: {job['id']} can never start: a job that it depends on failed or was cancelled; "
        f"run `levada cancel {job['id']}` and submit both again"
    )


def code_of_phase(phase: str) -> ExitCode:
    """Return the exit code for the final phase of a job."""
    return _CODES.get(phase, ExitCode.ERROR)
