"""Policies by name: what `--policy` and a case's `policy` mean."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from levada.errors import BadInput, Fault
from levada.policies.protocol import AnyPolicy
from levada.policies.table import POLICIES, Record, lookup, unknown


def names() -> tuple[str, ...]:
    """The canonical names, in the order of the table."""
    return tuple(record.name for record in POLICIES)


def make(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """The policy of this name or alias; raises BadInput for an unknown name or option, or a value it cannot have."""
    record = lookup(name)
    if record is None:
        raise BadInput.one(unknown(name), "policy")
    given = dict(options or {})
    _check_names(record, given)
    module, _, cls = record.target.partition(":")
    policy: AnyPolicy = getattr(import_module(module), cls)(**given)
    return policy


def _check_names(record: Record, options: Mapping[str, Any]) -> None:
    known = [option.name for option in record.options]
    has = f"has the options {', '.join(known)}" if known else "has no options"
    strange = [name for name in options if name not in known]
    if strange:
        raise BadInput([Fault(f"options.{name}", f"unknown option; {record.name} {has}") for name in strange])
