"""/api/v1/nodes, /queues, /reservations: the machines and who shares them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request

from levada.errors import BadInput
from levada.server.body import StrictRoute
from levada.server.context import Ctx
from levada.server.gate import Operator, Viewer, note
from levada.server.models import Name, NamedView, Page, Reserve
from levada.server.ports import Json

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)


@router.get("/nodes", tags=["nodes"], response_model=Page[NamedView])
async def nodes(context: Ctx, who: Viewer) -> Any:
    """List the nodes."""
    return {"items": context.service.nodes()}


@router.post("/nodes/{name}/cordon", tags=["nodes"], response_model=NamedView)
async def cordon(context: Ctx, who: Operator, name: Name) -> Any:
    """Give a node no new work."""
    return await context.service.cordon(name, cordoned=True)


@router.post("/nodes/{name}/drain", tags=["nodes"], response_model=NamedView)
async def drain(
    context: Ctx,
    who: Operator,
    name: Name,
    force: Annotated[bool, Query(description="Stop jobs there that may not be stopped, too.")] = False,
) -> Any:
    """Give a node no new work, and let what runs there go elsewhere; `draining` names who stays for now, and why."""
    return await context.service.drain(name, force=force)


@router.post("/nodes/{name}/uncordon", tags=["nodes"], response_model=NamedView)
async def uncordon(context: Ctx, who: Operator, name: Name) -> Any:
    """Give a node work again."""
    return await context.service.cordon(name, cordoned=False)


@router.delete("/nodes/{name}", tags=["nodes"], status_code=204)
async def remove_node(context: Ctx, who: Operator, name: Name) -> None:
    """Remove a node that is lost; one that joins later under its name is new."""
    await context.service.remove_node(name)


@router.post("/reservations", tags=["nodes"], status_code=201)
async def reserve(request: Request, context: Ctx, who: Operator, wanted: Reserve) -> dict[str, Any]:
    """Keep GPUs free of jobs for a time."""
    note(request, f"{wanted.gpus} GPUs for {wanted.seconds:g} s")
    return await context.service.reserve(
        node=wanted.node, gpu_type=wanted.gpu_type, gpus=wanted.gpus, seconds=wanted.seconds, user=who.user
    )


@router.get("/queues", tags=["queues"], response_model=Page[NamedView])
async def queues(context: Ctx, who: Viewer) -> Any:
    """List the queues."""
    return {"items": context.service.queues()}


@router.put("/queues/{name}", tags=["queues"], response_model=NamedView)
async def put_queue(
    context: Ctx,
    who: Operator,
    name: Name,
    document: Annotated[Json, Body(description="A queue file as JSON: apiVersion, kind, metadata, spec.")],
) -> Any:
    """Make a queue or change it."""
    metadata = document.get("metadata")
    given = metadata.get("name") if isinstance(metadata, dict) else None
    if isinstance(given, str) and given != name:
        raise BadInput.one(f"must be {name}, as in the address", "metadata.name")
    return await context.service.put_queue(document)


@router.delete("/queues/{name}", tags=["queues"], status_code=204)
async def drop_queue(context: Ctx, who: Operator, name: Name) -> None:
    """Remove a queue that nobody uses."""
    await context.service.drop_queue(name)
