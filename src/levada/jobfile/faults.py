"""Pydantic's errors as faults, with the path of the field as users write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from levada.errors import MOST_FAULTS, BadInput, Fault, did_you_mean

_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:g}",
    "greater_than": lambda c: f"must be above {c['gt']:g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:g}" if c["le"] < 10**6 else f"must be at most {c['le']}",
    "less_than": lambda c: f"must be below {c['lt']:g}",
    "finite_number": lambda _: "must be a finite number",
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text (put it in quotes)",
    "string_unicode": lambda _: "must not contain an unpaired UTF-16 surrogate",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda c: f"must have at most {c['max_length']} characters",
    "too_short": lambda c: f"must have at least {c['min_length']} item" + ("" if c["min_length"] == 1 else "s"),
    "too_long": lambda c: f"must have at most {c['max_length']} item" + ("" if c["max_length"] == 1 else "s"),
    "list_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be a mapping",
    "model_type": lambda _: "must be a mapping",
    "model_attributes_type": lambda _: "must be a mapping",
    "literal_error": lambda c: f"must be {c['expected']}".replace("True", "true").replace("False", "false"),
    "recursion_loop": lambda _: "must not contain itself",
}


def fault(text: str) -> PydanticCustomError:
    """The error for a validator to raise; *text* reaches the user as it is."""
    # Braces would be read as a template.
    return PydanticCustomError("fault", "{text}", {"text": text})


def path_of(keys: Iterable[int | str]) -> str:
    """`("jobs", 3, "min")` as `jobs[3].min`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        elif key == "[key]":
            continue  # pydantic's marker for a mapping key; the key itself comes before it
        else:
            path += f".{key}" if path else key
    return path


def bad_input(error: ValidationError, model: type[BaseModel], most: int = MOST_FAULTS) -> BadInput:
    """One fault per validation error, in order; only *most* are described."""
    if not most:
        return BadInput([], error.error_count())
    details = error.errors(include_url=False, include_input=False)
    faults = [Fault(path_of(detail["loc"]), _text(detail, model)) for detail in details[:most]]
    return BadInput(faults, len(details) - len(faults))


def unknown_field(name: str, known: Iterable[str]) -> str:
    """The text for an unknown field, with the most similar known one."""
    return "unknown field" + did_you_mean(name, known)


def _misplaced(name: str, siblings: list[str], model: type[BaseModel]) -> str:
    """Like `unknown_field`, or the shortest path of a field that exists elsewhere."""
    path = _paths_of(model).get(name)
    return f"unknown field; did you mean {path}?" if path else unknown_field(name, siblings)


def _text(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        *parents, name = detail["loc"]
        return _misplaced(str(name), _fields_at(model, parents), model)
    if kind == "value_error":
        return str(context["error"])
    return _TEXTS[kind](context) if kind in _TEXTS else detail["msg"]


def _fields_at(model: type[BaseModel], keys: Iterable[int | str]) -> list[str]:
    """The field names, as users write them, of the model at *keys* inside *model*."""
    schema = _schema_of(model)
    node = schema
    for key in keys:
        node = _resolve(node, schema)
        # For a discriminated union, the path contains the chosen variant.
        kinds = node.get("discriminator", {}).get("mapping", {})
        if key in kinds:
            node = {"$ref": kinds[key]}
        elif isinstance(key, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(key) or node.get("additionalProperties") or {}
    return list(_resolve(node, schema).get("properties", {}))


@cache
def _paths_of(model: type[BaseModel]) -> dict[str, str]:
    """The shortest path of each field in *model* and its nested models, by name."""
    paths: dict[str, str] = {}
    level = [("", _schema_of(model))]
    while level:
        below = []
        for prefix, schema in level:
            for name, node in _resolve(schema, _schema_of(model)).get("properties", {}).items():
                path = f"{prefix}{name}"
                if len(path) < len(paths.get(name, path + " ")):
                    paths[name] = path
                below += [(f"{path}.", node), (f"{path}[].", node.get("items", {}))]
        level = below
    return paths


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """*node* with its reference resolved; of alternatives, the one with fields."""
    for choice in node.get("anyOf", ()):
        if "$ref" in choice:
            node = choice
    reference: str = node.get("$ref", "")
    return schema["$defs"][reference.rsplit("/", 1)[1]] if reference else node
