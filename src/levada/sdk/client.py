"""Levada's verbs, one call each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from levada.errors import Unresolved
from levada.sdk.models import OVER, Curve, Event, Job, Json, Node, Queue, Token
from levada.sdk.place import Address, find
from levada.sdk.streams import Logs, Watch
from levada.sdk.transport import Reply, Transport, Unanswered, segment

_API = "/api/v1"
_PAGE = 500
#: One document, or several.
Documents = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Client:
    """A server as an object. Threads may share it.

    A job is named by its id, an unambiguous prefix, its last four characters, or its workload (your newest of it).
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
        """Finds the server as `levada.sdk.find` does; raises NoServer where none is known.

        *patience_s* is how long a server that was there may be away, e.g. to start anew. *insecure* lets the token go
        over http:// to other machines, where something else encrypts. *waiting* makes what is entered while the server
        at an address is asked, e.g. to say so.
        """
        self._transport = Transport(
            lambda: find(url, token, state, insecure=insecure),
            timeout_s=timeout_s,
            patience_s=patience_s,
            waiting=waiting,
        )

    @property
    def address(self) -> Address:
        """The server in use, and the token."""
        return self._transport.address

    def close(self) -> None:
        """Closes the connections that are kept."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- jobs
    def submit(self, documents: Documents, *, key: str | None = None) -> list[Job]:
        """The new jobs of one or several documents, all or none. Sent again with the same *key*, they stay the same.

        Folders that are relative, or not given, are those of this process, and so are PATH and its kin.
        """
        if key is None:
            import secrets

            key = secrets.token_hex(16)
        body = _sendable(documents)
        try:
            answer = self._call("POST", "/jobs", body=body, headers={"Idempotency-Key": key}, repeatable=True).json()
        except (Unanswered, Unresolved) as unknown:
            hint = f"the jobs may have been accepted: submit them again with the key {key} (--key) to have them once"
            raise type(unknown)(f"{unknown}; {hint}") from None
        jobs: list[Job] = answer["items"]
        return jobs

    def get(self, name: str) -> Job:
        """The job of this name."""
        job: Job = self._get(_job(name))
        return job

    def get_version(self, name: str) -> tuple[Job, str]:
        """The job and its version, to be given to a write that must not meet a changed job."""
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
    ) -> list[Job]:
        """Jobs, newest last; all of them, or the first *limit*. The user `me` is oneself."""
        found: list[Job] = []
        for page in self._pages({"phase": phases, "user": user, "queue": queue, "label": _pairs(labels)}, limit, _PAGE):
            found += page["items"]
        return found

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
        """The same jobs by column, which is much less to send and to read where there are thousands.

        *names* are fields of a job; `progress.step` is a field of a field.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            raise ValueError("name one column at least")
        found: dict[str, list[Any]] = {name: [] for name in wanted}
        query = {"phase": phases, "user": user, "queue": queue, "label": _pairs(labels), "columns": ",".join(wanted)}
        for page in self._pages(query, limit, 2 * _PAGE):
            for name, column in page["columns"].items():
                found[name] += column
        return found

    def _pages(self, query: Mapping[str, Any], limit: int | None, size: int) -> Iterator[Json]:
        """Pages of the list of jobs, until the last one or until there are *limit* jobs."""
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
    ) -> Job:
        """Changes what is given. With a *version* it is refused where the job has changed since.

        A new range that takes a restart waits for a checkpoint; with *force* it does not.
        """
        given = {"priority": priority, "queue": queue, "min": min, "max": max, "weight": weight}
        body = {key: value for key, value in {**given, "preemptible": preemptible}.items() if value is not None}
        query = _forced(force)
        job: Job = self._call("PATCH", _job(name), query=query, body=body, headers=_if_match(version)).json()
        return job

    def cancel(self, name: str, *, version: str | None = None) -> Job:
        """Ends the job for good."""
        job: Job = self._call("DELETE", _job(name), headers=_if_match(version)).json()
        return job

    def suspend(self, name: str, *, force: bool = False) -> Job:
        """Stops the job until it is resumed; Refused with the code `unsaved` where that loses work, unless *force*."""
        return self._act(name, "suspend", force=force)

    def resume(self, name: str) -> Job:
        """Lets a suspended job go on."""
        return self._act(name, "resume")

    def scale(self, name: str, workers: int, *, force: bool = False) -> Job:
        """Fixes the job at this many workers; `message` of the answer says when it has them.

        A job that would be restarted from nothing waits for its first checkpoint; with *force* it does not.
        """
        return self._act(name, "scale", {"workers": workers}, force=force)

    def explain(self, name: str) -> Json:
        """Why it waits or has this size, its position, when it should start and end."""
        return self._json(_job(name, "explain"))

    def curve(self, name: str) -> Curve:
        """How fast it is by GPU type and number of workers, measured and believed, and what resizing it costs."""
        curve: Curve = self._get(_job(name, "curve"))
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
        """Lines of output; with *follow* as they come, until the job is over. *since_s*: of the last seconds only."""
        query = {"worker": worker, "tail": tail, "since": since_s, "follow": follow, "previous": previous}
        return Logs(self._transport, _API + _job(name, "logs"), query)

    def wait(self, name: str, *, timeout_s: float | None = None, phases: Iterable[str] | None = None) -> Job:
        """The job once it is over, in one of *phases*, or known never to start; raises TimeoutError."""
        wanted = set(phases or ()) | OVER
        until = None if timeout_s is None else time.monotonic() + timeout_s
        job = self.get(name)
        with Watch(self._transport, job=job["id"], after=None, until=until) as events:
            while True:
                # After the watch has begun, so that no change is missed between the two.
                job = self.get(job["id"])
                if job["phase"] in wanted or never_starts(job):
                    return job
                if next(events, None) is None:
                    raise TimeoutError(f"{job['id']} is still {job['phase']} after {timeout_s:g} s")

    def whatif(self, documents: Documents, *, policy: str | None = None) -> Json:
        """What would become of these jobs; nothing is created."""
        body = _sendable(documents)
        return self._json("/sim/whatif", "POST", {"documents": body, "policy": policy})

    # ------------------------------------------------------------------------------------------ machines and queues
    def nodes(self) -> list[Node]:
        """All nodes."""
        nodes: list[Node] = self._get("/nodes")["items"]
        return nodes

    def cordon(self, node: str) -> Node:
        """No new work on the node."""
        return self._node(node, "cordon")

    def uncordon(self, node: str) -> Node:
        """New work on the node again."""
        return self._node(node, "uncordon")

    def drain(self, node: str, *, force: bool = False) -> Node:
        """No new work on the node, and what may be stopped goes elsewhere; with *force* the rest, too."""
        return self._node(node, "drain", force="true" if force else None)

    def remove_node(self, node: str) -> None:
        """Removes a node that is lost."""
        self._call("DELETE", f"/nodes/{segment(node)}")

    def reserve(self, gpus: int, seconds: float, *, gpu_type: str | None = None, node: str | None = None) -> Json:
        """Keeps GPUs free of jobs for a time."""
        body = {"gpus": gpus, "seconds": seconds, "gpu_type": gpu_type, "node": node}
        return self._json("/reservations", "POST", body)

    def queues(self) -> list[Queue]:
        """All queues."""
        queues: list[Queue] = self._get("/queues")["items"]
        return queues

    def put_queue(self, document: Mapping[str, Any]) -> Queue:
        """Makes or changes the queue of a document of kind Queue."""
        metadata = document.get("metadata")
        name = str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""
        queue: Queue = self._json(f"/queues/{segment(name or '-')}", "PUT", dict(document))
        return queue

    def drop_queue(self, name: str) -> None:
        """Removes a queue that nobody uses."""
        self._call("DELETE", f"/queues/{segment(name)}")

    # ------------------------------------------------------------------------------------------------------- policy
    def policy(self) -> Json:
        """The policy that decides, with its options."""
        return self._json("/policies/current")

    def policies(self) -> list[Json]:
        """The policies at hand."""
        policies: list[Json] = self._get("/policies")["items"]
        return policies

    def set_policy(self, name: str, options: Mapping[str, Any] | None = None, *, dry_run: bool = False) -> Json:
        """Lets another policy decide; `warnings` tell which running jobs it cuts. With *dry_run* nothing changes."""
        body = {"name": name, "options": dict(options or {})}
        query = {"dry_run": "true"} if dry_run else {}
        answer: Json = self._call("PUT", "/policies/current", query=query, body=body).json()
        return answer

    def set_rate_limit(self, seconds: float) -> Json:
        """The least time between two decisions."""
        return self._json("/policies/rate-limit", "PUT", {"seconds": seconds})

    def allocate(self, case: Mapping[str, Any]) -> Json:
        """The answer of one policy to a case, as `levada allocate` gives it."""
        return self._json("/sim/allocate", "POST", dict(case))

    # ------------------------------------------------------------------------------------------------ what happened
    def events(self, job: str | None = None, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """What happened so far, oldest first; to one job, or at all."""
        found: list[Event] = []
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._get("/events", job=job, after=after, limit=size)
            found += page["items"]
            if page["next"] is None:
                break
            after = int(page["next"])
        return found

    def watch(self, job: str | None = None, *, after: int | None = None, timeout_s: float | None = None) -> Watch:
        """Events as they come, from now or right *after* an event's id; ends after *timeout_s* where given."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        return Watch(self._transport, job=job, after=after, until=until)

    def decisions(self, limit: int = 20) -> list[Json]:
        """The last decisions, newest last."""
        decisions: list[Json] = self._get("/decisions", limit=limit)["items"]
        return decisions

    def decision(self, revision: int) -> Json:
        """One decision, with its reasons."""
        return self._json(f"/decisions/{revision}")

    def plans(self, limit: int = 20) -> list[Json]:
        """The last plans, newest last."""
        plans: list[Json] = self._get("/plans", limit=limit)["items"]
        return plans

    def faults(self) -> list[Json]:
        """Internal errors of the server's engine, newest last; for operators."""
        faults: list[Json] = self._get("/faults")["items"]
        return faults

    def usage(self, by: Iterable[str] = ("user",), *, since_s: float = 7 * 86400.0) -> list[Json]:
        """GPU seconds of the last *since_s* seconds, by user, queue, workload or gpu_type."""
        usage: list[Json] = self._get("/usage", by=",".join(by), since=since_s)["items"]
        return usage

    def snapshot(self) -> Json:
        """The whole state as one document, for `levada replay`."""
        return self._json("/snapshot")

    # ------------------------------------------------------------------------------------------------------- people
    def me(self) -> Json:
        """Who one is: user and role."""
        return self._json("/me")

    def tokens(self) -> list[Token]:
        """All tokens, without their secrets."""
        tokens: list[Token] = self._get("/tokens")["items"]
        return tokens

    def create_token(self, *, user: str | None = None, role: str = "user", expires_s: float | None = None) -> Token:
        """A new token, for oneself or for *user*; its secret is in `token`, only now."""
        body = {"user": user, "role": role, "expires_s": expires_s}
        token: Token = self._json("/tokens", "POST", body)
        return token

    def revoke_token(self, token_id: str) -> None:
        """Ends a token."""
        self._call("DELETE", f"/tokens/{segment(token_id)}")

    def users(self) -> list[Json]:
        """Everybody who has a token."""
        users: list[Json] = self._get("/users")["items"]
        return users

    def revoke_user(self, name: str) -> None:
        """Ends all tokens of a user."""
        self._call("DELETE", f"/users/{segment(name)}")

    def audit(self, limit: int = 100) -> list[Json]:
        """Who changed what, newest last."""
        notes: list[Json] = self._get("/audit", limit=limit)["items"]
        return notes

    # ------------------------------------------------------------------------------------------------------- server
    def ready(self) -> str:
        """Empty when the server can act, else why not."""
        from levada.errors import LevadaError, NoServer

        try:
            self._transport.request("GET", "/readyz")
        except NoServer:
            raise
        except LevadaError as error:
            return str(error)
        return ""

    def version(self) -> str:
        """The server's version."""
        return str(self._transport.request("GET", "/healthz").json()["version"])

    def metrics(self) -> str:
        """What Prometheus reads."""
        return self._transport.request("GET", "/metrics").body.decode()

    # -------------------------------------------------------------------------------------------------------- inside
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

    def _act(self, name: str, verb: str, body: Json | None = None, *, force: bool = False) -> Job:
        job: Job = self._call("POST", _job(name, verb), query=_forced(force), body=body).json()
        return job

    def _node(self, node: str, verb: str, **query: Any) -> Node:
        answer: Node = self._call("POST", f"/nodes/{segment(node)}/{verb}", query=query).json()
        return answer


def never_starts(job: Job) -> bool:
    """Whether a job waits for one that has failed or was cancelled."""
    return job["reason"] is not None and job["reason"]["code"] == "dependency-failed"


def _sendable(documents: Documents) -> list[Any]:
    """Documents that mean the same to the server; what is none goes as it is, for the server to say so."""
    from levada.sdk.sending import sendable

    given: list[Any] = [documents] if isinstance(documents, Mapping) else list(documents)
    return [sendable(each) if isinstance(each, Mapping) else each for each in given]


def _job(name: str, part: str = "") -> str:
    return f"/jobs/{segment(name)}/{part}".rstrip("/")


def _pairs(labels: Mapping[str, str] | None) -> list[str] | None:
    return [f"{key}={value}" for key, value in (labels or {}).items()] or None


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _if_match(version: str | None) -> dict[str, str]:
    return {"If-Match": version} if version else {}
