"""Python client: one method per command of `levada`.

    from levada.sdk import Client

    client = Client()                       # the server of `levada up`, or LEVADA_SERVER and LEVADA_TOKEN
    [job] = client.submit(document)         # a job file as a dict
    job = client.wait(job["id"])            # until it has ended
    for line in client.logs(job["id"]):
        print(line["text"])

`AsyncClient` has the same methods as coroutines. Errors are those of `levada.errors`. The client needs only the
standard library; types of answers are imported at their first use.
"""

from typing import TYPE_CHECKING, Any

from levada.sdk.client import Client
from levada.sdk.discovery import Address, find

__all__ = ["Address", "AsyncClient", "Client", "Curve", "Event", "Job", "LogLine", "Node", "Queue", "Token", "find"]

if TYPE_CHECKING:
    from levada.api.types import CurveView as Curve
    from levada.api.types import EventView as Event
    from levada.api.types import JobView as Job
    from levada.api.types import LogLineView as LogLine
    from levada.api.types import NodeView as Node
    from levada.api.types import QueueView as Queue
    from levada.api.types import TokenView as Token
    from levada.sdk.aio import AsyncClient


def __getattr__(name: str) -> Any:
    """Import `AsyncClient` (and with it asyncio) or the types of answers at their first use."""
    if name == "AsyncClient":
        from levada.sdk.aio import AsyncClient

        return AsyncClient
    if name in __all__:
        from levada.api import types

        return getattr(types, f"{name}View")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
