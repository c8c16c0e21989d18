"""`levada queues` and `usage`: who shares the machines, and who used them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.connection import Server, State, connect
from levada.cli.lists import ListFormat, NoHeaders, Output, show
from levada.cli.words import amounts, number, short


def register(app: typer.Typer) -> None:
    """Adds the verbs `queues` and `usage`."""
    app.command("queues")(queues)
    app.command("usage")(usage)


def queues(
    output: Output = ListFormat.TABLE, no_headers: NoHeaders = False, server: Server = None, state: State = None
) -> None:
    """List the queues: what each is sure of, may have, and has."""
    with connect(server, state) as client:
        show_queues(list(client.queues()), output, no_headers)


def show_queues(found: list[Any], output: ListFormat, no_headers: bool) -> None:
    """Prints queues in one of the forms."""

    def table(wide: bool) -> Any:
        header = ("NAME", "PARENT", "WEIGHT", "GUARANTEED", "LIMIT", "USED", "RUNNING", "WAITING", "BORROWS")
        return header, [
            (
                queue["name"],
                queue["parent"] or "-",
                number(queue["weight"]),
                amounts(queue["guaranteed"]),
                amounts(queue["limit"]),
                amounts(queue["used"]),
                str(queue["running"]),
                str(queue["waiting"]),
                "yes" if queue["borrow"] else "no",
            )
            for queue in found
        ]

    show(found, output, table, no_headers=no_headers)


def usage(
    by: Annotated[
        str, typer.Option("--by", metavar="FIELDS", help="Of user, queue, workload, gpu_type; several with commas.")
    ] = "user",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back, e.g. 24h.")] = "7d",
    output: Output = ListFormat.TABLE,
    no_headers: NoHeaders = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Sum up GPU hours, by user, queue, workload or GPU type."""
    from levada.cli.logs import seconds

    names = [name.strip() for name in by.split(",") if name.strip()]
    with connect(server, state) as client:
        found = client.usage(names, since_s=seconds(since, "--since"))

    def table(wide: bool) -> Any:
        header = (*(name.upper() for name in names), "JOBS", "GPU HOURS", "RAN", "WAITED")
        return header, [
            (
                *(str(each[name]) for name in names),
                number(each["jobs"]),
                f"{each['gpu_seconds'] / 3600:.2f}",
                short(each["running_s"]),
                short(each["waiting_s"]),
            )
            for each in found
        ]

    show(found, output, table, key=names[0] if names else "user", no_headers=no_headers, nothing="Nothing was used.")
