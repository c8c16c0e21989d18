"""In-memory service and keys for tests of the HTTP layer: no store, engine or machines."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from levada.api import ENDED
from levada.backends.protocol import Socket
from levada.errors import BadInput, Fault, NotFound, Refused
from levada.live.manifest import prepare, queue_of
from levada.live.store import AuditEntry
from levada.policies.catalog import POLICIES
from levada.server.interfaces import Principal, Role, WorkerIdentity

Json = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MemoryService:
    """Jobs start at once while there are GPUs, and end when a test calls `end`."""

    def __init__(self, gpus: int = 8) -> None:
        self.by_id: dict[str, Json] = {}
        self.versions: dict[str, int] = {}
        self.history_lines: list[Json] = []
        self.lines: dict[str, list[Json]] = {}
        self.keys: dict[tuple[str, str], tuple[str, list[str]]] = {}
        self.queue_of: dict[str, Json] = {}
        self.node: Json = {
            "name": "node-0",
            "phase": "Ready",
            "gpus": {"a100": {"total": gpus, "used": 0}},
            "cpu": None,
            "memory_mib": None,
            "labels": {},
            "jobs": [],
            "draining": None,
            "devices": [{"id": str(index), "type": "a100", "healthy": True} for index in range(gpus)],
        }
        self.current_policy: Json = {"name": "elastic-fifo", "options": {}, "rate_limit_s": 30.0}
        self.reports: list[tuple[str, str, Json]] = []
        #: Job, number and name of workers by a token of the cluster.
        self.identities: dict[str, tuple[str, int, str]] = {}
        self.trouble = ""
        self.news = asyncio.Event()
        self.watches: set[object] = set()
        self.put_queue_now("default", {"weight": 1.0})
        #: One object serves all areas.
        self.submissions = self.jobs = self.cluster = self.history = self.workers = self

    @property
    def open_watches(self) -> int:
        return len(self.watches)

    # -------------------------------------------------------------------------------------------------------- helpers
    def add_event(self, kind: str, job: str | None, text: str, **data: Any) -> None:
        self.history_lines.append(
            {**data, "id": len(self.history_lines) + 1, "time": now(), "type": kind, "job": job, "text": text}
        )
        news, self.news = self.news, asyncio.Event()
        news.set()

    def change(self, job: Json, phase: str) -> Json:
        job["phase"] = phase
        self.versions[job["id"]] += 1
        if phase in ENDED:
            job |= {"gpus": 0, "nodes": [], "workers": [], "gpu_type": None, "finished": now(), "reason": None}
            job["exit_code"] = {"Succeeded": 0, "Failed": 1}.get(phase)
        self.add_event("phase", job["id"], f"is {phase} now", phase=phase)
        used = sum(int(active["gpus"]) for active in self.by_id.values())
        self.node["gpus"]["a100"]["used"] = used
        return job

    def end(self, job_id: str, phase: str = "Succeeded") -> None:
        """End a job."""
        self.change(self.by_id[job_id], phase)

    def add_output(self, job_id: str, text: str) -> None:
        """Add a line of output."""
        self.lines[job_id].append({"worker": "0", "time": now(), "text": text})
        news, self.news = self.news, asyncio.Event()
        news.set()

    def _active(self, job_id: str) -> Json:
        job = self.by_id[job_id]
        if job["phase"] in ENDED:
            raise Refused(f"{job_id} has ended already ({job['phase']})")
        return job

    # ----------------------------------------------------------------------------------------------------------- jobs
    async def submit(
        self, documents: list[Json], *, user: str, key: str | None, audit_entry: AuditEntry | None = None
    ) -> list[Json]:
        digest = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()
        if key is not None and (user, key) in self.keys:
            known, ids = self.keys[user, key]
            if known != digest:
                raise Refused(f"the key {key} was used for other jobs")
            return [self.by_id[job_id] for job_id in ids]
        faults: list[Fault] = []
        prepared = []
        for number, document in enumerate(documents, 1):
            prefix = f"document {number}: " if len(documents) > 1 else ""
            try:
                suffix = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(4))
                prepared += prepare(document, user=user, now=time.time(), suffix=suffix)
            except BadInput as error:
                faults += [Fault(prefix + fault.path, fault.text) for fault in error.faults]
        if faults:
            raise BadInput(faults)
        for submission in prepared:
            if submission.id in self.by_id:
                raise Refused(f"there is a job {submission.id} already")
        jobs = []
        for submission in prepared:
            job = _job(submission, user)
            self.by_id[submission.id] = job
            self.versions[submission.id] = 0
            self.lines[submission.id] = []
            self.add_event("submitted", submission.id, "was submitted")
            if self.node["gpus"]["a100"]["used"] + job["min"] <= self.node["gpus"]["a100"]["total"]:
                job |= {"gpus": job["min"], "gpu_type": "a100", "nodes": ["node-0"], "started": now(), "generation": 1}
                job["reason"] = None
                self.change(job, "Running")
            jobs.append(job)
        if key is not None:
            self.keys[user, key] = digest, [job["id"] for job in jobs]
        return jobs

    def get(self, name: str, *, user: str | None = None) -> Json:
        if name in self.by_id:
            return self.by_id[name]
        ours = [job for job in self.by_id.values() if job["workload"] == name]
        mine = [job for job in ours if job["user"] == user] or ours
        if mine:
            return mine[-1]
        close = [job for job in self.by_id.values() if job["id"].startswith(name) or job["id"].endswith(f"-{name}")]
        if len(close) > 1:
            raise Refused(f"{name} matches several jobs; use more of the id")
        if not close:
            raise NotFound(f"there is no job {name}")
        return close[0]

    def page(
        self,
        *,
        phases: set[str] | None,
        user: str | None,
        queue: str | None,
        labels: dict[str, str],
        after: str | None,
        limit: int,
    ) -> tuple[list[Json], str | None]:
        if after is not None and not (after.isascii() and after.isdigit()):
            raise BadInput.one("was not issued by this server; start without a cursor", "cursor")
        matching = []
        for index, job in enumerate(self.by_id.values()):
            if after is not None and index <= int(after[:18]):
                continue
            if phases is not None and job["phase"] not in phases:
                continue
            if (user not in (None, job["user"])) or (queue not in (None, job["queue"])):
                continue
            if any(job["labels"].get(key) != value for key, value in labels.items()):
                continue
            matching.append((index, job))
        page = matching[:limit]
        return [job for _, job in page], str(page[-1][0]) if len(matching) > limit else None

    async def living(self) -> AsyncIterator[list[Json]]:
        yield [job for job in self.by_id.values() if job["phase"] not in ENDED]

    def version(self, job_id: str) -> str:
        return str(self.versions[job_id])

    async def update(self, job_id: str, changes: Json, *, force: bool = False) -> Json:
        job = self._active(job_id)
        if changes.get("queue", "default") not in self.queue_of:
            raise BadInput.one(f"there is no queue {changes['queue']}", "queue")
        if not changes.get("min", job["min"]) <= changes.get("max", job["max"]):
            raise BadInput.one("must not be above max", "min")
        # Like a store: other requests run before it is done.
        await asyncio.sleep(0)
        job |= {key: value for key, value in changes.items() if key != "weight"}
        self.versions[job_id] += 1
        self.add_event("updated", job_id, "was changed")
        return job

    async def cancel(self, job_id: str) -> Json:
        return self.change(self._active(job_id), "Cancelled")

    async def suspend(self, job_id: str, *, force: bool = False) -> Json:
        return self.change(self._active(job_id), "Suspended")

    async def resume(self, job_id: str) -> Json:
        return self.change(self._active(job_id), "Pending")

    async def scale(self, job_id: str, workers: int, *, force: bool = False) -> Json:
        return {**await self.update(job_id, {"fixed": workers}), "message": f"Fixed at {workers} workers."}

    async def explain(self, job_id: str) -> Json:
        job = self.by_id[job_id]
        return {"job": job_id, "phase": job["phase"], "reason": job["reason"], "would_help": [], "before": []}

    def curve(self, job_id: str) -> Json:
        return {"job": job_id, "workload": self.by_id[job_id]["workload"], "now": None, "points": [], "costs": []}

    async def whatif(self, documents: list[Json], *, user: str, policy: str | None) -> Json:
        submissions = [prepare(document, user=user, now=time.time(), suffix="0000") for document in documents]
        forecasts = [{"job": submission.id} for prepared in submissions for submission in prepared]
        return {"policy": policy or self.current_policy["name"], "now": now(), "jobs": forecasts, "others": []}

    async def logs(
        self,
        job_id: str,
        *,
        worker: str | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        previous: bool,
    ) -> AsyncIterator[Json]:
        if worker not in (None, "0"):
            raise NotFound(f"{job_id} has no worker {worker}")
        seen = len(self.lines[job_id]) - tail if tail is not None and tail < len(self.lines[job_id]) else 0
        while True:
            news = self.news
            for line in self.lines[job_id][seen:]:
                seen += 1
                yield line
            if not follow or self.by_id[job_id]["phase"] in ENDED:
                return
            await news.wait()

    # ---------------------------------------------------------------------------------------------- nodes and queues
    def nodes(self) -> list[Json]:
        return [self.node]

    async def drain(self, node: str, *, force: bool) -> Json:
        return await self.cordon(node, cordoned=True)

    async def cordon(self, node: str, *, cordoned: bool) -> Json:
        if node != self.node["name"]:
            raise NotFound(f"there is no node {node}")
        self.node["phase"] = "Cordoned" if cordoned else "Ready"
        return self.node

    async def remove_node(self, name: str) -> None:
        if name != self.node["name"]:
            raise NotFound(f"there is no node {name}")
        raise Refused(f"the node {name} is connected")

    async def reserve(self, *, node: str | None, gpu_type: str | None, gpus: int, seconds: float, user: str) -> Json:
        if node not in (None, "node-0") or gpu_type not in (None, "a100"):
            raise NotFound("there is no such GPU")
        free = self.node["gpus"]["a100"]["total"] - self.node["gpus"]["a100"]["used"]
        if gpus > free:
            raise Refused(f"{gpus} GPUs requested, {free} are free")
        return {"id": "reservation", "devices": {"node-0": [str(i) for i in range(gpus)]}, "until": now()}

    def queues(self) -> list[Json]:
        return list(self.queue_of.values())

    def put_queue_now(self, name: str, spec: Json) -> Json:
        defaults = {"parent": None, "weight": 1.0, "guaranteed": {}, "limit": {}, "per_user_limit": {}, "borrow": True}
        self.queue_of[name] = {"name": name, **defaults, "used": {}, "running": 0, "waiting": 0, **spec}
        return self.queue_of[name]

    async def put_queue(self, document: Json) -> Json:
        queue = queue_of(document)
        return self.put_queue_now(queue.name, {"weight": queue.weight, "parent": queue.parent})

    async def drop_queue(self, name: str) -> None:
        if name not in self.queue_of:
            raise NotFound(f"there is no queue {name}")
        if name == "default":
            raise Refused("jobs are in the queue default")
        del self.queue_of[name]

    # --------------------------------------------------------------------------------------------------------- policy
    def policy(self) -> Json:
        return self.current_policy

    def policies(self) -> list[Json]:
        return [{"name": info.name, "aliases": list(info.aliases), "text": info.summary} for info in POLICIES]

    async def set_policy(self, name: str, options: Json, *, dry_run: bool = False) -> Json:
        self.current_policy |= {"name": name, "options": options}
        return self.current_policy

    async def set_rate_limit(self, seconds: float) -> Json:
        self.current_policy["rate_limit_s"] = seconds
        return self.current_policy

    # -------------------------------------------------------------------------------------------------------- history
    def _events_after(self, after: int, job: str | None) -> list[Json]:
        return [event for event in self.history_lines[after:] if job in (None, event["job"])]

    async def events(self, *, job: str | None, after: int, limit: int) -> list[Json]:
        return self._events_after(after, job)[:limit]

    def last_event(self) -> int:
        return len(self.history_lines)

    async def watch(self, *, after: int | None, job: str | None) -> AsyncIterator[Json]:
        seen = len(self.history_lines) if after is None else after
        watches, me = self.watches, object()
        watches.add(me)
        try:
            while True:
                news = self.news
                for event in self._events_after(seen, job):
                    yield event
                    seen = event["id"]
                await news.wait()
        finally:
            watches.remove(me)

    def decisions(self, limit: int) -> list[Json]:
        decision = {"revision": 1, "time": now(), "policy": self.current_policy["name"], "failed": None, "took_s": 0.0}
        return [{**decision, "jobs": []}][:limit]

    def decision(self, revision: int) -> Json:
        if revision != 1:
            raise NotFound(f"there is no decision {revision}")
        return self.decisions(1)[0]

    def decision_tally(self) -> list[Json]:
        return [{"policy": self.current_policy["name"], "made": 3, "failed": 1, "seconds": 0.5}]

    def faults(self) -> list[Json]:
        return []

    def fault_tally(self) -> dict[str, int]:
        return {}

    def plans(self, limit: int) -> list[Json]:
        return []

    async def usage(self, by: list[str], since: float) -> list[Json]:
        return [{**dict.fromkeys(by, "-"), "jobs": 0, "gpu_seconds": 0.0, "running_s": 0.0, "waiting_s": 0.0}]

    def snapshot(self) -> Json:
        jobs = [{**job, "document": {}} for job in self.by_id.values()]
        state = {"policy": self.policy(), "nodes": self.nodes(), "queues": self.queues()}
        return {"time": now(), "revision": 1, **state, "jobs": jobs}

    def ready(self) -> str:
        return self.trouble

    # --------------------------------------------------------------------------------------------- workers and agents
    async def identify(self, token: str) -> tuple[str, int, str] | None:
        return self.identities.get(token)

    async def report(self, worker: WorkerIdentity, report: Json) -> Json:
        self.reports.append((self.job(worker)["id"], worker.name, report))
        return {}

    def job(self, worker: WorkerIdentity) -> Json:
        job = self.by_id.get(worker.job)
        if job is None or job["phase"] in ENDED or worker.name != f"g{job['generation']}-0":
            raise Refused(f"job {worker.job} has ended or was replaced; exit")
        return job

    async def serve_agent(self, socket: Socket) -> None:
        while (text := await socket.receive()) is not None:
            await socket.send(text.upper())


class MemoryKeys:
    """Tokens by the digest of their secret."""

    def __init__(self) -> None:
        self.tokens: dict[str, Json] = {}
        self.entries: list[Json] = []

    async def create(self, user: str, role: Role, expires_s: float | None) -> tuple[str, str]:
        secret, token_id = secrets.token_urlsafe(32), secrets.token_hex(6)
        until = None if expires_s is None else time.time() + expires_s
        self.tokens[token_id] = {"digest": _digest(secret), "user": user, "role": role, "until": until, "at": now()}
        return token_id, secret

    async def find(self, secret: str) -> Principal | None:
        digest, principal = _digest(secret), None
        for token_id, token in self.tokens.items():
            if hmac.compare_digest(token["digest"], digest) and (token["until"] or time.time() + 1) > time.time():
                principal = Principal(token["user"], token["role"], token_id)
        return principal

    async def ls(self) -> list[Json]:
        return [
            {"id": key, "user": token["user"], "role": token["role"].word, "created": token["at"], "expires": None}
            for key, token in self.tokens.items()
        ]

    async def revoke(self, token_id: str) -> None:
        if self.tokens.pop(token_id, None) is None:
            raise NotFound(f"there is no token {token_id}")

    async def audit(self, audit_entry: AuditEntry) -> None:
        row = audit_entry.row(0.0)
        self.entries.append({**{name: row[name] for name in row if name != "at"}, "time": now()})

    async def audits(self, limit: int) -> list[Json]:
        return self.entries[-limit:]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _job(prepared: Any, user: str) -> Json:
    return {
        "id": prepared.id,
        "name": prepared.id,
        "workload": prepared.workload,
        "kind": prepared.kind,
        "user": user,
        "queue": prepared.job.queue,
        "priority": prepared.job.priority,
        "phase": "Pending",
        "reason": {"code": "no_room", "text": "Insufficient free GPUs."},
        "position": None,
        "gpus": 0,
        "min": prepared.job.min,
        "max": prepared.job.max,
        "gpu_type": None,
        "nodes": [],
        "workers": [],
        "generation": 0,
        "progress": {"step": 0, "total": prepared.job.steps, "rate": None},
        "eta_s": None,
        "submitted": now(),
        "started": None,
        "finished": None,
        "waiting_s": 0.0,
        "running_s": 0.0,
        "gpu_seconds": 0.0,
        "restarts": 0,
        "retried": 0,
        "fixed": None,
        "preemptible": "auto",
        "resizes": 0,
        "moves": 0,
        "exit_code": None,
        "labels": dict(prepared.labels),
    }
