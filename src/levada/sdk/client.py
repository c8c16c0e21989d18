"""The synchronous client: one method per request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from levada.api import ENDED
from levada.errors import Unresolved
from levada.sdk.discovery import Address, find
from levada.sdk.streams import Logs, Watch
from levada.sdk.transport import Reply, Transport, Unanswered, segment

if TYPE_CHECKING:
    from levada.api.types import (
        AuditView,
        CurrentPolicyView,
        CurveView,
        DecisionView,
        EngineFaultView,
        EventView,
        ExplanationView,
        JobView,
        MeView,
        NewTokenView,
        NodeView,
        PlanView,
        PolicyView,
        QueueView,
        ReservationView,
        SnapshotView,
        TokenView,
        UsageView,
        UserView,
        WhatIfView,
    )

Json = dict[str, Any]
_API = "/api/v1"
_PAGE = 500
#: One document or several.
Documents = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Client:
    """Client of one server; safe to share between threads.

    Methods accept a job's id, a unique prefix, its last four characters, or a workload (your newest job of it).
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
        insecure: bool = False,
        waiting: Callable[[str], AbstractContextManager[object]] | None = None,
    ) -> None:
        """Find the server like `levada.sdk.find`; raises NoServer.

        *patience_s*: time to retry while a server that was reached before is away, e.g. restarts. *insecure*: allow
        plain HTTP to other machines (only behind a TLS proxy). *waiting*: returns a context that is entered during
        each request to a URL, e.g. to show a spinner.
        """
        self._transport = Transport(
            lambda: find(url, token, state, insecure=insecure),
            timeout_s=timeout_s,
            patience_s=patience_s,
            waiting=waiting,
        )

    @property
    def address(self) -> Address:
        """Return URL and token of the server."""
        return self._transport.address

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- jobs
    def submit(self, documents: Documents, *, key: str | None = None) -> list[JobView]:
        """Submit one or several documents, all or none; the same *key* returns the same jobs.

        Relative directories, the default directory, PATH and similar variables are those of this process.
        """
        if key is None:
            import secrets

            key = secrets.token_hex(16)
        body = _sendable(documents)
        try:
            answer = self._call("POST", "/jobs", body=body, headers={"Idempotency-Key": key}, repeatable=True).json()
        except (Unanswered, Unresolved) as unknown:
            hint = f"the jobs may have been accepted: repeat with the key {key} (--key) to avoid duplicates"
            raise type(unknown)(f"{unknown}; {hint}") from None
        jobs: list[JobView] = answer["items"]
        return jobs

    def get(self, name: str) -> JobView:
        """Return a job."""
        job: JobView = self._get(_job(name))
        return job

    def get_version(self, name: str) -> tuple[JobView, str]:
        """Return a job and its version, for a write that must fail if the job has changed."""
        reply = self._call("GET", _job(name))
        return reply.json(), reply.headers.get("etag", "")

    def jobs(
        self,
        *,
        phases: Iterable[str] | None = None,
        user: str | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        """Return jobs, newest last; at most *limit*. The user `me` is yourself."""
        jobs: list[JobView] = []
        for page in self._pages({"phase": phases, "user": user, "queue": queue, "label": _pairs(labels)}, limit, _PAGE):
            jobs += page["items"]
        return jobs

    def job_columns(
        self,
        names: Iterable[str],
        *,
        phases: Iterable[str] | None = None,
        user: str | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> dict[str, list[Any]]:
        """Return the same jobs by column, which is much smaller for thousands of jobs.

        *names*: fields of a job; `progress.step` is a nested field.
        """
        fields = list(dict.fromkeys(names))
        if not fields:
            raise ValueError("give at least one column")
        columns: dict[str, list[Any]] = {name: [] for name in fields}
        query = {"phase": phases, "user": user, "queue": queue, "label": _pairs(labels), "columns": ",".join(fields)}
        for page in self._pages(query, limit, 2 * _PAGE):
            for name, column in page["columns"].items():
                columns[name] += column
        return columns

    def _pages(self, query: Mapping[str, Any], limit: int | None, size: int) -> Iterator[Json]:
        """Yield pages of the list of jobs until the last one, or until there are *limit* jobs."""
        cursor: str | None = None
        query = {**query, "phase": None if query["phase"] is None else list(query["phase"])}
        while limit is None or limit > 0:
            page = self._get("/jobs", **query, limit=size if limit is None else min(size, limit), cursor=cursor)
            yield page
            cursor = page["next"]
            if cursor is None:
                return
            limit = None if limit is None else limit - size

    def update(
        self,
        name: str,
        *,
        priority: int | None = None,
        queue: str | None = None,
        min: int | None = None,
        max: int | None = None,
        weight: float | None = None,
        preemptible: str | bool | None = None,
        version: str | None = None,
        force: bool = False,
    ) -> JobView:
        """Change the given fields; with a *version*, Refused if the job has changed since.

        A new range that needs a restart waits for a checkpoint, unless *force*.
        """
        fields = {"priority": priority, "queue": queue, "min": min, "max": max, "weight": weight}
        body = {key: value for key, value in {**fields, "preemptible": preemptible}.items() if value is not None}
        query = _forced(force)
        job: JobView = self._call("PATCH", _job(name), query=query, body=body, headers=_if_match(version)).json()
        return job

    def cancel(self, name: str, *, version: str | None = None) -> JobView:
        """Cancel a job."""
        job: JobView = self._call("DELETE", _job(name), headers=_if_match(version)).json()
        return job

    def suspend(self, name: str, *, force: bool = False) -> JobView:
        """Stop a job until it is resumed; Refused with the code `unsaved` if that loses work, unless *force*."""
        return self._act(name, "suspend", force=force)

    def resume(self, name: str) -> JobView:
        """Queue a suspended job again."""
        return self._act(name, "resume")

    def scale(self, name: str, workers: int, *, force: bool = False) -> JobView:
        """Fix a job at this number of workers; `message` says when it takes effect.

        A job that would restart without a checkpoint keeps its size until it has saved one, unless *force*.
        """
        return self._act(name, "scale", {"workers": workers}, force=force)

    def explain(self, name: str) -> ExplanationView:
        """Explain why a job waits or has its size; with its position and a forecast."""
        return self._json(_job(name, "explain"))

    def curve(self, name: str) -> CurveView:
        """Return the speed of a job by GPU type and workers, measured and fitted, and the costs of resizing."""
        curve: CurveView = self._get(_job(name, "curve"))
        return curve

    def logs(
        self,
        name: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> Logs:
        """Stream lines of output; *follow*: until the job has ended; *since_s*: only those of the last seconds."""
        query = {"worker": worker, "tail": tail, "since": since_s, "follow": follow, "previous": previous}
        return Logs(self._transport, _API + _job(name, "logs"), query)

    def wait(self, name: str, *, timeout_s: float | None = None, phases: Iterable[str] | None = None) -> JobView:
        """Wait until a job has ended, is in one of *phases*, or can never start; raises TimeoutError."""
        final = set(phases or ()) | ENDED
        until = None if timeout_s is None else time.monotonic() + timeout_s
        job = self.get(name)
        with Watch(self._transport, job=job["id"], after=None, until=until) as events:
            while True:
                # After the start of the watch, so that no change is missed.
                job = self.get(job["id"])
                if job["phase"] in final or never_starts(job):
                    return job
                if next(events, None) is None:
                    raise TimeoutError(f"{job['id']} is still {job['phase']} after {timeout_s:g} s")

    def whatif(self, documents: Documents, *, policy: str | None = None) -> WhatIfView:
        """Forecast these jobs; creates nothing."""
        body = _sendable(documents)
        return self._json("/sim/whatif", "POST", {"documents": body, "policy": policy})

    # -------------------------------------------------------------------------------------------- nodes and queues
    def nodes(self) -> list[NodeView]:
        """Return all nodes."""
        nodes: list[NodeView] = self._get("/nodes")["items"]
        return nodes

    def cordon(self, node: str) -> NodeView:
        """Cordon a node: it gets no new jobs."""
        return self._node(node, "cordon")

    def uncordon(self, node: str) -> NodeView:
        """Uncordon a node."""
        return self._node(node, "uncordon")

    def drain(self, node: str, *, force: bool = False) -> NodeView:
        """Cordon a node and move its jobs as soon as they may be stopped; with *force* all of them now."""
        return self._node(node, "drain", force="true" if force else None)

    def remove_node(self, node: str) -> None:
        """Remove a lost node."""
        self._call("DELETE", f"/nodes/{segment(node)}")

    def reserve(
        self, gpus: int, seconds: float, *, gpu_type: str | None = None, node: str | None = None
    ) -> ReservationView:
        """Reserve free GPUs for a time."""
        body = {"gpus": gpus, "seconds": seconds, "gpu_type": gpu_type, "node": node}
        return self._json("/reservations", "POST", body)

    def queues(self) -> list[QueueView]:
        """Return all queues."""
        queues: list[QueueView] = self._get("/queues")["items"]
        return queues

    def put_queue(self, document: Mapping[str, Any]) -> QueueView:
        """Create or replace a queue; *document*: a queue file."""
        metadata = document.get("metadata")
        name = str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""
        queue: QueueView = self._json(f"/queues/{segment(name or '-')}", "PUT", dict(document))
        return queue

    def drop_queue(self, name: str) -> None:
        """Remove a queue without jobs."""
        self._call("DELETE", f"/queues/{segment(name)}")

    # ------------------------------------------------------------------------------------------------------- policy
    def policy(self) -> CurrentPolicyView:
        """Return the active policy."""
        return self._json("/policies/current")

    def policies(self) -> list[PolicyView]:
        """Return the installed policies."""
        policies: list[PolicyView] = self._get("/policies")["items"]
        return policies

    def set_policy(
        self, name: str, options: Mapping[str, Any] | None = None, *, dry_run: bool = False
    ) -> CurrentPolicyView:
        """Switch the policy, unless *dry_run*; `warnings` lists running jobs that it stops or shrinks."""
        body = {"name": name, "options": dict(options or {})}
        query = {"dry_run": "true"} if dry_run else {}
        answer: CurrentPolicyView = self._call("PUT", "/policies/current", query=query, body=body).json()
        return answer

    def set_rate_limit(self, seconds: float) -> CurrentPolicyView:
        """Set the minimum time between two decisions."""
        return self._json("/policies/rate-limit", "PUT", {"seconds": seconds})

    def allocate(self, case: Mapping[str, Any]) -> Json:
        """Compute the allocation of one policy for a case, like `levada allocate`."""
        return self._json("/sim/allocate", "POST", dict(case))

    # ------------------------------------------------------------------------------------------------------ history
    def events(self, job: str | None = None, *, after: int = 0, limit: int | None = None) -> list[EventView]:
        """Return events so far, oldest first, of one job or all."""
        events: list[EventView] = []
        while limit is None or len(events) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(events))
            page = self._get("/events", job=job, after=after, limit=size)
            events += page["items"]
            if page["next"] is None:
                break
            after = int(page["next"])
        return events

    def watch(self, job: str | None = None, *, after: int | None = None, timeout_s: float | None = None) -> Watch:
        """Stream events from now or *after* an event id; ends after *timeout_s*."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        return Watch(self._transport, job=job, after=after, until=until)

    def decisions(self, limit: int = 20) -> list[DecisionView]:
        """Return the last decisions, newest last."""
        decisions: list[DecisionView] = self._get("/decisions", limit=limit)["items"]
        return decisions

    def decision(self, revision: int) -> DecisionView:
        """Return one decision with the reason for each job."""
        return self._json(f"/decisions/{revision}")

    def plans(self, limit: int = 20) -> list[PlanView]:
        """Return the last plans, newest last."""
        plans: list[PlanView] = self._get("/plans", limit=limit)["items"]
        return plans

    def faults(self) -> list[EngineFaultView]:
        """Return internal errors of the engine, newest last; for operators."""
        faults: list[EngineFaultView] = self._get("/faults")["items"]
        return faults

    def usage(self, by: Iterable[str] = ("user",), *, since_s: float = 7 * 86400.0) -> list[UsageView]:
        """Sum GPU seconds of the last *since_s* seconds, by user, queue, workload or gpu_type."""
        usage: list[UsageView] = self._get("/usage", by=",".join(by), since=since_s)["items"]
        return usage

    def snapshot(self) -> SnapshotView:
        """Return the whole state as one document, for `levada replay`."""
        return self._json("/snapshot")

    # -------------------------------------------------------------------------------------------------------- users
    def me(self) -> MeView:
        """Return your user and role."""
        return self._json("/me")

    def tokens(self) -> list[TokenView]:
        """Return all tokens without their secrets."""
        tokens: list[TokenView] = self._get("/tokens")["items"]
        return tokens

    def create_token(
        self, *, user: str | None = None, role: str = "user", expires_s: float | None = None
    ) -> NewTokenView:
        """Create a token for yourself or *user*; `token` of this answer is its secret."""
        body = {"user": user, "role": role, "expires_s": expires_s}
        token: NewTokenView = self._json("/tokens", "POST", body)
        return token

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self._call("DELETE", f"/tokens/{segment(token_id)}")

    def users(self) -> list[UserView]:
        """Return users with tokens."""
        users: list[UserView] = self._get("/users")["items"]
        return users

    def revoke_user(self, name: str) -> None:
        """Revoke all tokens of a user."""
        self._call("DELETE", f"/users/{segment(name)}")

    def audit(self, limit: int = 100) -> list[AuditView]:
        """Return write requests, newest last."""
        entries: list[AuditView] = self._get("/audit", limit=limit)["items"]
        return entries

    # ------------------------------------------------------------------------------------------------------- server
    def ready(self) -> str:
        """Return "" when the server is ready, else the reason why it is not."""
        from levada.errors import LevadaError, NoServer

        try:
            self._transport.request("GET", "/readyz")
        except NoServer:
            raise
        except LevadaError as error:
            return str(error)
        return ""

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._transport.request("GET", "/healthz").json()["version"])

    def metrics(self) -> str:
        """Return metrics in the text format of Prometheus."""
        return self._transport.request("GET", "/metrics").body.decode()

    # ------------------------------------------------------------------------------------------------------ helpers
    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> Reply:
        return self._transport.request(
            method, _API + path, query=query, body=body, headers=headers, repeatable=repeatable
        )

    def _get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query=query).json()

    def _json(self, path: str, method: str = "GET", body: Any = None) -> Any:
        return self._call(method, path, body=body).json()

    def _act(self, name: str, verb: str, body: Json | None = None, *, force: bool = False) -> JobView:
        job: JobView = self._call("POST", _job(name, verb), query=_forced(force), body=body).json()
        return job

    def _node(self, node: str, verb: str, **query: Any) -> NodeView:
        answer: NodeView = self._call("POST", f"/nodes/{segment(node)}/{verb}", query=query).json()
        return answer


def never_starts(job: JobView) -> bool:
    """Whether a job depends on one that has failed or was cancelled."""
    return job["reason"] is not None and job["reason"]["code"] == "dependency-failed"


def _sendable(documents: Documents) -> list[Any]:
    """Prepare documents for the server; other values are sent unchanged, and the server rejects them."""
    from levada.sdk.prepare import sendable

    values: list[Any] = [documents] if isinstance(documents, Mapping) else list(documents)
    return [sendable(value) if isinstance(value, Mapping) else value for value in values]


def _job(name: str, part: str = "") -> str:
    return f"/jobs/{segment(name)}/{part}".rstrip("/")


def _pairs(labels: Mapping[str, str] | None) -> list[str] | None:
    return [f"{key}={value}" for key, value in (labels or {}).items()] or None


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _if_match(version: str | None) -> dict[str, str]:
    return {"If-Match": version} if version else {}
