"""Find the server: flags, LEVADA_* variables, settings files, this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from levada.sdk.client import Client

Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="Address of the server.", show_default="$LEVADA_SERVER")
]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="State directory of a local server.", show_default="$LEVADA_STATE"),
]

#: Timeouts of plain requests, and of requests that compute or carry thousands of jobs.
_QUICK_S, LONG_S = 20.0, 60.0


def connect(
    server: str | None = None,
    state: str | None = None,
    *,
    timeout_s: float | None = None,
    patience_s: float = 10.0,
    quiet: bool = False,
) -> Client:
    """Return a client of the selected server that shows a spinner while it waits; raises NoServer."""
    from levada.cli.spinner import Spinner
    from levada.sdk.client import Client

    token = None
    if not any((server, state, os.environ.get("LEVADA_SERVER"), os.environ.get("LEVADA_STATE"))):
        from levada.cli import config

        server, token, state = config.find_server(os.environ.get("LEVADA_CONTEXT") or None)
    return Client(
        server,
        token,
        state=state,
        timeout_s=_QUICK_S if timeout_s is None else timeout_s,
        patience_s=patience_s,
        waiting=None if quiet else lambda url: Spinner(f"waiting for the server at {url}"),
    )


def complete_from_server(names: Callable[[Client], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion with *names* of the server; no names if it does not answer within 2 s."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from levada.errors import LevadaError

        flags = context.params
        try:
            place = (flags.get("server"), flags.get("state_dir", flags.get("state")))
            candidates = names(connect(*place, timeout_s=2.0, patience_s=0.0, quiet=True))
        except (LevadaError, OSError, ValueError, KeyError):
            return []
        return [name for name in candidates if name.startswith(incomplete)]

    return complete


def _jobs(client: Client) -> list[str]:
    jobs = client.jobs()
    return list(dict.fromkeys([*(job["id"] for job in jobs), *(job["workload"] for job in jobs)]))


_complete_jobs = complete_from_server(_jobs)
_complete_nodes = complete_from_server(lambda client: [node["name"] for node in client.nodes()])

_JOB_HELP = "Job id, a unique prefix or its last 4 characters, or a workload (its newest job)."
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help=_JOB_HELP, autocompletion=_complete_jobs, show_default=False)
]
JobNames = Annotated[
    list[str], typer.Argument(metavar="JOB...", help=_JOB_HELP, autocompletion=_complete_jobs, show_default=False)
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=_complete_nodes, show_default=False)
]
