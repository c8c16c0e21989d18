"""`levada agent`: join the GPUs of this machine to a server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from levada.cli.up import GpusPerNode, GpuType, Node, Nodes, OldState, declared, renamed


def register(app: typer.Typer) -> None:
    """Add the verb `agent`."""
    app.command("agent")(agent)


def agent(  # noqa: PLR0913 - one parameter per flag
    join: Annotated[str, typer.Option("--join", metavar="URL", help="Address of the server.", show_default=False)],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="LEVADA_TOKEN",
            help="Token of an operator; create one with `levada token create --role operator`.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name of this machine on the server.", show_default="its host name")
    ] = "",
    state: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="State directory of the agent.",
            show_default="$XDG_STATE_HOME/levada-agent",
        ),
    ] = None,
    old_state: OldState = None,
    node: Node = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    gpu_type: GpuType = None,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            help="Address at which workers on other machines reach this one.",
            show_default="as seen by the server",
        ),
    ] = "",
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints", metavar="DIR", help="Checkpoint directory that all machines share.", show_default=False
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow plain HTTP to another machine (only through a TLS proxy or tunnel)."),
    ] = False,
) -> None:
    """Join the GPUs of this machine to a server.

    The agent runs until Ctrl-C or SIGTERM and makes only outgoing connections. Its jobs keep running while it is
    stopped; the next start adopts them.
    """
    import asyncio
    import logging

    from levada.backends.local.agent import run_agent
    from levada.backends.local.gpus import nodes_here
    from levada.backends.local.processes import restrict_umask
    from levada.sdk.discovery import require_encryption

    require_encryption(join, insecure)
    # Files of an agent are private to its owner.
    restrict_umask()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, force=True
    )
    machine = name or socket.gethostname()
    gpu_nodes, summary = nodes_here(declared(node, nodes, gpus_per_node, gpu_type), name=machine)
    logging.getLogger(__name__).info("%s", summary)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    home = Path(renamed(state, old_state) or os.path.join(base, "levada-agent"))
    shared = Path(checkpoints) if checkpoints is not None else None

    coroutine = run_agent(join, token, nodes=gpu_nodes, state=home, name=machine, address=address, checkpoints=shared)
    asyncio.run(_run_until_signal(coroutine))


async def _run_until_signal(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run *coroutine* until it ends; SIGTERM and SIGINT cancel it."""
    import asyncio
    import signal

    task = asyncio.create_task(coroutine)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
