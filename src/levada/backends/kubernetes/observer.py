"""Observer: the caches of the cluster and what follows from their changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from levada.backends.kubernetes.client import NODES, PODS, ApiError, KubernetesApi
from levada.backends.kubernetes.fence import LeaseFence
from levada.backends.kubernetes.inventory import ClusterInventory, node_heartbeat
from levada.backends.kubernetes.job_acks import JobAcks
from levada.backends.kubernetes.job_writer import JobWriter
from levada.backends.kubernetes.kinds import JobKind
from levada.backends.kubernetes.objects import AnyObject, JobObject, NodeObject, PodObject, SliceObject
from levada.backends.kubernetes.outbox import Outbox
from levada.backends.kubernetes.reconciler import JobReconciler
from levada.backends.kubernetes.registry import JobRegistry
from levada.backends.kubernetes.seats import holders
from levada.backends.kubernetes.stamp import Stamp
from levada.backends.kubernetes.watches import Watches
from levada.backends.kubernetes.work import WorkQueue, backoff
from levada.backends.protocol import Observation, Report, Seen
from levada.core import events as ev
from levada.core.cluster import Foreign

_log = logging.getLogger(__name__)
#: Period in which nodes are looked at whose state depends on time.
_TICK_S = 5.0
#: Changes of a job and its pods within this time are handled by one step.
_COALESCE_S = 0.01
#: Without a watch of these the API server counts as away.
_VITAL = frozenset((PODS.plural, NODES.plural))


class ClusterObserver:
    """Keeps caches, passes changes to the registry and the inventory, and steps the jobs that they concern."""

    def __init__(self, api: KubernetesApi, store: str, lease_age_s: Callable[[], float]) -> None:
        self.fence = LeaseFence(api, store, lease_age_s)
        self.outbox = Outbox()
        self.queue = WorkQueue(self._step)
        self.registry = JobRegistry(store, self.outbox, lambda job: self.queue.add(job, _COALESCE_S))
        self.watches = self.registry.watches = Watches(
            api,
            self.fence.name,
            job=self._job_changed,
            pod=self._pod_changed,
            node=self._node_changed,
            slice_=self._slice_changed,
            lease_changed=self._lease_changed,
            connected=self._connection_changed,
        )
        self.inventory = self.registry.inventory = ClusterInventory(
            self.watches.nodes.cache,
            self.watches.slices.cache,
            self.watches.pods.cache,
            self.outbox,
            is_own=self.registry.is_own,
            used_ids=self.registry.used_ids,
        )
        self.writer = JobWriter(api, self.fence, self.watches.pods, self.watches.jobs, self.inventory.has)
        self._reconciler = JobReconciler(self.registry, self.writer, self.outbox, self._see_stamp)
        self._acks = JobAcks(self.outbox)
        self._store = store
        self._ticker: asyncio.Task[None] | None = None
        #: Vital kinds whose watch is broken, and since when.
        self._broken: set[str] = set()
        self._away_since = 0.0
        #: Why reports have ended; empty while the observer works.
        self.failure = ""
        self._is_closed = False

    # --- lifecycle --------------------------------------------------------------------------------------------------

    async def open(self, epoch: int, foreign: Sequence[Foreign]) -> Observation:
        """Take the epoch, wait until all caches are complete, and return what they show."""
        await self._take_epoch(epoch)
        await self.watches.open()
        # Nothing is awaited from here on: the observation is of one moment.
        self.registry.open()
        cluster = self.inventory.open(foreign)
        ended = self._report_endings()
        report = self.outbox.take()
        self.outbox.is_held = False
        for task in self.watches.tasks:
            task.add_done_callback(self._fail)
        self._ticker = asyncio.create_task(self._tick())
        for job in self.registry.jobs:
            self.queue.add(job)
        running = {job: seen for job, seen in self.running().items() if job not in ended}
        return Observation(report=report, running=running, cluster=cluster)

    async def _take_epoch(self, epoch: int) -> None:
        failures = 0
        while True:
            try:
                await self.fence.take(epoch)
                return
            except ApiError as error:
                if not error.is_away:
                    raise
                failures += 1
                _log.warning("cannot reach the API server: %s", error)
                await asyncio.sleep(backoff(failures, 0.5))

    def _report_endings(self) -> set[str]:
        """Report jobs that ended while no server ran, if no pod of theirs holds anything."""
        ended = set()
        for job in self.registry.jobs.values():
            found = self.registry.object_of(job)
            pods = self.registry.pods_of(job, found)
            ending = None if found is None or job.stamp is None else job.kind.ending(found, pods)
            if ending is not None and not holders(pods):
                self._acks.ended(job, pods, ending)
                ended.add(job.id)
        return ended

    def _fail(self, task: asyncio.Task[None]) -> None:
        if not self._is_closed and not self.failure:
            error = None if task.cancelled() else task.exception()
            self.failure = f"the backend stopped ({error!r}); running jobs are not affected: start the server again"
            self.outbox.queue.put_nowait(Report())

    async def close(self) -> None:
        """Stop observing."""
        self._is_closed = True
        self.inventory.close()
        if self._ticker is not None:
            self._ticker.cancel()
        await self.queue.close()
        await self.watches.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.inventory.tick()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def running(self) -> dict[str, Seen]:
        """Jobs whose pods hold resources, by job id."""
        running = {}
        for job in self.registry.jobs.values():
            if job.stamp is None:
                continue
            held = holders(self.registry.pods_of(job, self.registry.object_of(job)))
            if held:
                count = sum(pod.status.phase == "Running" and not pod.is_leaving for pod in held)
                running[job.id] = Seen(number=job.stamp.number, generation=job.stamp.generation, running=count)
        return running

    async def _step(self, identity: str) -> float | None:
        job = self.registry.jobs.get(identity)
        if job is None or self.is_away:
            return None  # all jobs are looked at when the API server is back
        return await self._reconciler.step(job)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _job_changed(self, kind: JobKind, old: JobObject | None, new: JobObject | None) -> None:
        found = new or old
        assert found is not None
        self.writer.expectations.met(found.metadata.uid)
        self.registry.job_changed(kind, old, new)

    def _pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        found = new or old
        assert found is not None
        self.writer.expectations.met(found.metadata.uid)
        if old is not None and new is not None and old.standing == new.standing:
            return
        self.inventory.touch(pod.node for pod in (old, new) if pod is not None)
        self.registry.pod_changed(old, new)

    def _node_changed(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if not node_heartbeat(old, new):
            self.inventory.touch(node.metadata.name for node in (old, new) if node is not None)

    def _slice_changed(self, old: SliceObject | None, new: SliceObject | None) -> None:
        self.inventory.touch(found.spec.node_name for found in (old, new) if found is not None)

    def _lease_changed(self, _old: AnyObject | None, new: AnyObject | None) -> None:
        if new is not None:
            self.fence.observe(new)

    def _see_stamp(self, stamp: Stamp) -> None:
        if stamp.store == self._store:
            self.fence.see(stamp.epoch)

    def _connection_changed(self, kind: str, works: bool) -> None:
        """Time limits of operations do not run while the API server is away."""
        if kind not in _VITAL:
            return
        loop, was_away = asyncio.get_running_loop(), self.is_away
        (self._broken.discard if works else self._broken.add)(kind)
        if self.is_away and not was_away:
            self._away_since = loop.time()
            self.outbox.add(ev.BackendAway(at=0.0))
        elif was_away and not self.is_away:
            for job in self.registry.jobs.values():
                job.since += loop.time() - self._away_since
                self.queue.add(job.id)
            self.outbox.add(ev.BackendBack(at=0.0))

    @property
    def is_away(self) -> bool:
        """Whether the API server does not answer."""
        return bool(self._broken)
