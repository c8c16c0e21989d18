"""Levada from Python: what the command line does, as calls.

    from levada.sdk import Client

    client = Client()                       # the server of `levada up`, or LEVADA_SERVER and LEVADA_TOKEN
    [job] = client.submit(document)         # a job file as a dict
    job = client.wait(job["id"])            # until it is over
    for line in client.logs(job["id"]):
        print(line["text"])

`AsyncClient` has the same verbs to await. Errors are those of `levada.errors`. Nothing but the standard library is
needed, and importing this costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

from levada.sdk.client import Client
from levada.sdk.models import Curve, Event, Job, LogLine, Node, Queue, Token
from levada.sdk.place import Address, find

__all__ = ["Address", "AsyncClient", "Client", "Curve", "Event", "Job", "LogLine", "Node", "Queue", "Token", "find"]

if TYPE_CHECKING:
    from levada.sdk.aio import AsyncClient


def __getattr__(name: str) -> Any:
    """AsyncClient, which brings asyncio along: only who uses it waits for that."""
    if name == "AsyncClient":
        from levada.sdk.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
