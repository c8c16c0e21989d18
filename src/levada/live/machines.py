"""What operators do: nodes, queues, policies, reservations."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

import msgspec

from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.queue import faults_of
from levada.core.types import WHOLE
from levada.engine import Options
from levada.engine.faults import EngineFault
from levada.errors import BadInput, Fault, NotFound, Refused, did_you_mean
from levada.live import views
from levada.live.intake import queue_of
from levada.live.loop import Loop
from levada.live.preview import cuts, warning
from levada.plugins import find_policy
from levada.policies.table import POLICIES

_log = logging.getLogger(__name__)

_LONGEST_RESERVATION_S = 365 * 86_400.0
#: Ids of what is reserved begin so, and go on with the moment at which it ends.
_RESERVED = "reservation:"
_LOST = "Lost"


def is_reservation(name: str) -> bool:
    """Whether this use of others is room that a user reserved."""
    return name.startswith(_RESERVED)


class Machines:
    """Nodes, queues and the policy, for `Service`."""

    loop: Loop

    # --- nodes ------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes."""
        return views.nodes(self.loop.engine.query)

    async def cordon(self, node: str, *, cordoned: bool) -> dict[str, Any]:
        """No new work on a node, or again."""
        self._node(node)
        await self.loop.tell(ev.NodesCordoned(at=0.0, names=(node,), cordoned=cordoned))
        return self._view(node)

    async def drain(self, node: str, *, force: bool) -> dict[str, Any]:
        """No new work on a node, and who may be stopped leaves it, now or as soon as it may; with *force* all do."""
        self._node(node)
        await self.loop.tell(ev.NodesDrained(at=0.0, names=(node,), force=force))
        return self._view(node)

    async def remove_node(self, name: str) -> None:
        """Forgets a node that is lost; one that joins later under its name is new."""
        self._node(name)
        node = self._view(name)
        if node["phase"] != _LOST:
            raise Refused(f"the node {name} is there: drain it, stop its agent, and remove it once it is lost")
        if node["jobs"]:
            raise Refused(f"the node {name} still has jobs ({', '.join(node['jobs'])}): wait for them, or cancel them")
        await self.loop.tell(ev.NodesRemoved(at=0.0, names=(name,)))
        if any(each["name"] == name for each in self.nodes()):
            raise Refused(f"the node {name} has just come back")

    def _node(self, name: str) -> None:
        """Raises NotFound where there is no such node."""
        if not self.loop.engine.query.cluster.is_known(name):
            names = [node["name"] for node in self.nodes()]
            raise NotFound(f"there is no node {name}" + did_you_mean(name, names, "`levada nodes` lists them"))

    def _view(self, name: str) -> dict[str, Any]:
        return next(node for node in self.nodes() if node["name"] == name)

    async def reserve(
        self, *, node: str | None, gpu_type: str | None, gpus: int, seconds: float, user: str
    ) -> dict[str, Any]:
        """Keeps free GPUs from jobs for a time."""
        if not 0 < seconds <= _LONGEST_RESERVATION_S:
            raise BadInput.one(f"must be above 0 and at most {_LONGEST_RESERVATION_S:.0f}", "seconds")
        if gpus < 1:
            raise BadInput.one("must be at least 1", "gpus")
        query = self.loop.engine.query
        if node is not None:
            self._node(node)
        if gpu_type is not None and gpu_type not in query.cluster.types:
            names = list(query.cluster.types)
            raise NotFound(f"there is no GPU type {gpu_type}" + did_you_mean(gpu_type, names))
        devices = query.free_devices(node, gpu_type)
        if len(devices) < gpus:
            raise Refused(
                f"{len(devices)} such GPUs are free, {gpus} are asked for; ask for fewer, or drain a node first"
            )
        until = self.loop.clock.now() + seconds
        name = f"{_RESERVED}{until:.3f}:{user}:{secrets.token_hex(3)}"
        by_node: dict[str, list[str]] = {}
        for where, device in devices[:gpus]:
            by_node.setdefault(where, []).append(device)
        kept = tuple(
            Foreign(id=f"{name}:{where}", node=where, devices=tuple(ids), milli=WHOLE * len(ids))
            for where, ids in by_node.items()
        )
        await self.loop.tell(ev.ForeignAppeared(at=0.0, foreign=kept))
        return {"id": name, "devices": by_node, "until": views.moment(until)}

    def overdue_reservations(self) -> tuple[str, ...]:
        """What was reserved and is so no longer."""
        now = self.loop.clock.now()
        names = [name for name in self.loop.engine.query.foreign if is_reservation(name)]
        return tuple(name for name in names if float(name.split(":")[1]) <= now)

    # --- queues -----------------------------------------------------------------------------------------------------

    def queues(self) -> list[dict[str, Any]]:
        """All queues."""
        return views.queues(self.loop.engine.query)

    async def put_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        """Makes or changes a queue."""
        queue = queue_of(document)
        others = [each for each in self.loop.engine.query.queue_values if each.name != queue.name]
        await self._set_queues([*others, queue])
        return next(each for each in self.queues() if each["name"] == queue.name)

    async def drop_queue(self, name: str) -> None:
        """Removes a queue that nobody uses."""
        there = {each["name"]: each for each in self.queues()}
        if name not in there:
            raise NotFound(f"there is no queue {name}" + did_you_mean(name, there, "`levada queues` lists them"))
        if there[name]["running"] or there[name]["waiting"]:
            raise Refused(f"jobs are in the queue {name}; move or cancel them first")
        await self._set_queues([each for each in self.loop.engine.query.queue_values if each.name != name])

    async def _set_queues(self, queues: list[Any]) -> None:
        faults = faults_of(queues)
        if faults:
            raise BadInput([Fault(f"queue {name}" if name else "", text) for name, text in faults])
        await self.loop.tell(ev.QueuesChanged(at=0.0, queues=tuple(queues)))

    # --- policy -----------------------------------------------------------------------------------------------------

    def policy(self) -> dict[str, Any]:
        """Who decides: `{"name", "options", "rate_limit_s"}`."""
        query = self.loop.engine.query
        return {
            "name": query.policy.name,
            "options": dict(query.policy_options),
            "rate_limit_s": query.options.rate_limit_s,
            "rejections": query.rejections,
            "last_rejection": query.last_rejection or None,
        }

    def policies(self) -> list[dict[str, Any]]:
        """The policies at hand: `{"name", "aliases", "text"}`."""
        return [{"name": each.name, "aliases": list(each.aliases), "text": each.summary} for each in POLICIES]

    async def set_policy(self, name: str, options: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Lets another policy decide; `warnings` tell which running jobs it cuts. With *dry_run* nothing changes."""
        find_policy(name, options)
        warnings = await self._warnings(name, options)
        if not dry_run:
            await self.loop.tell(ev.PolicyChanged(at=0.0, name=name, options=options))
        return {**self.policy(), "warnings": warnings}

    async def _warnings(self, policy: str, options: dict[str, Any]) -> list[str]:
        query, now = self.loop.engine.query, self.loop.clock.now()
        running = len(query.holders())
        if not running:
            return []
        look = asyncio.to_thread(cuts, self.loop.engine.fork(), now, policy, options)
        try:
            found = await asyncio.wait_for(look, query.options.decide_limit_s)
        except EngineFault:
            _log.exception("cannot preview policy %s: engine fault", policy)
            return [f"{policy} could not be previewed (internal error): what it does is not known."]
        except TimeoutError:
            return [f"{policy} did not decide within {query.options.decide_limit_s:g} s: what it does is not known."]
        return [warning(policy, found, running)] if found else []

    async def set_rate_limit(self, seconds: float) -> dict[str, Any]:
        """The least time between two decisions."""
        try:
            Options(rate_limit_s=seconds)
        except (ValueError, TypeError, msgspec.ValidationError) as bad:
            raise BadInput.one(str(bad)) from None
        await self.loop.tell(ev.OptionsChanged(at=0.0, options={"rate_limit_s": seconds}))
        return self.policy()
