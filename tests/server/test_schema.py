"""Generated requests, valid and invalid, against a server: answers match the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from levada.server.app import api
from levada.server.context import Context
from levada.server.worker_token import sign
from tests.server.http_server import KEY, Served, document, served
from tests.server.memory_service import MemoryKeys, MemoryService

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: HYPOTHESIS_PROFILE=thorough generates more requests, with boundary values.
THOROUGH = settings.default is not None and settings.default.max_examples > 1000
schema = schemathesis.openapi.from_dict(api(Context(MemoryService(), MemoryKeys())).openapi())


@pytest.fixture(scope="module")
def busy() -> Iterator[Served]:
    """A server with jobs, so that names in generated requests exist."""
    with served() as up:
        for name in ("a", "b", "c"):
            up.ask("POST", "/api/v1/jobs", document(name))
        yield up


@schema.exclude(path_regex="^/api/v1/(watch|agents)").parametrize()
@settings(
    max_examples=200 if THOROUGH else 15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate] if THOROUGH else [Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_answers_match_the_openapi_document(case: Any, busy: Served) -> None:
    token = busy.tokens["admin"]
    if case.path.startswith("/api/v1/worker/"):
        token = sign(KEY, next(iter(busy.service.by_id)), 0, "g1-0")
    if case.path.endswith("/logs"):
        case.query = {key: value for key, value in (case.query or {}).items() if key != "follow"}
    # Only for bodies: in a query, a list with one item equals the item, which this check reports as an error.
    checks = [*CHECKS, negative_data_rejection] if case.operation.body else CHECKS
    case.call_and_validate(base_url=busy.url, headers={"Authorization": f"Bearer {token}"}, checks=checks, timeout=20)


def test_the_openapi_document_is_complete() -> None:
    document = schema.raw_schema
    assert document["openapi"].startswith("3.1")
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    named: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                named.add(value["$ref"])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    assert named <= known
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            if path.startswith("/api/"):
                assert {"401", "403", "422"} <= operation["responses"].keys(), (method, path)
