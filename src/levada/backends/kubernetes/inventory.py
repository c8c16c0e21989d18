"""Inventory: nodes, their classes and foreign use.

Changes are reported, at most 4 times per second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from levada.backends.kubernetes.cache import Cache
from levada.backends.kubernetes.eligibility import ANY, NodeDemand
from levada.backends.kubernetes.nodes import device_ids, engine_node, gpus_of, is_lost
from levada.backends.kubernetes.objects import NodeObject, PodObject, SliceObject
from levada.backends.kubernetes.outbox import Outbox
from levada.backends.kubernetes.resources import PodDemand, pod_demand
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.events import ForeignAppeared, ForeignGone, NodesAdded, NodesChanged, NodesLost, NodesRemoved

#: Prefix of the ids of foreign use, one entry per node.
PREFIX = "node/"
#: Changes of this time are reported together.
_COALESCE_S = 0.25


class ClusterInventory:
    """Reports nodes and foreign use to the engine. Work per change is proportional to the nodes touched."""

    def __init__(
        self,
        nodes: Cache[NodeObject],
        slices: Cache[SliceObject],
        pods: Cache[PodObject],
        outbox: Outbox,
        *,
        is_own: Callable[[PodObject], bool],
        used_ids: Callable[[], Mapping[str, AbstractSet[str]]],
    ) -> None:
        """*is_own*: whether a pod belongs to a grant; *used_ids*: the device ids that grants name, by node."""
        self._nodes, self._slices, self._pods, self._outbox = nodes, slices, pods, outbox
        self._is_own, self._used_ids = is_own, used_ids
        self._known: dict[str, Node] = {}
        self._lost: set[str] = set()
        self._foreign: dict[str, Foreign] = {}
        self._classes: dict[str, NodeDemand] = {ANY: NodeDemand()}
        self._dirty: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        #: Nodes to look at again after some time: not ready, or with more ids than GPUs.
        self._unsettled: set[str] = set()
        self._is_open = False

    def open(self, foreign: Sequence[Foreign]) -> Cluster:
        """Return all nodes, and report the difference to the foreign use that was reported before."""
        self._foreign = {entry.id: entry for entry in foreign if entry.id.startswith(PREFIX)}
        self._is_open = True
        names = [name for _, name in self._nodes.objects]
        used = self._used_ids()
        for name in names:
            self._look(name, used)
        self._report_foreign({*names, *(entry.removeprefix(PREFIX) for entry in self._foreign)})
        return self.cluster()

    def cluster(self) -> Cluster:
        """The nodes that are not lost."""
        return Cluster(nodes=tuple(self._known[name] for name in sorted(self._known) if name not in self._lost))

    def has(self, node: str) -> bool:
        """Whether the cluster has a node of this name."""
        return self._nodes.get("", node) is not None

    def class_of(self, demand: NodeDemand) -> str:
        """The name of a class; the next report opens nodes to a new one."""
        name = demand.name
        if name not in self._classes:
            self._classes[name] = demand
            if self._is_open:
                # At once: the job that brought the class must not be decided without it.
                self._report(set(self._known))
        return name

    def touch(self, names: Iterable[str]) -> None:
        """Look at nodes again soon."""
        self._dirty.update(name for name in names if name)
        if self._dirty and self._timer is None and self._is_open:
            self._timer = asyncio.get_running_loop().call_later(_COALESCE_S, self._flush)

    def tick(self) -> None:
        """Look at nodes whose state depends on time or on grants."""
        self.touch(self._unsettled)

    def close(self) -> None:
        """Stop reporting."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        dirty, self._dirty = self._dirty, set()
        self._report(dirty)

    def _report(self, names: set[str]) -> None:
        self._report_nodes(names)
        self._report_foreign(names)

    def _report_nodes(self, names: set[str]) -> None:
        added, changed, lost, removed = [], [], [], []
        for name in sorted(names):
            before, was_lost = self._known.get(name), name in self._lost
            node = self._look(name)
            if node is None:
                if before is not None:
                    lost += [] if was_lost else [name]
                    removed.append(name)
            elif name in self._lost:
                lost += [] if was_lost or before is None else [name]
            elif before is None or was_lost:
                added.append(node)
            elif node != before:
                changed.append(node)
        for event in (
            *([NodesLost(at=0.0, names=tuple(lost))] if lost else ()),
            *([NodesRemoved(at=0.0, names=tuple(removed))] if removed else ()),
            *([NodesAdded(at=0.0, nodes=tuple(added))] if added else ()),
            *([NodesChanged(at=0.0, nodes=tuple(changed))] if changed else ()),
        ):
            self._outbox.add(event)

    def _look(self, name: str, used: Mapping[str, AbstractSet[str]] | None = None) -> Node | None:
        """Compute a node; None if the cluster does not have it. *used*: `used_ids`, if it is known already."""
        found = self._nodes.get("", name)
        self._unsettled.discard(name)
        if found is None:
            self._known.pop(name, None)
            self._lost.discard(name)
            return None
        before = self._known.get(name)
        ids = tuple(device.id for device in before.devices) if before is not None else ()
        slices = [each.spec for each in self._slices.by("node", name)]
        count, *_ = gpus = gpus_of(found, slices)
        if count != len(ids):
            used = self._used_ids() if used is None else used
            ids = device_ids(count, ids, used.get(name, frozenset()))
        node = engine_node(found, gpus, ids, self._classes.values())
        if is_lost(found, time.time()):
            self._lost.add(name)
        else:
            self._lost.discard(name)
        if found.ready.status != "True" or len(ids) > count:
            self._unsettled.add(name)
        self._known[name] = node
        return node

    def _report_foreign(self, names: set[str]) -> None:
        appeared, gone = [], []
        for name in sorted(names):
            others = [pod for pod in self._pods.by("node", name) if not self._is_own(pod)]
            entry = foreign_use(name, others) if name in self._known else None
            known = self._foreign.get(PREFIX + name)
            if entry is None:
                if known is not None:
                    del self._foreign[known.id]
                    gone.append(known.id)
            elif entry != known:
                self._foreign[entry.id] = entry
                appeared.append(entry)
        if gone:
            self._outbox.add(ForeignGone(at=0.0, ids=tuple(gone)))
        if appeared:
            self._outbox.add(ForeignAppeared(at=0.0, foreign=tuple(appeared)))


def foreign_use(node: str, pods: Iterable[PodObject]) -> Foreign | None:
    """What pods that Levada does not manage take from a node; None if that is nothing."""
    total = sum((pod_demand(pod.spec) for pod in pods if not pod.is_over), PodDemand())
    if total == PodDemand():
        return None
    return Foreign(id=PREFIX + node, node=node, milli=1000 * total.gpus, cpu=total.cpu, memory=total.memory)


def node_heartbeat(old: NodeObject | None, new: NodeObject | None) -> bool:
    """Whether a change of a node is nothing but a heartbeat."""
    if old is None or new is None:
        return False
    return (
        old.spec == new.spec
        and old.status.allocatable == new.status.allocatable
        and old.metadata.labels == new.metadata.labels
        and _health(old) == _health(new)
    )


def _health(node: NodeObject) -> tuple[str, str]:
    return node.ready.status, node.ready.last_transition_time
