"""The description of the API: FastAPI's, with the problems that every route may answer and the files it takes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from levada import __version__
from levada.server.models import ProblemView
from levada.server.problems import MEDIA_TYPE

_REF = "#/components/schemas/{model}"
_TEXTS = {
    400: "The request cannot be read.",
    401: "A token is needed.",
    403: "The token does not allow it.",
    404: "There is no such thing.",
    405: "Another method is meant.",
    408: "The body came too slowly.",
    409: "It is understood, and not possible as things are.",
    412: "It has changed since; get it again.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The request is readable and wrong; `errors` tells each fault.",
    503: "The server cannot act now.",
}
_EXAMPLE = {
    "apiVersion": "levada.dev/v1",
    "kind": "Job",
    "metadata": {"name": "resnet50"},
    "spec": {"workers": {"min": 1, "max": 8}, "run": {"command": ["python", "train.py"]}},
}
_WRITES = frozenset({"post", "put", "patch", "delete"})
#: What speaks plain text, as its model did.
_PLAIN = ("/training", "/algorithm", "/ratelimit", "/allocation")


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of *app*, made once."""
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
        _, defined = models_json_schema([(ProblemView, "serialization")], ref_template=_REF)
        schemas.update(defined["$defs"])
        for path, item in document["paths"].items():
            for method, operation in item.items():
                _add_problems(path, method, operation)
                _forbid_null(operation)
        _add_files(document)
        app.openapi_schema = document
    return app.openapi_schema


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if path.startswith(_PLAIN):
        return
    responses.pop("422", None)
    parameters = operation.get("parameters", [])
    codes = {400, 422}
    if "security" in operation:
        codes |= {401, 403, 503}
    if "requestBody" in operation:
        codes |= {408, 413, 415}
    if any(one["in"] == "path" or one["name"] == "job" for one in parameters) or path.endswith("/worker/job"):
        codes |= {404}
    if method in _WRITES:
        codes |= {404, 409}
    if any(one["name"] == "if-match" for one in parameters):
        codes |= {412}
    if path == "/readyz":
        codes |= {503}
    for code in sorted(codes):
        responses[str(code)] = {
            "description": _TEXTS[code],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="ProblemView")}}},
        }


def _forbid_null(operation: dict[str, Any]) -> None:
    """No name holds a null character."""
    for parameter in operation.get("parameters", []):
        for schema in [parameter["schema"], *parameter["schema"].get("anyOf", [])]:
            schema = schema.get("items", schema)
            if schema.get("type") == "string" and "enum" not in schema:
                schema.setdefault("pattern", "^[^\\u0000]*$")


def _add_files(document: dict[str, Any]) -> None:
    """Job and queue files as `levada schema` prints them, where the API takes them."""
    from levada.jobfile.model import Job, Queue

    _, defined = models_json_schema([(Job, "validation"), (Queue, "validation")], ref_template=_REF)
    schemas = document["components"]["schemas"]
    # Names that both use would mean two things.
    taken = {name: f"{name}File" for name in defined["$defs"] if name in schemas or name in ("Job", "Queue")}
    schemas.update({taken.get(name, name): _renamed(schema, taken) for name, schema in defined["$defs"].items()})
    job: dict[str, Any] = {
        "anyOf": [
            {"$ref": _REF.format(model=taken["Job"])},
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
    several = {"type": "array", "items": reference, "minItems": 1}
    _body(document, "/api/v1/jobs", "post", {"anyOf": [reference, several], "examples": [_EXAMPLE]})
    question = schemas["WhatIf"]["properties"]["documents"]
    question["items"] = reference
    _body(document, "/api/v1/queues/{name}", "put", {"$ref": _REF.format(model=taken["Queue"])})


def _body(document: dict[str, Any], path: str, method: str, schema: dict[str, Any]) -> None:
    document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"] = schema


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    """*schema* with references to the new names."""
    if isinstance(schema, dict):
        return {
            key: _REF.format(model=names.get(value.rpartition("/")[2], value.rpartition("/")[2]))
            if key == "$ref"
            else _renamed(value, names)
            for key, value in schema.items()
        }
    return [_renamed(each, names) for each in schema] if isinstance(schema, list) else schema
