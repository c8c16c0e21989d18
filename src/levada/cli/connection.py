"""The server that a verb talks to: flags first, then LEVADA_*, then files, then the server of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from levada.sdk.client import Client

Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="The server's address.", show_default=False)
]
_STATE_HELP = "The folder of a server of this machine."
State = Annotated[
    str | None, typer.Option("--state-dir", "--state", metavar="DIR", help=_STATE_HELP, show_default=False)
]
#: For verbs whose `--state` is that of jobs.
StateDir = Annotated[str | None, typer.Option("--state-dir", metavar="DIR", help=_STATE_HELP, show_default=False)]


#: A server that is silent for so long does not answer a plain question any more; where it has to think, or to take in
#: thousands of jobs, it has longer.
_QUICK_S, LONG_S = 20.0, 60.0


def connect(
    server: str | None = None,
    state: str | None = None,
    *,
    timeout_s: float | None = None,
    patience_s: float = 10.0,
    quiet: bool = False,
) -> Client:
    """A client of the server that is meant, which says when it has to wait for it; raises NoServer."""
    from levada.cli.waiting import Waiting
    from levada.sdk.client import Client

    token = None
    if not any((server, state, os.environ.get("LEVADA_SERVER"), os.environ.get("LEVADA_STATE"))):
        from levada.cli import config

        server, token, state = config.place(os.environ.get("LEVADA_CONTEXT") or None)
    return Client(
        server,
        token,
        state=state,
        timeout_s=_QUICK_S if timeout_s is None else timeout_s,
        patience_s=patience_s,
        waiting=None if quiet else lambda url: Waiting(f"waiting for the server at {url}"),
    )


def completed(names: Callable[[Client], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    """A completion from what the server of the flags so far knows; nothing where it does not answer at once."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from levada.errors import LevadaError

        flags = context.params
        try:
            given = (flags.get("server"), flags.get("state"))
            found = names(connect(*given, timeout_s=2.0, patience_s=0.0, quiet=True))
        except (LevadaError, OSError, ValueError, KeyError):
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _jobs(client: Client) -> list[str]:
    found = client.jobs()
    return list(dict.fromkeys([*(job["id"] for job in found), *(job["workload"] for job in found)]))


_complete_jobs = completed(_jobs)
_complete_nodes = completed(lambda client: [node["name"] for node in client.nodes()])

_JOB_HELP = "Its id, the beginning of it, its last four characters, or its workload."
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help=_JOB_HELP, autocompletion=_complete_jobs, show_default=False)
]
JobNames = Annotated[
    list[str], typer.Argument(metavar="JOB...", help=_JOB_HELP, autocompletion=_complete_jobs, show_default=False)
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=_complete_nodes, show_default=False)
]
