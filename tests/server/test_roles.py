"""Authorization of every route for every role."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from levada.server.app import api
from levada.server.context import Context
from levada.server.interfaces import Role
from levada.server.worker_token import check, sign
from tests.server.http_server import KEY, Served, document, served
from tests.server.memory_service import MemoryKeys, MemoryService

ROLES = ["viewer", "user", "operator", "admin"]

#: Lowest role per route; `worker`: the token of a worker; `open`: no token.
NEEDS = {
    "GET /api/v1/jobs": "viewer",
    "POST /api/v1/jobs": "user",
    "GET /api/v1/jobs/{name}": "viewer",
    "PATCH /api/v1/jobs/{name}": "user",
    "DELETE /api/v1/jobs/{name}": "user",
    "POST /api/v1/jobs/{name}/suspend": "user",
    "POST /api/v1/jobs/{name}/resume": "user",
    "POST /api/v1/jobs/{name}/scale": "user",
    "GET /api/v1/jobs/{name}/explain": "viewer",
    "GET /api/v1/jobs/{name}/curve": "viewer",
    "GET /api/v1/jobs/{name}/logs": "viewer",
    "GET /api/v1/nodes": "viewer",
    "POST /api/v1/nodes/{name}/cordon": "operator",
    "POST /api/v1/nodes/{name}/drain": "operator",
    "POST /api/v1/nodes/{name}/uncordon": "operator",
    "DELETE /api/v1/nodes/{name}": "operator",
    "POST /api/v1/reservations": "operator",
    "GET /api/v1/queues": "viewer",
    "PUT /api/v1/queues/{name}": "operator",
    "DELETE /api/v1/queues/{name}": "operator",
    "GET /api/v1/policies": "viewer",
    "GET /api/v1/policies/current": "viewer",
    "PUT /api/v1/policies/current": "operator",
    "PUT /api/v1/policies/rate-limit": "operator",
    "GET /api/v1/events": "viewer",
    "GET /api/v1/watch": "viewer",
    "GET /api/v1/decisions": "viewer",
    "GET /api/v1/decisions/{revision}": "viewer",
    "GET /api/v1/plans": "viewer",
    "GET /api/v1/faults": "operator",
    "GET /api/v1/usage": "viewer",
    "GET /api/v1/snapshot": "operator",
    "GET /api/v1/sim": "viewer",
    "POST /api/v1/sim/whatif": "user",
    "POST /api/v1/sim/allocate": "viewer",
    "GET /api/v1/me": "viewer",
    "GET /api/v1/tokens": "admin",
    "POST /api/v1/tokens": "admin",
    "DELETE /api/v1/tokens/{token_id}": "admin",
    "GET /api/v1/users": "admin",
    "DELETE /api/v1/users/{name}": "admin",
    "GET /api/v1/audit": "admin",
    "POST /api/v1/worker/report": "worker",
    "GET /api/v1/worker/job": "worker",
    "POST /training": "user",
    "GET /training": "viewer",
    "DELETE /training": "user",
    "PUT /algorithm": "operator",
    "PUT /ratelimit": "operator",
    "POST /allocation": "viewer",
    "GET /healthz": "open",
    "GET /readyz": "open",
    "GET /metrics": "open",
}
#: Valid bodies of routes that need one.
BODIES = {
    "POST /api/v1/jobs": document(),
    "PATCH /api/v1/jobs/{name}": {"priority": 1},
    "POST /api/v1/jobs/{name}/scale": {"workers": 1},
    "POST /api/v1/reservations": {"gpus": 99, "seconds": 1},
    "PUT /api/v1/queues/{name}": {},
    "PUT /api/v1/policies/current": {"name": "fifo"},
    "PUT /api/v1/policies/rate-limit": {"seconds": 1},
    "POST /api/v1/sim/whatif": {"documents": [document()]},
    "POST /api/v1/sim/allocate": {},
    "POST /api/v1/tokens": {"role": "viewer"},
    "POST /api/v1/worker/report": {"step": 1},
}


@pytest.fixture(scope="module")
def module_server() -> Iterator[Served]:
    with served() as up:
        yield up


def test_every_route_has_a_role() -> None:
    paths = api(Context(MemoryService(), MemoryKeys())).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    assert routes == set(NEEDS)
    ids = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
    assert "jobs.submit" in ids


@pytest.mark.parametrize("route", NEEDS)
def test_a_route_permits_its_role_and_higher_ones(module_server: Served, route: str) -> None:
    method, pattern = route.split(" ")
    path = pattern.replace("{name}", "nothing").replace("{revision}", "99").replace("{token_id}", "none")
    if route == "GET /api/v1/watch":
        path += "?job=nothing"
    need = NEEDS[route]
    statuses = {role: module_server.ask(method, path, BODIES.get(route), role=role).status for role in ROLES}
    statuses["none"] = module_server.ask(method, path, BODIES.get(route), role=None).status
    statuses["worker"] = module_server.ask(
        method, path, BODIES.get(route), token=sign(KEY, "nothing", 0, "g1-0")
    ).status
    statuses["wrong"] = module_server.ask(method, path, BODIES.get(route), token="wrong").status
    if need == "open":
        assert set(statuses.values()) == {200}
        return
    assert statuses.pop("none") == statuses.pop("wrong") == 401
    allowed = {need} if need == "worker" else set(ROLES[ROLES.index(need) :])
    assert {role for role, status in statuses.items() if status != 403} == allowed


def test_users_change_only_their_own_jobs(up: Served) -> None:
    job = up.ask("POST", "/api/v1/jobs", document(), role="user").json()["id"]
    token, _ = up.run(lambda: up.keys.create("zoe", Role.USER, None)), None
    zoe = token[1]
    writes = [
        ("PATCH", f"/api/v1/jobs/{job}", {"priority": 1}),
        ("DELETE", f"/api/v1/jobs/{job}", None),
        ("POST", f"/api/v1/jobs/{job}/suspend", None),
        ("POST", f"/api/v1/jobs/{job}/resume", None),
        ("POST", f"/api/v1/jobs/{job}/scale", {"workers": 2}),
        ("DELETE", "/training", job),
    ]
    for method, path, body in writes:
        refused = up.ask(method, path, body, token=zoe)
        assert refused.status == 403
        assert "belongs to uma" in refused.json()["detail"]
    assert up.ask("GET", f"/api/v1/jobs/{job}", token=zoe).status == 200
    assert up.ask("PATCH", f"/api/v1/jobs/{job}", {"priority": 1}, role="user").status == 200
    assert up.ask("PATCH", f"/api/v1/jobs/{job}", {"priority": 2}, role="operator").status == 200
    # A workload name prefers the own job.
    mine = up.ask("POST", "/api/v1/jobs", document(), token=zoe).json()["id"]
    assert up.ask("GET", "/api/v1/jobs/resnet50", role="user").json()["id"] == job
    assert up.ask("GET", "/api/v1/jobs/resnet50", token=zoe).json()["id"] == mine


def test_tokens_expire(up: Served) -> None:
    created = up.ask("POST", "/api/v1/tokens", {"user": "zoe", "role": "viewer", "expires_s": 3600}).json()
    assert up.ask("GET", "/api/v1/me", token=created["token"]).json() == {"user": "zoe", "role": "viewer"}
    up.keys.tokens[created["id"]]["until"] = 1.0
    assert up.ask("GET", "/api/v1/me", token=created["token"]).status == 401
    assert created["token"] not in up.ask("GET", "/api/v1/tokens").text
    assert created["token"] not in up.ask("GET", "/api/v1/audit").text


def test_a_workers_token_cannot_be_forged() -> None:
    token = sign(KEY, "a.b-1", 7, "g3-0")
    assert check(KEY, token) == ("a.b-1", 7, "g3-0")
    assert check(b"other" * 8, token) is None
    for forged in [
        token.replace(".7.", ".8."),
        token.replace("a.b", "a.c"),
        token.replace("g3", "g4"),
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        token[:-64],
        "",
        ".",
        "lw1.a.1.ü",
        "lw1",
    ]:
        assert check(KEY, forged) is None


def test_a_worker_may_use_a_token_of_its_cluster(up: Served) -> None:
    job = up.ask("POST", "/api/v1/jobs", document(), role="user").json()["id"]
    worker = f"g{up.service.by_id[job]['generation']}-0"
    up.service.identities = {"head.body.signature": (job, 0, worker)}
    report = up.ask("POST", "/api/v1/worker/report", {"step": 1}, token="head.body.signature")
    assert (report.status, up.service.reports) == (200, [(job, worker, {"step": 1.0})])
    assert up.ask("POST", "/api/v1/worker/report", {"step": 1}, token="head.other.signature").status == 401
    assert up.ask("GET", "/api/v1/jobs", token="head.body.signature").status == 401, "only for reports"


def test_every_write_is_in_the_audit_log_with_its_outcome(up: Served) -> None:
    job = up.ask("POST", "/api/v1/jobs", document(), role="user").json()["id"]
    up.ask("PATCH", f"/api/v1/jobs/{job}", {"priority": 5, "queue": "default"}, role="operator")
    up.ask("PUT", "/api/v1/policies/current", {"name": "fifo"}, role="user")
    up.ask("DELETE", "/api/v1/jobs/nothing", role="user")
    up.ask("POST", "/training", raw=b"kind: [", role="user")
    up.ask("GET", "/api/v1/jobs", role="user")
    up.ask("POST", "/api/v1/jobs", document(), role=None)
    up.ask("POST", "/api/v1/worker/report", {"step": 1}, token=sign(KEY, job, 0, "g1-0"))
    notes = up.ask("GET", "/api/v1/audit").json()["items"]
    assert [(note["user"], note["method"], note["path"], note["status"], note["detail"]) for note in notes] == [
        ("uma", "POST", "/api/v1/jobs", 201, job),
        ("otto", "PATCH", f"/api/v1/jobs/{job}", 200, "priority=5 queue=default"),
        ("uma", "PUT", "/api/v1/policies/current", 403, ""),
        ("uma", "DELETE", "/api/v1/jobs/nothing", 404, ""),
        ("uma", "POST", "/training", 400, ""),
    ]
