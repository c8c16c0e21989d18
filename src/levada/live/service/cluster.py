"""Requests of operators: nodes, reservations, queues and the policy."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from levada.api.types import CurrentPolicyView, NodeView, PolicyView, QueueView, ReservationView
from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.queue import faults_of
from levada.core.types import WHOLE
from levada.engine import Options
from levada.engine.faults import EngineFault
from levada.errors import BadInput, Fault, NotFound, Refused, did_you_mean
from levada.live import reservations, views
from levada.live.loop import Loop
from levada.live.manifest import queue_of
from levada.live.preview import shrunk_jobs, warning
from levada.plugins import find_policy
from levada.policies.catalog import POLICIES

_log = logging.getLogger(__name__)

_MAX_RESERVATION_S = 365 * 86_400.0
_LOST = "Lost"


class ClusterService:
    """Reads and changes nodes, reservations, queues and the policy."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    # --- nodes ------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeView]:
        """Return all nodes."""
        return views.nodes(self._loop.engine.query)

    async def cordon(self, node: str, *, cordoned: bool) -> NodeView:
        """Cordon or uncordon a node."""
        self._check_node(node)
        await self._loop.apply(ev.NodesCordoned(at=0.0, names=(node,), cordoned=cordoned))
        return self._node(node)

    async def drain(self, node: str, *, force: bool) -> NodeView:
        """Cordon a node and preempt its jobs as soon as they may be stopped; with *force* all of them now."""
        self._check_node(node)
        await self._loop.apply(ev.NodesDrained(at=0.0, names=(node,), force=force))
        return self._node(node)

    async def remove_node(self, name: str) -> None:
        """Remove a lost node; Refused while it is connected or has jobs. A node that joins under its name is new."""
        self._check_node(name)
        node = self._node(name)
        if node["phase"] != _LOST:
            raise Refused(f"the node {name} is connected: drain it, stop its agent, and remove it once it is lost")
        if node["jobs"]:
            raise Refused(f"the node {name} still has jobs ({', '.join(node['jobs'])}): wait for them, or cancel them")
        await self._loop.apply(ev.NodesRemoved(at=0.0, names=(name,)))
        if any(present["name"] == name for present in self.nodes()):
            raise Refused(f"the node {name} has just reconnected")

    def _check_node(self, name: str) -> None:
        """Raise NotFound for an unknown node."""
        if not self._loop.engine.query.cluster.is_known(name):
            names = [node["name"] for node in self.nodes()]
            raise NotFound(f"there is no node {name}" + did_you_mean(name, names, "`levada nodes` lists them"))

    def _node(self, name: str) -> NodeView:
        return next(node for node in self.nodes() if node["name"] == name)

    async def reserve(
        self, *, node: str | None, gpu_type: str | None, gpus: int, seconds: float, user: str
    ) -> ReservationView:
        """Reserve free GPUs, so that no job uses them."""
        if not 0 < seconds <= _MAX_RESERVATION_S:
            raise BadInput.one(f"must be above 0 and at most {_MAX_RESERVATION_S:.0f}", "seconds")
        if gpus < 1:
            raise BadInput.one("must be at least 1", "gpus")
        query = self._loop.engine.query
        if node is not None:
            self._check_node(node)
        if gpu_type is not None and gpu_type not in query.cluster.types:
            names = list(query.cluster.types)
            raise NotFound(f"there is no GPU type {gpu_type}" + did_you_mean(gpu_type, names))
        devices = query.free_devices(node, gpu_type)
        if len(devices) < gpus:
            raise Refused(
                f"{gpus} GPUs requested, {len(devices)} matching GPUs are free; request fewer, or drain a node first"
            )
        until = self._loop.clock.now() + seconds
        reservation = reservations.new_id(until, user)
        by_node: dict[str, list[str]] = {}
        for name, device in devices[:gpus]:
            by_node.setdefault(name, []).append(device)
        foreign = tuple(
            Foreign(id=f"{reservation}:{name}", node=name, devices=tuple(ids), milli=WHOLE * len(ids))
            for name, ids in by_node.items()
        )
        await self._loop.apply(ev.ForeignAppeared(at=0.0, foreign=foreign))
        return {"id": reservation, "devices": by_node, "until": views.timestamp(until)}

    # --- queues -----------------------------------------------------------------------------------------------------

    def queues(self) -> list[QueueView]:
        """Return all queues."""
        return views.queues(self._loop.engine.query)

    async def put_queue(self, document: dict[str, Any]) -> QueueView:
        """Create or replace a queue."""
        queue = queue_of(document)
        others = [other for other in self._loop.engine.query.queue_values if other.name != queue.name]
        await self._set_queues([*others, queue])
        return next(view for view in self.queues() if view["name"] == queue.name)

    async def drop_queue(self, name: str) -> None:
        """Remove a queue; Refused while it has jobs."""
        queues = {view["name"]: view for view in self.queues()}
        if name not in queues:
            raise NotFound(f"there is no queue {name}" + did_you_mean(name, queues, "`levada queues` lists them"))
        if queues[name]["running"] or queues[name]["waiting"]:
            raise Refused(f"the queue {name} has jobs; move or cancel them first")
        await self._set_queues([queue for queue in self._loop.engine.query.queue_values if queue.name != name])

    async def _set_queues(self, queues: list[Any]) -> None:
        faults = faults_of(queues)
        if faults:
            raise BadInput([Fault(f"queue {name}" if name else "", text) for name, text in faults])
        await self._loop.apply(ev.QueuesChanged(at=0.0, queues=tuple(queues)))

    # --- policy -----------------------------------------------------------------------------------------------------

    def policy(self) -> CurrentPolicyView:
        """Return the active policy: `{"name", "options", "rate_limit_s", "rejections", "last_rejection"}`."""
        query = self._loop.engine.query
        return {
            "name": query.policy.name,
            "options": dict(query.policy_options),
            "rate_limit_s": query.options.rate_limit_s,
            "rejections": query.rejections,
            "last_rejection": query.last_rejection or None,
        }

    def policies(self) -> list[PolicyView]:
        """Return the built-in policies: `{"name", "aliases", "text"}`."""
        return [{"name": info.name, "aliases": list(info.aliases), "text": info.summary} for info in POLICIES]

    async def set_policy(self, name: str, options: dict[str, Any], *, dry_run: bool = False) -> CurrentPolicyView:
        """Switch the policy, unless *dry_run*; `warnings` lists running jobs that its first decision shrinks."""
        find_policy(name, options)
        warnings = await self._warnings(name, options)
        if not dry_run:
            await self._loop.apply(ev.PolicyChanged(at=0.0, name=name, options=options))
        return {**self.policy(), "warnings": warnings}

    async def _warnings(self, policy: str, options: dict[str, Any]) -> list[str]:
        query, now = self._loop.engine.query, self._loop.clock.now()
        running = len(query.holders())
        if not running:
            return []
        preview = asyncio.to_thread(shrunk_jobs, self._loop.engine.fork(), now, policy, options)
        try:
            cut_jobs = await asyncio.wait_for(preview, query.options.decide_limit_s)
        except EngineFault:
            _log.exception("cannot preview policy %s: engine fault", policy)
            return [f"{policy} could not be previewed (internal error); its effect on running jobs is unknown."]
        except TimeoutError:
            return [f"{policy} did not decide within {query.options.decide_limit_s:g} s; its effect is unknown."]
        return [warning(policy, cut_jobs, running)] if cut_jobs else []

    async def set_rate_limit(self, seconds: float) -> CurrentPolicyView:
        """Set the minimum time between two decisions."""
        try:
            Options(rate_limit_s=seconds)
        except (ValueError, TypeError, msgspec.ValidationError) as bad:
            raise BadInput.one(str(bad)) from None
        await self._loop.apply(ev.OptionsChanged(at=0.0, options={"rate_limit_s": seconds}))
        return self.policy()
