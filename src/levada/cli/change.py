"""`levada cancel`, `suspend`, `resume`, `scale` and `update`: what can be done to a job that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from levada.cli.confirm import confirm
from levada.cli.connection import JobName, JobNames, Server, State, connect
from levada.cli.exit import ExitCode, code_of
from levada.cli.output import chatter, data
from levada.errors import UNSAVED, BadInput, LevadaError, NoServer, Refused

if TYPE_CHECKING:
    from levada.sdk.models import Job

T = TypeVar("T")

_MOST_AT_ONCE = 8
Force = Annotated[
    bool, typer.Option("--force", help="Restart it now for its new size, though work is lost that it has not saved.")
]


class MayPreempt(StrEnum):
    """Values of `--preemptible`."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"


def register(app: typer.Typer) -> None:
    """Adds the verbs `cancel` (and `delete`), `suspend`, `resume`, `scale` and `update`."""
    app.command("cancel")(cancel)
    app.command("delete", hidden=True)(delete)
    app.command("suspend")(suspend)
    app.command("resume")(resume)
    app.command("scale")(scale)
    app.command("update")(update)


def cancel(names: JobNames, server: Server = None, state: State = None) -> None:
    """End jobs for good; those that run save a checkpoint first."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Cancelled {client.cancel(name)['id']}")


def delete(names: JobNames, server: Server = None, state: State = None) -> None:
    """End jobs for good, and say so as Voda does."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Training job deleted: {client.cancel(name)['id']}")


def suspend(
    names: JobNames,
    force: Annotated[bool, typer.Option("--force", help="Suspend jobs that lose work they have not saved.")] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Stop jobs, after a checkpoint, until they are resumed.

    A job that has saved nothing is left alone without --force; on a terminal you are asked.
    """
    with connect(server, state) as client:

        def act(name: str) -> str:
            try:
                return f"Suspended {client.suspend(name, force=force)['id']}"
            except Refused as refused:
                # Several are asked for at a time: questions would be mixed up.
                alone = refused.code == UNSAVED and len(names) == 1
                if not (alone and confirm(f"levada: {refused}", "Suspend it and lose that work?")):
                    raise
            return f"Suspended {client.suspend(name, force=True)['id']}"

        _each(names, act)


def resume(names: JobNames, server: Server = None, state: State = None) -> None:
    """Let suspended jobs go on when it is their turn."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Resumed {client.resume(name)['id']}")


def _each(names: list[str], act: Callable[[str], str]) -> None:
    """Does it to each job; what is refused to one does not keep the others from it."""

    def tried(name: str) -> str | LevadaError:
        try:
            return act(name)
        except LevadaError as error:
            return error

    code = ExitCode.OK
    for told in _together(tried, list(dict.fromkeys(names))):
        if isinstance(told, str):
            data(told)
        elif isinstance(told, NoServer):
            raise told
        else:
            chatter(f"levada: {told}")
            code = code or code_of(told)
    raise typer.Exit(code)


def _together(act: Callable[[str], T], names: list[str]) -> Iterator[T]:
    """The answers in the order of *names*, several asked for at a time: the server writes them down together."""
    if len(names) == 1:
        yield act(names[0])
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        yield from pool.map(act, names)


def scale(
    name: JobName,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, help="How many workers.", show_default=False)],
    force: Force = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Fix a job at N workers (undo: `levada update JOB --min 1 --max 4`).

    A job that takes a restart and has saved nothing changes after its first checkpoint; --force does it now.
    """
    with connect(server, state) as client:
        job = _resize(lambda forced: client.scale(name, workers, force=forced), force)
    data(f"{job['id']}: {job['message']}")


def update(
    name: JobName,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher is more important.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="The queue it waits in.")] = None,
    least: Annotated[int | None, typer.Option("--min", min=1, help="The fewest workers; undoes `scale`.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="The most workers; undoes `scale`.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Its share beside others.")] = None,
    preemptible: Annotated[
        MayPreempt | None,
        typer.Option(
            "--preemptible",
            help="Whether it may be resized, moved or stopped for others: true at once, false never, "
            "auto when no work is lost.",
        ),
    ] = None,
    force: Force = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Change a job: its priority, queue, range of workers, weight, or whether it may be preempted."""
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
        chatter(f"{job['message']}")


def _resize(act: Callable[[bool], Job], force: bool) -> Job:
    """Change a job's size; where that waits for a checkpoint, offer to do it now."""
    job = act(force)
    if not job.get("unsaved"):
        return job
    now = f"restart it now and lose {job['unsaved']}"
    if confirm(f"{job['id']}: {job['message']}", f"{now[0].upper()}{now[1:]}?"):
        return act(True)
    chatter(f"To {now}: --force")
    return job


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
