"""The OpenAPI document: FastAPI's, plus error responses and file schemas."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from levada import __version__
from levada.api.types import ProblemView
from levada.server.problems import MEDIA_TYPE

_REF = "#/components/schemas/{model}"
_TEXTS = {
    400: "Malformed request.",
    401: "A token is required.",
    403: "The token does not permit it.",
    404: "Not found.",
    405: "Method not allowed.",
    408: "The body was sent too slowly.",
    409: "Conflicts with the current state.",
    412: "The job has changed; read it again.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Invalid request; `errors` lists the faults.",
    503: "The server is unavailable.",
}
_EXAMPLE = {
    "apiVersion": "levada.dev/v1",
    "kind": "Job",
    "metadata": {"name": "resnet50"},
    "spec": {"workers": {"min": 1, "max": 8}, "run": {"command": ["python", "train.py"]}},
}
_WRITES = frozenset({"post", "put", "patch", "delete"})
#: Routes of Voda, which answer with plain text.
_PLAIN_TEXT = ("/training", "/algorithm", "/ratelimit", "/allocation")


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of *app*, built once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="Levada",
            version=__version__,
            openapi_version="3.1.0",
            summary="An elastic, heterogeneity-aware scheduler for deep-learning training",
            routes=app.routes,
        )
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = TypeAdapter(ProblemView).json_schema(ref_template=_REF)
        schemas.update(problem.pop("$defs"), ProblemView=problem)
        for path, item in document["paths"].items():
            for method, operation in item.items():
                _add_problems(path, method, operation)
                _forbid_null(operation)
        _add_files(document)
        app.openapi_schema = document
    return app.openapi_schema


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if path.startswith(_PLAIN_TEXT):
        return
    responses.pop("422", None)
    parameters = operation.get("parameters", [])
    codes = {400, 422}
    if "security" in operation:
        codes |= {401, 403, 503}
    if "requestBody" in operation:
        codes |= {408, 413, 415}
    if any(p["in"] == "path" or p["name"] == "job" for p in parameters) or path.endswith("/worker/job"):
        # A name may be unknown or ambiguous.
        codes |= {404, 409}
    if method in _WRITES:
        codes |= {404, 409}
    if any(parameter["name"] == "if-match" for parameter in parameters):
        codes |= {412}
    if path == "/readyz":
        codes |= {503}
    if path == "/metrics":
        codes |= {401, 403}
    for code in sorted(codes):
        responses[str(code)] = {
            "description": _TEXTS[code],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="ProblemView")}}},
        }


def _forbid_null(operation: dict[str, Any]) -> None:
    """Forbid null characters in parameters."""
    for parameter in operation.get("parameters", []):
        for schema in [parameter["schema"], *parameter["schema"].get("anyOf", [])]:
            schema = schema.get("items", schema)
            if schema.get("type") == "string" and "enum" not in schema:
                schema.setdefault("pattern", "^[^\\u0000]*$")


def _add_files(document: dict[str, Any]) -> None:
    """Add the schemas of job and queue files, as in `levada schema`, to the routes that accept them."""
    from levada.jobfile.model import Job, Queue

    _, definitions = models_json_schema([(Job, "validation"), (Queue, "validation")], ref_template=_REF)
    schemas = document["components"]["schemas"]
    # Names that the schemas of the API use already.
    renamed = {name: f"{name}File" for name in definitions["$defs"] if name in schemas or name in ("Job", "Queue")}
    schemas.update({renamed.get(name, name): _rename(schema, renamed) for name, schema in definitions["$defs"].items()})
    job: dict[str, Any] = {
        "anyOf": [
            {"$ref": _REF.format(model=renamed["Job"])},
            {
                "type": "object",
                "description": "A Kubeflow job.",
                "required": ["apiVersion", "kind", "metadata", "spec"],
                "properties": {
                    "apiVersion": {"type": "string", "pattern": "^kubeflow\\.org/"},
                    "kind": {"enum": ["MPIJob", "PyTorchJob", "TFJob"]},
                    "metadata": {"type": "object"},
                    "spec": {"type": "object"},
                },
            },
        ]
    }
    schemas["JobDocument"] = job
    reference = {"$ref": _REF.format(model="JobDocument")}
    documents = {"type": "array", "items": reference, "minItems": 1}
    _set_body(document, "/api/v1/jobs", "post", {"anyOf": [reference, documents], "examples": [_EXAMPLE]})
    schemas["WhatIf"]["properties"]["documents"]["items"] = reference
    _set_body(document, "/api/v1/queues/{name}", "put", {"$ref": _REF.format(model=renamed["Queue"])})


def _set_body(document: dict[str, Any], path: str, method: str, schema: dict[str, Any]) -> None:
    document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"] = schema


def _rename(schema: Any, names: dict[str, str]) -> Any:
    """Return *schema* with references to the new names."""
    if isinstance(schema, dict):
        return {
            key: _REF.format(model=names.get(value.rpartition("/")[2], value.rpartition("/")[2]))
            if key == "$ref"
            else _rename(value, names)
            for key, value in schema.items()
        }
    return [_rename(item, names) for item in schema] if isinstance(schema, list) else schema
