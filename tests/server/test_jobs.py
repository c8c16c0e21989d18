"""Jobs over HTTP: versions, keys, pages, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.http_server import Served, document


def test_one_document_returns_its_job_and_location(up: Served) -> None:
    created = up.ask("POST", "/api/v1/jobs", document(labels={"team": "vision"}))
    assert created.status == 201
    job = created.json()
    assert created.headers["location"] == f"/api/v1/jobs/{job['id']}"
    response = up.ask("GET", created.headers["location"])
    assert response.json() == job
    assert response.headers["etag"] == created.headers["etag"]
    assert job["labels"] == {"team": "vision"}
    assert job["gpus"] == 1
    assert "1.0" not in str(job["gpus"])
    page = up.ask("POST", "/api/v1/jobs", [document("a"), document("b")]).json()
    assert [item["workload"] for item in page["items"]] == ["a", "b"]
    assert len(up.ask("POST", "/api/v1/jobs", document("c", array="0-3")).json()["items"]) == 4


def test_an_invalid_body_lists_its_faults_and_creates_nothing(up: Served) -> None:
    bad = up.ask("POST", "/api/v1/jobs", document(workers={"min": 3, "max": 2}, colour="red"))
    assert bad.status == 422
    assert bad.headers["content-type"] == "application/problem+json"
    problem = bad.json()
    assert {fault["path"] for fault in problem["errors"]} == {"spec.workers.max", "spec.colour"}
    assert (problem["status"], problem["title"], problem["code"]) == (422, "Unprocessable Entity", "bad_input")
    assert "spec.workers.max: must be at least min (3)" in problem["detail"]
    assert up.ask("POST", "/api/v1/jobs", []).status == 422
    assert up.ask("POST", "/api/v1/jobs", "job").status == 422
    assert up.ask("POST", "/api/v1/jobs", [1]).status == 422
    assert up.ask("GET", "/api/v1/jobs").json() == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"{", "not JSON"),
        (b"", "is required"),
        (b'{"a": 1, "a": 2}', "a: is given twice"),
        (b'{"a": NaN}', "NaN is not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 65 + b"1" + b"}" * 65, "nested too deeply"),
        (b"[" * 600 + b"]" * 600, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 1000 digits"),
        (b'{"metadata": {"name": "\\ud800"}}', "surrogate"),
        (b'{"metadata": {"name": "\\u0000"}}', "null character"),
    ],
    ids=lambda value: str(value[:24]),
)
def test_invalid_json_is_rejected(up: Served, raw: bytes, text: str) -> None:
    bad = up.ask("POST", "/api/v1/jobs", raw=raw, headers={"Content-Type": "application/json"})
    assert bad.status in (400, 422)
    assert text in bad.json()["detail"]


def test_a_body_may_be_as_deep_as_a_job_file(up: Served) -> None:
    template: Any = "end"
    for _ in range(60):
        template = {"a": template}
    good = up.ask("POST", "/api/v1/jobs", document(kubernetes={"template": template}))
    assert good.status == 201


def test_a_large_body_does_not_block_other_requests(up: Served) -> None:
    many = [document(f"job{i}") for i in range(500)]
    with ThreadPoolExecutor(2) as threads:
        large = threads.submit(up.ask, "POST", "/api/v1/jobs", many)
        assert up.ask("GET", "/healthz").status == 200
        assert len(large.result().json()["items"]) == 500


def test_two_documents_with_one_name_are_rejected(up: Served) -> None:
    both = [document("twin"), document("other"), document("twin")]
    fault = {"path": "document 3: metadata.name", "text": "must differ from that of document 1"}
    for path, body in (("jobs", both), ("sim/whatif", {"documents": both})):
        bad = up.ask("POST", f"/api/v1/{path}", body)
        assert (bad.status, bad.json()["errors"]) == (422, [fault])
    assert up.ask("GET", "/api/v1/jobs").json()["items"] == []


def test_simulation_endpoints_are_listed(up: Served) -> None:
    response = up.ask("GET", "/api/v1/sim", role="viewer")
    assert response.status == 200
    for endpoint in response.json()["items"]:
        # An empty body is invalid, but the endpoint exists.
        assert up.ask(endpoint["method"], endpoint["path"], {}).status == 422
    assert [endpoint["path"] for endpoint in response.json()["items"]] == ["/api/v1/sim/whatif", "/api/v1/sim/allocate"]


def test_a_body_of_another_media_type_is_rejected(up: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        bad = up.ask("POST", "/api/v1/jobs", raw=b"{}", headers={"Content-Type": kind})
        assert (bad.status, bad.json()["code"]) == (415, "not_json")
        assert "Content-Type: application/json" in bad.json()["detail"]


def test_the_same_key_returns_the_same_jobs(up: Served) -> None:
    key = {"Idempotency-Key": "k1"}
    first = up.ask("POST", "/api/v1/jobs", document(), headers=key)
    again = up.ask("POST", "/api/v1/jobs", document(), headers=key)
    assert (again.status, again.json()) == (first.status, first.json())
    other = up.ask("POST", "/api/v1/jobs", document("other"), headers=key)
    assert (other.status, other.json()["code"]) == (409, "refused")
    # Keys of different users are independent.
    other = up.ask("POST", "/api/v1/jobs", document(), role="user", headers=key)
    assert other.json()["id"] != first.json()["id"]
    assert len(up.ask("GET", "/api/v1/jobs").json()["items"]) == 2


def test_a_write_with_an_old_version_changes_nothing(up: Served) -> None:
    created = up.ask("POST", "/api/v1/jobs", document())
    path, old = created.headers["location"], created.headers["etag"]
    changed = up.ask("PATCH", path, {"priority": 1}, headers={"If-Match": old})
    assert changed.status == 200
    assert changed.headers["etag"] != old
    for method, where, body in [
        ("PATCH", path, {"priority": 2}),
        ("DELETE", path, None),
        ("POST", f"{path}/suspend", None),
        ("POST", f"{path}/scale", {"workers": 2}),
    ]:
        refused = up.ask(method, where, body, headers={"If-Match": old})
        assert (refused.status, refused.json()["code"]) == (412, "changed")
    assert up.ask("GET", path).json()["priority"] == 1
    new = f'"other", {changed.headers["etag"]}'
    assert up.ask("PATCH", path, {"priority": 3}, headers={"If-Match": new}).status == 200
    assert up.ask("PATCH", path, {"priority": 4}, headers={"If-Match": "*"}).status == 200


def test_only_one_of_concurrent_writes_with_one_version_succeeds(up: Served) -> None:
    created = up.ask("POST", "/api/v1/jobs", document())

    def write(priority: int) -> int:
        headers = {"If-Match": created.headers["etag"]}
        return up.ask("PATCH", created.headers["location"], {"priority": priority}, headers=headers).status

    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(write, range(8)))
    assert statuses == [200] + [412] * 7


def test_a_job_that_has_not_changed_is_not_sent_again(up: Served) -> None:
    created = up.ask("POST", "/api/v1/jobs", document())
    same = up.ask("GET", created.headers["location"], headers={"If-None-Match": created.headers["etag"]})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", created.headers["etag"])
    assert up.ask("GET", created.headers["location"], headers={"If-None-Match": '"old"'}).status == 200
    weak = up.ask("GET", created.headers["location"], headers={"If-None-Match": f"W/{created.headers['etag']}"})
    assert weak.status == 304


def test_progress_changes_the_etag_but_does_not_refuse_a_write(up: Served) -> None:
    created = up.ask("POST", "/api/v1/jobs", document())
    path, old = created.headers["location"], created.headers["etag"]
    job = up.service.by_id[created.json()["id"]]
    job["running_s"] = job["gpu_seconds"] = 60.0
    assert up.ask("GET", path, headers={"If-None-Match": old}).status == 304
    job["progress"] = {"step": 100, "total": 1000, "rate": 2.5}
    response = up.ask("GET", path, headers={"If-None-Match": old})
    assert (response.status, response.json()["progress"]["step"]) == (200, 100)
    assert response.headers["etag"] != old
    assert up.ask("PATCH", path, {"priority": 1}, headers={"If-Match": old}).status == 200
    assert up.ask("PATCH", path, {"priority": 2}, headers={"If-Match": old}).status == 412


def test_pages_contain_every_job_once(up: Served) -> None:
    ids = [job["id"] for job in up.ask("POST", "/api/v1/jobs", [document(f"j{i}") for i in range(7)]).json()["items"]]
    listed, cursor = [], ""
    while True:
        page = up.ask("GET", f"/api/v1/jobs?limit=3{cursor}").json()
        listed += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        # A job that is submitted in between is on the last page and does not move others.
        if not cursor:
            ids.append(up.ask("POST", "/api/v1/jobs", document("late")).json()["id"])
        cursor = f"&cursor={page['next']}"
    assert listed == ids
    assert up.ask("GET", "/api/v1/jobs?cursor=mine").status == 422


def test_columns_equal_the_fields_of_the_jobs(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", [document(f"j{i}", workers=4) for i in range(5)])
    items = up.ask("GET", "/api/v1/jobs?limit=3").json()
    page = up.ask("GET", "/api/v1/jobs?limit=3&columns=id,phase,reason.text,progress,progress.step,id").json()
    assert page == {
        "columns": {
            "id": [job["id"] for job in items["items"]],
            "phase": [job["phase"] for job in items["items"]],
            "reason.text": [job["reason"] and job["reason"]["text"] for job in items["items"]],
            "progress": [job["progress"] for job in items["items"]],
            "progress.step": [job["progress"]["step"] for job in items["items"]],
        },
        "next": items["next"],
    }
    assert page["next"] is not None


def test_filters(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", [document("a", labels={"x": "1"}), document("b", labels={"x": "1", "y": "2"})])
    up.ask("POST", "/api/v1/jobs", document("c"), role="user")

    def names(query: str, role: str = "admin") -> list[str]:
        return [job["workload"] for job in up.ask("GET", f"/api/v1/jobs?{query}", role=role).json()["items"]]

    assert names("user=uma") == ["c"]
    assert names("user=me", "user") == ["c"]
    assert names("label=x=1") == ["a", "b"]
    assert names("label=x=1&label=y=2") == ["b"]
    assert names("phase=Running&phase=Pending") == ["a", "b", "c"]
    assert names("phase=Failed") == []
    assert names("queue=other") == []


@pytest.mark.parametrize(
    ("query", "path", "text"),
    [
        ("limit=0", "limit", "greater than or equal to 1"),
        ("limit=1001", "limit", "less than or equal to 1000"),
        ("phase=Runing", "phase[0]", "'Running'"),
        ("label=x", "label", "must be key=value"),
        ("limt=3", "limt", "did you mean limit?"),
        ("limit=3&limit=4", "limit", "given twice"),
        ("columns=id,fase", "columns", "jobs have no field 'fase'; did you mean phase?"),
    ],
)
def test_an_invalid_query_names_the_fault(up: Served, query: str, path: str, text: str) -> None:
    bad = up.ask("GET", f"/api/v1/jobs?{query}")
    assert bad.status == 422
    [fault] = bad.json()["errors"]
    assert fault["path"] == path
    assert text in fault["text"]


def test_updates_validate_their_fields(up: Served) -> None:
    path = up.ask("POST", "/api/v1/jobs", document()).headers["location"]
    for body, field in [
        ({"colour": "red"}, "colour"),
        ({"priority": "high"}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"min": 0}, "min"),
        ({"weight": 0}, "weight"),
        ({"queue": None}, "queue"),
        ({"queue": "nowhere"}, "queue"),
        ({}, ""),
    ]:
        bad = up.ask("PATCH", path, body)
        assert (bad.status, [fault["path"] for fault in bad.json()["errors"]]) == (422, [field])


def test_an_ambiguous_name_is_refused(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", [document("train-a"), document("train-b")])
    response = up.ask("GET", "/api/v1/jobs/train")
    assert (response.status, response.json()["code"]) == (409, "refused")
    assert "use more of the id" in response.json()["detail"]


def test_unknown_names(up: Served) -> None:
    for name in ("nothing", "%2e%2e", "a%2Fb", "%F0%9F%98%80", "%ff", "x" * 253, "'%20OR%201=1"):
        response = up.ask("GET", f"/api/v1/jobs/{name}")
        assert response.status in (404, 422), name
        assert response.headers["content-type"] == "application/problem+json"
    assert up.ask("GET", "/api/v1/jobs/a%00b").status == 400
    assert up.ask("GET", "/api/v1/jobs?user=%00").status == 400
    assert up.ask("GET", f"/api/v1/jobs/{'x' * 254}").status == 422


def test_policies_are_names_not_files(up: Served) -> None:
    for name in ("/tmp/mine.py:Mine", "mine.py", "nothing"):
        assert up.ask("PUT", "/api/v1/policies/current", {"name": name}).status == 422
        assert up.ask("POST", "/api/v1/sim/whatif", {"documents": [document()], "policy": name}).status == 422
        case = {"policy": name, "cluster": {"gpus": {"v100": 1}}, "jobs": []}
        assert up.ask("POST", "/api/v1/sim/allocate", case).status == 422


def test_readyz_returns_why_the_server_is_not_ready(up: Served) -> None:
    up.service.trouble = "another server acts on this store"
    response = up.ask("GET", "/readyz", role=None)
    assert (response.status, response.json()["detail"]) == (503, "another server acts on this store")
    assert response.headers["retry-after"] == "1"
    assert up.ask("GET", "/healthz", role=None).status == 200


def test_unknown_paths_and_methods(up: Served) -> None:
    missing = up.ask("GET", "/api/v1/jbos")
    assert (missing.status, missing.json()["code"]) == (404, "not_found")
    wrong = up.ask("PUT", "/api/v1/jobs", {})
    assert (wrong.status, wrong.json()["code"]) == (405, "no_such_method")
    assert wrong.headers["allow"] == "GET, POST"
    assert up.ask("POST", "/api/v1/jobs/x").headers["allow"] == "DELETE, GET, PATCH"
    assert up.ask("GET", "/api/v1/jobs/").status == 404
