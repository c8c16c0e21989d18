"""`levada queues` and `usage`: quotas and accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from levada.cli.connection import Server, StateDir, connect
from levada.cli.formatting import amounts, number, short
from levada.cli.lists import ListFormat, NoHeaders, Output, show


def register(app: typer.Typer) -> None:
    """Add the verbs `queues` and `usage`."""
    app.command("queues")(queues)
    app.command("usage")(usage)


def queues(
    output: Output = ListFormat.TABLE, no_headers: NoHeaders = False, server: Server = None, state: StateDir = None
) -> None:
    """List queues with guarantee, limit and use."""
    with connect(server, state) as client:
        show_queues(list(client.queues()), output, no_headers)


def show_queues(queues_found: list[Any], output: ListFormat, no_headers: bool) -> None:
    """Print queues in an output format."""

    def table(wide: bool) -> Any:
        header = (
            "NAME",
            "PARENT",
            "WEIGHT",
            "GUARANTEED",
            "LIMIT",
            "PER USER",
            "USED",
            "RUNNING",
            "WAITING",
            "BORROWS",
        )
        return header, [
            (
                queue["name"],
                queue["parent"] or "-",
                number(queue["weight"]),
                amounts(queue["guaranteed"]),
                amounts(queue["limit"]),
                _per_user(queue.get("per_user_limit") or {}),
                amounts(queue["used"]),
                str(queue["running"]),
                str(queue["waiting"]),
                "yes" if queue["borrow"] else "no",
            )
            for queue in queues_found
        ]

    show(queues_found, output, table, no_headers=no_headers)


def _per_user(limit: Mapping[str, float]) -> str:
    """Format a limit: `a100=2,v100=1`, or `4` for 4 GPUs of all types together."""
    return amounts(limit).replace("*=", "")


def usage(
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="FIELDS", help="Group by user, queue, workload or gpu_type; several separated by commas."
        ),
    ] = "user",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Include jobs since TIME ago, e.g. 24h.")
    ] = "7d",
    output: Output = ListFormat.TABLE,
    no_headers: NoHeaders = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Sum GPU hours by user, queue, workload or GPU type."""
    from levada.cli.logs import seconds

    names = [name.strip() for name in by.split(",") if name.strip()]
    with connect(server, state) as client:
        usages: Sequence[Mapping[str, Any]] = client.usage(names, since_s=seconds(since, "--since"))

    def table(wide: bool) -> Any:
        header = (*(name.upper() for name in names), "JOBS", "GPU HOURS", "RAN", "WAITED")
        return header, [
            (
                *(str(row[name]) for name in names),
                number(row["jobs"]),
                f"{row['gpu_seconds'] / 3600:.2f}",
                short(row["running_s"]),
                short(row["waiting_s"]),
            )
            for row in usages
        ]

    show(
        usages,
        output,
        table,
        key=names[0] if names else "user",
        no_headers=no_headers,
        nothing="No usage in this time.",
    )
