"""Node classes: which nodes the pods of a job may use.

By node selector, affinity, tolerations and volumes.

Jobs with the same requirements form a class; the engine gets the class of each job, and the classes that each node is
open to. There are few classes: one for each distinct combination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from levada.backends.kubernetes.objects import NodeObject, Taint

#: Jobs that demand nothing of their nodes.
ANY = "any"
#: Taints that Levada handles itself: cordon and health.
_OWN_TAINTS = frozenset(
    f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable", "out-of-service")
)
_BINDING_EFFECTS = ("NoSchedule", "NoExecute")


class NodeDemand(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Requirements of a pod template in a canonical form, so that equal ones are equal values."""

    selector: tuple[tuple[str, str], ...] = ()
    #: JSON of node selector terms: one term of each entry must match.
    terms: tuple[str, ...] = ()
    #: JSON of tolerations.
    tolerations: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the class."""
        if self == NodeDemand():
            return ANY
        return "c" + hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


def node_demand(
    templates: Iterable[Mapping[str, Any]], volume_terms: Callable[[str], Sequence[Any] | None] = lambda _: None
) -> NodeDemand:
    """The demands of pod templates together; `volume_terms(claim)` has the terms of the volume bound to a claim."""
    selector: dict[str, str] = {}
    terms, tolerations = set(), []
    for template in templates:
        spec = template.get("spec") or {}
        selector |= spec.get("nodeSelector") or {}
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
        claims = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ()]
        for each in (required, *(volume_terms(claim) for claim in claims if claim)):
            if each:
                terms.add(_canonical(each))
        tolerations.append({_canonical(toleration) for toleration in spec.get("tolerations") or ()})
    return NodeDemand(
        selector=tuple(sorted(selector.items())),
        terms=tuple(sorted(terms)),
        # A node must tolerate the pods of every template.
        tolerations=tuple(sorted(set.intersection(*tolerations))) if tolerations else (),
    )


def is_eligible(demand: NodeDemand, node: NodeObject) -> bool:
    """Whether pods with these demands may be scheduled on a node."""
    labels = node.metadata.labels
    return (
        all(labels.get(name) == value for name, value in demand.selector)
        and all(any(_matches(term, node) for term in _parsed(terms)) for terms in demand.terms)
        and all(_is_tolerated(taint, demand.tolerations) for taint in node.spec.taints)
    )


def _is_tolerated(taint: Taint, tolerations: Sequence[str]) -> bool:
    if taint.effect not in _BINDING_EFFECTS or taint.key in _OWN_TAINTS:
        return True
    return any(_tolerates(_parsed(toleration), taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, str], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    return toleration["key"] == taint.key and (exists or (toleration.get("value") or "") == taint.value)


def _matches(term: Mapping[str, Any], node: NodeObject) -> bool:
    """Whether all expressions of a term match; an empty term matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    names = {"metadata.name": node.metadata.name}
    return all(_holds(each, node.metadata.labels) for each in expressions) and all(
        _holds(each, names) for each in fields
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), list(expression.get("values") or ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                number, limit = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > limit if operator == "Gt" else number < limit
        case _:
            return False


def _canonical(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


@lru_cache(maxsize=1000)
def _parsed(text: str) -> Any:
    return msgspec.json.decode(text)
