"""`levada nodes`, `cordon`, `drain`, `uncordon`, `node remove` and `reserve`: the machines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.connection import NodeName, Server, State, connect
from levada.cli.lists import ListFormat, NoHeaders, Output, show
from levada.cli.output import TextOrJson, chatter, data, data_json
from levada.cli.words import clock, counted, number


def register(app: typer.Typer) -> None:
    """Adds the verbs `nodes` (and `sinfo`), `cordon`, `drain`, `uncordon` and `reserve`, and the group `node`."""
    app.command("nodes")(nodes)
    app.command("sinfo", hidden=True)(nodes)
    app.command("cordon")(cordon)
    app.command("drain")(drain)
    app.command("uncordon")(uncordon)
    group = typer.Typer(help="Remove a machine that is lost.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("remove")(remove)
    app.add_typer(group, name="node")
    app.command("reserve")(reserve)


def nodes(
    output: Output = ListFormat.TABLE, no_headers: NoHeaders = False, server: Server = None, state: State = None
) -> None:
    """List the machines, and how many of their GPUs are in use."""
    with connect(server, state) as client:
        show_nodes(list(client.nodes()), output, no_headers)


def show_nodes(found: list[Any], output: ListFormat, no_headers: bool) -> None:
    """Prints nodes in one of the forms."""

    def table(wide: bool) -> Any:
        header = ("NAME", "STATE", "GPUS(used/all)", "CPU", "MEMORY", *(("LABELS",) if wide else ()), "JOBS")
        return header, [_row(node, wide) for node in found]

    show(found, output, table, spare=("MEMORY", "CPU"), no_headers=no_headers, nothing="There are no nodes.")


def _row(node: Any, wide: bool) -> list[str]:
    gpus = ",".join(f"{kind}={of['used']}/{of['total']}" for kind, of in node["gpus"].items())
    memory = node.get("memory_mib")
    row = [
        node["name"],
        # Who is still there stands under JOBS.
        "Draining" if node.get("draining") is not None and node["jobs"] else node["phase"],
        gpus or "-",
        number(node.get("cpu")),
        "-" if memory is None else f"{memory / 1024:.0f}Gi",
    ]
    if wide:
        row.append(",".join(f"{key}={value}" for key, value in node["labels"].items()) or "-")
    return [*row, ",".join(node["jobs"]) or "-"]


def cordon(name: NodeName, server: Server = None, state: State = None) -> None:
    """Give a node no new work; what runs there goes on."""
    with connect(server, state) as client:
        data(f"{name}: {client.cordon(name)['phase']}")


def drain(
    name: NodeName,
    force: Annotated[bool, typer.Option("--force", help="Stop jobs there that may not be stopped, too.")] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Give a node no new work, and let what may be stopped there go elsewhere."""
    with connect(server, state) as client:
        node = client.drain(name, force=force)
    stay = node.get("draining") or []
    data(f"{name}: {'Draining' if stay else node['phase']}")
    for each in stay:
        chatter(f"{each['job']} stays for now: {each['why']}")
    if stay:
        chatter(f"They stay until that changes or they end; `levada drain --force {name}` stops them now.")


def uncordon(name: NodeName, server: Server = None, state: State = None) -> None:
    """Give a node work again."""
    with connect(server, state) as client:
        data(f"{name}: {client.uncordon(name)['phase']}")


def remove(name: NodeName, server: Server = None, state: State = None) -> None:
    """Remove a node that is lost from the lists; its agent may join again later."""
    with connect(server, state) as client:
        client.remove_node(name)
    data(f"{name}: removed")


def reserve(
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs.")],
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="For how long, e.g. 2h.")],
    gpu_type: Annotated[str | None, typer.Option("--gpu-type", help="Of this type.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="On this node.")] = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Keep GPUs that are free from jobs for a time."""
    from levada.cli.logs import seconds

    with connect(server, state) as client:
        made = client.reserve(gpus, seconds(duration, "--for"), gpu_type=gpu_type, node=node)
    if output is TextOrJson.JSON:
        data_json(made)
    else:
        data(f"Reserved {counted(gpus, 'GPU')} until {clock(made.get('until'))}")
