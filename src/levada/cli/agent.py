"""`levada agent`: this machine's GPUs join a server elsewhere."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from levada.cli.up import GpusPerNode, GpuType, Node, Nodes, declared


def register(app: typer.Typer) -> None:
    """Adds the verb `agent`."""
    app.command("agent")(agent)


def agent(
    join: Annotated[str, typer.Option("--join", metavar="URL", help="The server's address.", show_default=False)],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="LEVADA_TOKEN",
            help="An operator's token: `levada token create --role operator` makes one.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", help="What this machine is called there.", show_default="its host name")
    ] = "",
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="DIR", help="The agent's folder.", show_default="$XDG_STATE_HOME/levada-agent"),
    ] = None,
    node: Node = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    gpu_type: GpuType = None,
    address: Annotated[
        str,
        typer.Option(
            "--address", help="Where workers on other machines reach this one.", show_default="as the server sees it"
        ),
    ] = "",
    checkpoints: Annotated[
        str | None,
        typer.Option("--checkpoints", metavar="DIR", help="A folder that all machines share.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Send the token over http:// to another machine: something else encrypts."),
    ] = False,
) -> None:
    """Let the GPUs of this machine join a server: same supervisor, outgoing connection only, no Kubernetes.

    Stays until Ctrl-C or SIGTERM. Its jobs train on while it is away, and it finds them again when it is back.
    """
    import asyncio
    import logging
    import signal

    from levada.backends.local.agent import run_agent
    from levada.backends.local.devices import nodes_here
    from levada.backends.local.processes import keep_private
    from levada.sdk.place import demand_encrypted

    demand_encrypted(join, insecure)
    # What an agent writes is for its owner.
    keep_private()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, force=True
    )
    called = name or socket.gethostname()
    found, said = nodes_here(declared(node, nodes, gpus_per_node, gpu_type), name=called)
    logging.getLogger(__name__).info("%s", said)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    home = Path(state or os.path.join(base, "levada-agent"))
    shared = Path(checkpoints) if checkpoints is not None else None

    async def stay() -> None:
        work = asyncio.create_task(
            run_agent(join, token, nodes=found, state=home, name=called, address=address, checkpoints=shared)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    asyncio.run(stay())
