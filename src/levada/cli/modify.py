"""`levada cancel`, `suspend`, `resume`, `scale` and `update`: change jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from levada.cli.confirm import confirm
from levada.cli.connection import JobName, JobNames, Server, StateDir, connect
from levada.cli.exit import ExitCode, code_of
from levada.cli.output import data, message
from levada.errors import UNSAVED, BadInput, LevadaError, NoServer, Refused

if TYPE_CHECKING:
    from levada.sdk import Job

T = TypeVar("T")

_MOST_AT_ONCE = 8
Force = Annotated[
    bool, typer.Option("--force", help="Restart the job now for its new size, even if it loses unsaved work.")
]


class MayPreempt(StrEnum):
    """Values of `--preemptible`."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"


def register(app: typer.Typer) -> None:
    """Add the verbs `cancel` (and `delete`), `suspend`, `resume`, `scale` and `update`."""
    app.command("cancel")(cancel)
    app.command("delete", hidden=True)(delete)
    app.command("suspend")(suspend)
    app.command("resume")(resume)
    app.command("scale")(scale)
    app.command("update")(update)


def cancel(names: JobNames, server: Server = None, state: StateDir = None) -> None:
    """Cancel jobs; running jobs save a checkpoint first."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Cancelled {client.cancel(name)['id']}")


def delete(names: JobNames, server: Server = None, state: StateDir = None) -> None:
    """Cancel jobs; print the result like Voda."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Training job deleted: {client.cancel(name)['id']}")


def suspend(
    names: JobNames,
    force: Annotated[bool, typer.Option("--force", help="Suspend jobs even if they lose unsaved work.")] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Stop jobs after a checkpoint until they are resumed.

    Jobs without a checkpoint need --force, or a confirmation on a terminal.
    """
    with connect(server, state) as client:

        def act(name: str) -> str:
            try:
                return f"Suspended {client.suspend(name, force=force)['id']}"
            except Refused as refused:
                # Several jobs are suspended in parallel: prompts would be mixed up.
                may_ask = refused.code == UNSAVED and len(names) == 1
                if not (may_ask and confirm(f"levada: {refused}", "Suspend it and lose that work?")):
                    raise
            return f"Suspended {client.suspend(name, force=True)['id']}"

        _each(names, act)


def resume(names: JobNames, server: Server = None, state: StateDir = None) -> None:
    """Put suspended jobs back into the queue."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Resumed {client.resume(name)['id']}")


def _each(names: list[str], act: Callable[[str], str]) -> None:
    """Call *act* for each job, also after errors, and print the results."""

    def act_or_error(name: str) -> str | LevadaError:
        try:
            return act(name)
        except LevadaError as error:
            return error

    code = ExitCode.OK
    for result in _in_parallel(act_or_error, list(dict.fromkeys(names))):
        if isinstance(result, str):
            data(result)
        elif isinstance(result, NoServer):
            raise result
        else:
            message(f"levada: {result}")
            code = code or code_of(result)
    raise typer.Exit(code)


def _in_parallel(act: Callable[[str], T], names: list[str]) -> Iterator[T]:
    """Yield results in the order of *names*; parallel requests let the server store them in one turn."""
    if len(names) == 1:
        yield act(names[0])
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        yield from pool.map(act, names)


def scale(
    name: JobName,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of workers.", show_default=False)],
    force: Force = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Fix a job at N workers (undo: `levada update --min --max`).

    For example, `levada update JOB --min 1 --max 4` makes it elastic again.

    A job that must restart and has no checkpoint changes after its first checkpoint, or now with --force.
    """
    with connect(server, state) as client:
        job = _resize(lambda forced: client.scale(name, workers, force=forced), force)
    data(f"{job['id']}: {job['message']}")


def update(  # noqa: PLR0913 - one parameter per flag
    name: JobName,
    priority: Annotated[int | None, typer.Option("--priority", help="Priority; higher goes first.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Move the job to this queue.")] = None,
    least: Annotated[
        int | None, typer.Option("--min", min=1, help="Minimum number of workers; undoes `scale`.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of workers; undoes `scale`.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Weight of the job for fair-share policies.")] = None,
    preemptible: Annotated[
        MayPreempt | None,
        typer.Option(
            "--preemptible",
            help="Whether other jobs may resize, move or stop it: true = at any time, false = never, "
            "auto = if no work is lost.",
        ),
    ] = None,
    force: Force = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Change priority, queue, workers or weight of a job."""
    changes: dict[str, Any] = {"priority": priority, "queue": queue, "min": least, "max": most, "weight": weight}
    if preemptible is not None:
        changes["preemptible"] = "auto" if preemptible is MayPreempt.AUTO else preemptible is MayPreempt.TRUE
    changes = {key: value for key, value in changes.items() if value is not None}
    if not changes:
        raise BadInput.one("levada update needs one of --priority, --queue, --min, --max, --weight, --preemptible")
    with connect(server, state) as client:
        job = _resize(lambda forced: client.update(name, **changes, force=forced), force)
    data(f"{job['id']}: " + ", ".join(f"{key} {_value(value)}" for key, value in changes.items()))
    if job.get("unsaved"):
        message(f"{job['message']}")


def _resize(act: Callable[[bool], Job], force: bool) -> Job:
    """Change the size of a job; if that waits for a checkpoint, offer to restart it now."""
    job = act(force)
    if not job.get("unsaved"):
        return job
    now = f"restart it now and lose {job['unsaved']}"
    if confirm(f"{job['id']}: {job['message']}", f"{now[0].upper()}{now[1:]}?"):
        return act(True)
    message(f"To {now}, use --force")
    return job


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
