"""Jobs over HTTP: versions, keys, pages, problems."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.serving import Served, document


def test_one_document_answers_with_its_job_and_where_it_is(up: Served) -> None:
    made = up.ask("POST", "/api/v1/jobs", document(labels={"team": "vision"}))
    assert made.status == 201
    job = made.json()
    assert made.headers["location"] == f"/api/v1/jobs/{job['id']}"
    got = up.ask("GET", made.headers["location"])
    assert got.json() == job
    assert got.headers["etag"] == made.headers["etag"]
    assert job["labels"] == {"team": "vision"}
    assert job["gpus"] == 1
    assert "1.0" not in str(job["gpus"])
    several = up.ask("POST", "/api/v1/jobs", [document("a"), document("b")]).json()
    assert [each["workload"] for each in several["items"]] == ["a", "b"]
    assert len(up.ask("POST", "/api/v1/jobs", document("c", array="0-3")).json()["items"]) == 4


def test_a_bad_body_tells_each_fault_and_creates_nothing(up: Served) -> None:
    bad = up.ask("POST", "/api/v1/jobs", document(workers={"min": 3, "max": 2}, colour="red"))
    assert bad.status == 422
    assert bad.headers["content-type"] == "application/problem+json"
    problem = bad.json()
    assert {each["path"] for each in problem["errors"]} == {"spec.workers.max", "spec.colour"}
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
        (b'{"a": NaN}', "NaN is not a number of JSON"),
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
def test_a_body_that_is_no_good_json_is_refused(up: Served, raw: bytes, text: str) -> None:
    bad = up.ask("POST", "/api/v1/jobs", raw=raw, headers={"Content-Type": "application/json"})
    assert bad.status in (400, 422)
    assert text in bad.json()["detail"]


def test_a_body_may_be_as_deep_as_any_job_file(up: Served) -> None:
    template: Any = "end"
    for _ in range(60):
        template = {"a": template}
    good = up.ask("POST", "/api/v1/jobs", document(kubernetes={"template": template}))
    assert good.status == 201


def test_a_large_body_is_read_while_others_are_answered(up: Served) -> None:
    many = [document(f"job{i}") for i in range(500)]
    with ThreadPoolExecutor(2) as threads:
        large = threads.submit(up.ask, "POST", "/api/v1/jobs", many)
        assert up.ask("GET", "/healthz").status == 200
        assert len(large.result().json()["items"]) == 500


def test_one_name_for_two_jobs_is_a_fault_as_in_a_file(up: Served) -> None:
    both = [document("twin"), document("other"), document("twin")]
    fault = {"path": "document 3: metadata.name", "text": "must differ from that of document 1"}
    for path, body in (("jobs", both), ("sim/whatif", {"documents": both})):
        bad = up.ask("POST", f"/api/v1/{path}", body)
        assert (bad.status, bad.json()["errors"]) == (422, [fault])
    assert up.ask("GET", "/api/v1/jobs").json()["items"] == []


def test_what_can_be_asked_of_simulations_is_listed(up: Served) -> None:
    found = up.ask("GET", "/api/v1/sim", role="viewer")
    assert found.status == 200
    for each in found.json()["items"]:
        # An empty question is a bad one, but there is somebody to ask.
        assert up.ask(each["method"], each["path"], {}).status == 422
    assert [each["path"] for each in found.json()["items"]] == ["/api/v1/sim/whatif", "/api/v1/sim/allocate"]


def test_a_body_of_another_type_is_told_what_to_send(up: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        bad = up.ask("POST", "/api/v1/jobs", raw=b"{}", headers={"Content-Type": kind})
        assert (bad.status, bad.json()["code"]) == (415, "not_json")
        assert "Content-Type: application/json" in bad.json()["detail"]


def test_the_same_key_makes_the_same_jobs_and_never_others(up: Served) -> None:
    key = {"Idempotency-Key": "k1"}
    first = up.ask("POST", "/api/v1/jobs", document(), headers=key)
    again = up.ask("POST", "/api/v1/jobs", document(), headers=key)
    assert (again.status, again.json()) == (first.status, first.json())
    other = up.ask("POST", "/api/v1/jobs", document("other"), headers=key)
    assert (other.status, other.json()["code"]) == (409, "refused")
    # A key is a user's own.
    theirs = up.ask("POST", "/api/v1/jobs", document(), role="user", headers=key)
    assert theirs.json()["id"] != first.json()["id"]
    assert len(up.ask("GET", "/api/v1/jobs").json()["items"]) == 2


def test_a_write_with_an_old_version_changes_nothing(up: Served) -> None:
    made = up.ask("POST", "/api/v1/jobs", document())
    path, old = made.headers["location"], made.headers["etag"]
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


def test_of_writes_with_the_same_version_one_wins(up: Served) -> None:
    made = up.ask("POST", "/api/v1/jobs", document())

    def write(priority: int) -> int:
        headers = {"If-Match": made.headers["etag"]}
        return up.ask("PATCH", made.headers["location"], {"priority": priority}, headers=headers).status

    with ThreadPoolExecutor(8) as threads:
        got = sorted(threads.map(write, range(8)))
    assert got == [200] + [412] * 7


def test_a_job_that_has_not_changed_is_not_sent_again(up: Served) -> None:
    made = up.ask("POST", "/api/v1/jobs", document())
    same = up.ask("GET", made.headers["location"], headers={"If-None-Match": made.headers["etag"]})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", made.headers["etag"])
    assert up.ask("GET", made.headers["location"], headers={"If-None-Match": '"old"'}).status == 200
    weak = up.ask("GET", made.headers["location"], headers={"If-None-Match": f"W/{made.headers['etag']}"})
    assert weak.status == 304


def test_progress_is_news_to_who_asks_and_no_reason_to_refuse_a_write(up: Served) -> None:
    made = up.ask("POST", "/api/v1/jobs", document())
    path, old = made.headers["location"], made.headers["etag"]
    job = up.service.by_id[made.json()["id"]]
    job["running_s"] = job["gpu_seconds"] = 60.0
    assert up.ask("GET", path, headers={"If-None-Match": old}).status == 304
    job["progress"] = {"step": 100, "total": 1000, "rate": 2.5}
    got = up.ask("GET", path, headers={"If-None-Match": old})
    assert (got.status, got.json()["progress"]["step"]) == (200, 100)
    assert got.headers["etag"] != old
    assert up.ask("PATCH", path, {"priority": 1}, headers={"If-Match": old}).status == 200
    assert up.ask("PATCH", path, {"priority": 2}, headers={"If-Match": old}).status == 412


def test_pages_hold_every_job_once(up: Served) -> None:
    ids = [job["id"] for job in up.ask("POST", "/api/v1/jobs", [document(f"j{i}") for i in range(7)]).json()["items"]]
    found, cursor = [], ""
    while True:
        page = up.ask("GET", f"/api/v1/jobs?limit=3{cursor}").json()
        found += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        # A job that comes meanwhile is on the last page, and moves no other.
        if not cursor:
            ids.append(up.ask("POST", "/api/v1/jobs", document("late")).json()["id"])
        cursor = f"&cursor={page['next']}"
    assert found == ids
    assert up.ask("GET", "/api/v1/jobs?cursor=mine").status == 422


def test_columns_hold_what_the_jobs_hold(up: Served) -> None:
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
def test_a_bad_query_tells_what_is_wrong(up: Served, query: str, path: str, text: str) -> None:
    bad = up.ask("GET", f"/api/v1/jobs?{query}")
    assert bad.status == 422
    [fault] = bad.json()["errors"]
    assert fault["path"] == path
    assert text in fault["text"]


def test_updates_know_their_fields(up: Served) -> None:
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
        assert (bad.status, [each["path"] for each in bad.json()["errors"]]) == (422, [field])


def test_a_name_that_several_have_is_refused(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", [document("train-a"), document("train-b")])
    several = up.ask("GET", "/api/v1/jobs/train")
    assert (several.status, several.json()["code"]) == (409, "refused")
    assert "say more of its id" in several.json()["detail"]


def test_names_that_are_no_jobs(up: Served) -> None:
    for name in ("nothing", "%2e%2e", "a%2Fb", "%F0%9F%98%80", "%ff", "x" * 253, "'%20OR%201=1"):
        got = up.ask("GET", f"/api/v1/jobs/{name}")
        assert got.status in (404, 422), name
        assert got.headers["content-type"] == "application/problem+json"
    assert up.ask("GET", "/api/v1/jobs/a%00b").status == 400
    assert up.ask("GET", "/api/v1/jobs?user=%00").status == 400
    assert up.ask("GET", f"/api/v1/jobs/{'x' * 254}").status == 422


def test_policies_are_names_and_never_files(up: Served) -> None:
    for name in ("/tmp/mine.py:Mine", "mine.py", "nothing"):
        assert up.ask("PUT", "/api/v1/policies/current", {"name": name}).status == 422
        assert up.ask("POST", "/api/v1/sim/whatif", {"documents": [document()], "policy": name}).status == 422
        case = {"policy": name, "cluster": {"gpus": {"v100": 1}}, "jobs": []}
        assert up.ask("POST", "/api/v1/sim/allocate", case).status == 422


def test_the_server_that_cannot_act_says_so(up: Served) -> None:
    up.service.trouble = "another server acts on this store"
    got = up.ask("GET", "/readyz", role=None)
    assert (got.status, got.json()["detail"]) == (503, "another server acts on this store")
    assert got.headers["retry-after"] == "1"
    assert up.ask("GET", "/healthz", role=None).status == 200


def test_what_is_not_there_and_what_is_not_for_it(up: Served) -> None:
    missing = up.ask("GET", "/api/v1/jbos")
    assert (missing.status, missing.json()["code"]) == (404, "not_found")
    wrong = up.ask("PUT", "/api/v1/jobs", {})
    assert (wrong.status, wrong.json()["code"]) == (405, "no_such_method")
    assert wrong.headers["allow"] == "GET, POST"
    assert up.ask("POST", "/api/v1/jobs/x").headers["allow"] == "DELETE, GET, PATCH"
    assert up.ask("GET", "/api/v1/jobs/").status == 404
