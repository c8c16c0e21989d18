"""/api/v1/nodes, /queues, /reservations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request

from levada.api.types import NodeView, QueueView, ReservationView
from levada.errors import BadInput
from levada.server.auth import Operator, Viewer, note
from levada.server.context import Ctx
from levada.server.interfaces import Json
from levada.server.models import Name, Page, Reserve
from levada.server.request_body import StrictRoute

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)


@router.get("/nodes", tags=["nodes"], response_model=Page[NodeView])
async def nodes(context: Ctx, caller: Viewer) -> Any:
    """List the nodes."""
    return {"items": context.service.cluster.nodes()}


@router.post("/nodes/{name}/cordon", tags=["nodes"], response_model=NodeView)
async def cordon(context: Ctx, caller: Operator, name: Name) -> Any:
    """Cordon a node: it gets no new jobs."""
    return await context.service.cluster.cordon(name, cordoned=True)


@router.post("/nodes/{name}/drain", tags=["nodes"], response_model=NodeView)
async def drain(
    context: Ctx,
    caller: Operator,
    name: Name,
    force: Annotated[bool, Query(description="Also stop jobs that are protected or not preemptible.")] = False,
) -> Any:
    """Cordon a node and move its jobs to other nodes; `draining` lists jobs that stay for now, with the reason."""
    return await context.service.cluster.drain(name, force=force)


@router.post("/nodes/{name}/uncordon", tags=["nodes"], response_model=NodeView)
async def uncordon(context: Ctx, caller: Operator, name: Name) -> Any:
    """Uncordon a node."""
    return await context.service.cluster.cordon(name, cordoned=False)


@router.delete("/nodes/{name}", tags=["nodes"], status_code=204)
async def remove_node(context: Ctx, caller: Operator, name: Name) -> None:
    """Remove a lost node; a node that joins later under its name is new."""
    await context.service.cluster.remove_node(name)


@router.post("/reservations", tags=["nodes"], status_code=201)
async def reserve(request: Request, context: Ctx, caller: Operator, body: Reserve) -> ReservationView:
    """Reserve free GPUs for a time: no job uses them."""
    note(request, f"{body.gpus} GPUs for {body.seconds:g} s")
    return await context.service.cluster.reserve(
        node=body.node, gpu_type=body.gpu_type, gpus=body.gpus, seconds=body.seconds, user=caller.user
    )


@router.get("/queues", tags=["queues"], response_model=Page[QueueView])
async def queues(context: Ctx, caller: Viewer) -> Any:
    """List the queues."""
    return {"items": context.service.cluster.queues()}


@router.put("/queues/{name}", tags=["queues"], response_model=QueueView)
async def put_queue(
    context: Ctx,
    caller: Operator,
    name: Name,
    document: Annotated[Json, Body(description="A queue file as JSON.")],
) -> Any:
    """Create or replace a queue."""
    metadata = document.get("metadata")
    named = metadata.get("name") if isinstance(metadata, dict) else None
    if isinstance(named, str) and named != name:
        raise BadInput.one(f"must be {name}, as in the path", "metadata.name")
    return await context.service.cluster.put_queue(document)


@router.delete("/queues/{name}", tags=["queues"], status_code=204)
async def drop_queue(context: Ctx, caller: Operator, name: Name) -> None:
    """Remove a queue without jobs."""
    await context.service.cluster.drop_queue(name)
