"""The `Service` of a live server, composed of one part per area of the API."""

from __future__ import annotations

import msgspec

from levada.api.types import SnapshotView
from levada.live import views
from levada.live.live import Live
from levada.live.service.cluster import ClusterService
from levada.live.service.history import HistoryService
from levada.live.service.jobs import JobService
from levada.live.service.submissions import SubmissionService
from levada.live.service.workers import WorkerService
from levada.live.store import StoreError


class Service:
    """Entry point for all requests to one live server; implements `server.interfaces.ServiceInterface`."""

    def __init__(self, live: Live) -> None:
        self.live, self.loop = live, live.loop
        self.submissions = SubmissionService(live.loop, live.free_name)
        self.jobs = JobService(live.loop)
        self.cluster = ClusterService(live.loop)
        self.history = HistoryService(live.loop)
        self.workers = WorkerService(live.loop)

    def ready(self) -> str:
        """Return "" when the server can act, else the reason why it cannot."""
        if why := self.loop.trouble or self.live.unrenewed:
            return why
        try:
            self.live.store.check_room()
        except StoreError as full:
            return str(full)
        return ""

    def size(self) -> int:
        """Return the size of the scheduling problem: active jobs plus devices."""
        return self.loop.engine.query.size

    def snapshot(self) -> SnapshotView:
        """Return policy, nodes, queues and active jobs as one document."""
        now = self.loop.clock.now()
        positions = self.loop.engine.query.positions()
        return {
            "time": views.timestamp(now),
            "revision": self.loop.engine.query.revision,
            "policy": self.cluster.policy(),
            "nodes": self.cluster.nodes(),
            "queues": self.cluster.queues(),
            "jobs": [
                {**self.loop.view(record, now, positions), "document": msgspec.json.decode(record.about.document)}
                for record in self.loop.records.by_id.values()
                if record.result is None
            ],
        }
