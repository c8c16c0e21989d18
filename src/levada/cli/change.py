"""`levada cancel`, `suspend`, `resume`, `scale` and `update`: what can be done to a job that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import typer

from levada.cli.connection import JobName, JobNames, Server, State, connect
from levada.cli.exit import ExitCode, code_of
from levada.cli.output import chatter, data
from levada.cli.words import counted
from levada.errors import BadInput, LevadaError, NoServer

T = TypeVar("T")

_MOST_AT_ONCE = 8


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


def suspend(names: JobNames, server: Server = None, state: State = None) -> None:
    """Stop jobs, after a checkpoint, until they are resumed."""
    with connect(server, state) as client:
        _each(names, lambda name: f"Suspended {client.suspend(name)['id']}")


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
    server: Server = None,
    state: State = None,
) -> None:
    """Give a job this many workers, neither more nor less, until its range is changed."""
    with connect(server, state) as client:
        job = client.scale(name, workers)
    data(f"{job['id']}: {counted(workers, 'worker')} from now on")


def update(
    name: JobName,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher is more important.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="The queue it waits in.")] = None,
    least: Annotated[int | None, typer.Option("--min", min=1, help="The fewest workers.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="The most workers.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Its share beside others.")] = None,
    server: Server = None,
    state: State = None,
) -> None:
    """Change a job: its priority, queue, range of workers or weight."""
    changes: dict[str, Any] = {"priority": priority, "queue": queue, "min": least, "max": most, "weight": weight}
    changes = {key: value for key, value in changes.items() if value is not None}
    if not changes:
        raise BadInput.one("levada update needs one of --priority, --queue, --min, --max, --weight")
    with connect(server, state) as client:
        job = client.update(name, **changes)
    data(
        f"{job['id']}: "
        + ", ".join(f"{key} {value:g}" if key == "weight" else f"{key} {value}" for key, value in changes.items())
    )
