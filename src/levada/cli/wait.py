"""`levada wait`: until jobs are over."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from levada.cli.connection import JobNames, Server, State, connect
from levada.cli.exit import ExitCode
from levada.cli.output import chatter, data
from levada.errors import NotFound

_CODES = {"Succeeded": ExitCode.OK, "Failed": ExitCode.JOB_FAILED, "Cancelled": ExitCode.JOB_CANCELLED}


def register(app: typer.Typer) -> None:
    """Adds the verb `wait`."""
    app.command("wait")(wait)


def wait(
    names: JobNames,
    timeout: Annotated[
        str | None, typer.Option("--timeout", "-t", metavar="TIME", help="Give up after so long, e.g. 90s, 2h.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--for", metavar="STATE", help="Until they are in this state, or over.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the exit code says it.")] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Wait until jobs are over. Exit code: 0 all succeeded, 100 failed, 101 timed out, 102 not found, 103 cancelled."""
    from levada.cli.logs import seconds
    from levada.cli.ls import phases_of
    from levada.sdk.client import never_starts

    until = None if timeout is None else time.monotonic() + seconds(timeout, "--timeout")
    wanted = phases_of(phase, "--for") or []
    worst = ExitCode.OK
    with connect(server, state) as client:
        for name in names:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                with _sign(client.get(name), quiet):
                    job: Any = client.wait(name, timeout_s=left, phases=wanted or None)
            except NotFound as error:
                chatter(f"levada: {error}")
                raise typer.Exit(ExitCode.JOB_NOT_FOUND) from None
            except TimeoutError:
                chatter(f"levada: {name} is not there yet; it goes on, only the waiting is over")
                raise typer.Exit(ExitCode.JOB_TIMED_OUT) from None
            if not quiet:
                data(f"{job['id']} {job['phase']}")
            if job["phase"] not in wanted and never_starts(job):
                chatter(never_starts_line(job))
                worst = worst or ExitCode.JOB_FAILED
            else:
                worst = worst or (ExitCode.OK if job["phase"] in wanted else code_of_phase(job["phase"]))
    raise typer.Exit(worst)


def _sign(job: Any, quiet: bool) -> AbstractContextManager[None]:
    """What is said of a job while it is waited for."""
    from levada.cli.waiting import Waiting

    if quiet or job["finished"] is not None:
        return nullcontext()
    if job["phase"] == "Pending" and job.get("reason"):
        return Waiting(f"{job['id']} waits: {job['reason']['text']}")
    return Waiting(f"{job['id']} is {job['phase']}") if sys.stderr.isatty() else nullcontext()


def never_starts_line(job: Any) -> str:
    """What to tell of a job that waits for one that has failed or was cancelled."""
    return (
        f"levada: {job['id']} never starts, for a job it comes after has not succeeded: "
        f"levada cancel {job['id']}, and submit both again"
    )


def code_of_phase(phase: str) -> ExitCode:
    """The exit code of a verb that waited for a job that is over now."""
    return _CODES.get(phase, ExitCode.ERROR)
