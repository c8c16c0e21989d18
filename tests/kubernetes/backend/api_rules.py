"""Rules of the API server: selectors, patches, and what may change in a pod."""

from __future__ import annotations

from typing import Any

from levada.backends.kubernetes.client import ApiError

Object = dict[str, Any]


def selector_matches(body: Object, selector: str) -> bool:
    """Whether an object has the labels of a selector like `a,b=c`."""
    labels = body["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, _, value = term.partition("=")
        if name not in labels or (value and labels[name] != value):
            return False
    return True


def is_over(pod: Object) -> bool:
    """Whether a pod has ended."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_gated(pod: Object) -> bool:
    """Whether a pod has scheduling gates."""
    return bool(pod["spec"].get("schedulingGates"))


def merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def apply_operation(body: Object, operation: Object) -> None:
    """One operation of RFC 6902 (test, add, remove); raises ApiError 422 without detail."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    at: Any = body
    try:
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        index: Any = int(last) if isinstance(at, list) else last
        match operation["op"]:
            case "test":
                if at[index] != operation["value"]:
                    raise KeyError(last)
            case "add":
                at[index] = operation["value"]
            case "remove":
                del at[index]
    except (KeyError, IndexError):
        raise ApiError(422, "the server rejected our request due to an error in our request", "Invalid") from None


def check_pod(before: Object, after: Object) -> None:
    """Refuse what Kubernetes refuses: new gates, changed selectors; raises ApiError 422."""
    old, new = before["spec"], after["spec"]
    gates = [gate["name"] for gate in old.get("schedulingGates") or ()]
    if any(gate["name"] not in gates for gate in new.get("schedulingGates") or ()):
        raise ApiError(422, "spec.schedulingGates: only deletion is allowed", "Invalid")
    selector, wanted = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    if not gates and selector != wanted:
        raise ApiError(422, "spec.nodeSelector: field is immutable", "Invalid")
    if any(wanted.get(name) != value for name, value in selector.items()):
        raise ApiError(422, "spec.nodeSelector: only additions are allowed", "Invalid")
