"""`levada nodes`, `cordon`, `drain`, `uncordon`, `node remove` and `reserve`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.connection import NodeName, Server, StateDir, connect
from levada.cli.formatting import clock, counted, number
from levada.cli.lists import ListFormat, NoHeaders, Output, show
from levada.cli.output import TextOrJson, data, data_json, message


def register(app: typer.Typer) -> None:
    """Add the verbs `nodes` (and `sinfo`), `cordon`, `drain`, `uncordon` and `reserve`, and the group `node`."""
    app.command("nodes")(nodes)
    app.command("sinfo", hidden=True)(nodes)
    app.command("cordon")(cordon)
    app.command("drain")(drain)
    app.command("uncordon")(uncordon)
    group = typer.Typer(help="Remove lost nodes.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("remove")(remove)
    app.add_typer(group, name="node")
    app.command("reserve")(reserve)


def nodes(
    output: Output = ListFormat.TABLE, no_headers: NoHeaders = False, server: Server = None, state: StateDir = None
) -> None:
    """List nodes with their GPUs in use and jobs."""
    with connect(server, state) as client:
        show_nodes(list(client.nodes()), output, no_headers)


def show_nodes(nodes_found: list[Any], output: ListFormat, no_headers: bool) -> None:
    """Print nodes in an output format."""

    def table(wide: bool) -> Any:
        header = ("NAME", "STATE", "GPUS(used/all)", "CPU", "MEMORY", *(("LABELS",) if wide else ()), "JOBS")
        return header, [_row(node, wide) for node in nodes_found]

    show(nodes_found, output, table, spare=("MEMORY", "CPU"), no_headers=no_headers, nothing="No nodes.")


def _row(node: Any, wide: bool) -> list[str]:
    gpus = ",".join(f"{kind}={count['used']}/{count['total']}" for kind, count in node["gpus"].items())
    memory = node.get("memory_mib")
    row = [
        node["name"],
        node["phase"],
        gpus or "-",
        number(node.get("cpu")),
        "-" if memory is None else f"{memory / 1024:.0f}Gi",
    ]
    if wide:
        row.append(",".join(f"{key}={value}" for key, value in node["labels"].items()) or "-")
    return [*row, ",".join(node["jobs"]) or "-"]


def cordon(name: NodeName, server: Server = None, state: StateDir = None) -> None:
    """Exclude a node from new placements; running jobs stay."""
    with connect(server, state) as client:
        data(f"{name}: {client.cordon(name)['phase']}")


def drain(
    name: NodeName,
    force: Annotated[bool, typer.Option("--force", help="Also stop jobs that must not be preempted.")] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Cordon a node and move or stop its jobs.

    Jobs that must not be preempted stay until they may be; `--force` stops them now.
    """
    with connect(server, state) as client:
        node = client.drain(name, force=force)
    remaining = node.get("draining") or []
    data(f"{name}: {node['phase']}")
    for job in remaining:
        message(f"{job['job']} stays for now: {job['why']}")
    if remaining:
        message(f"`levada drain --force {name}` stops them now.")


def uncordon(name: NodeName, server: Server = None, state: StateDir = None) -> None:
    """Allow new placements on a node again."""
    with connect(server, state) as client:
        data(f"{name}: {client.uncordon(name)['phase']}")


def remove(name: NodeName, server: Server = None, state: StateDir = None) -> None:
    """Remove a lost node from the cluster.

    Its agent may join again later.
    """
    with connect(server, state) as client:
        client.remove_node(name)
    data(f"{name}: removed")


def reserve(
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Number of GPUs.")],
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="Duration, e.g. 2h.")],
    gpu_type: Annotated[str | None, typer.Option("--gpu-type", help="GPU type. Default: any.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="Node. Default: any.")] = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Reserve free GPUs for some time: no job gets them."""
    from levada.cli.logs import seconds

    with connect(server, state) as client:
        reservation = client.reserve(gpus, seconds(duration, "--for"), gpu_type=gpu_type, node=node)
    if output is TextOrJson.JSON:
        data_json(reservation)
    else:
        data(f"Reserved {counted(gpus, 'GPU')} until {clock(reservation.get('until'))}")
