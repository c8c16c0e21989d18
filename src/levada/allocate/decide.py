"""`levada allocate` without files: from a case of either kind to the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from levada.allocate import dragon, standard
from levada.allocate.case_file import Case, check
from levada.errors import BadInput, Faults
from levada.plugins import find_policy
from levada.policies.protocol import AnyPolicy
from levada.policies.registry import lookup

T = TypeVar("T")

#: The keys that distinguish the two kinds of cases.
STANDARD_KEYS = frozenset({"cluster", "jobs"})
DRAGON_KEYS = frozenset({"mode", "nodes", "running", "pending", "last_action", "priority_pods"})


def decide(raw: dict[str, Any], policy: str | None = None) -> dict[str, Any]:
    """The answer to a case; *policy* overrides that of the case. Raises BadInput."""
    if policy is not None:
        raw = {**raw, "policy": policy}
    if DRAGON_KEYS & raw.keys() and not STANDARD_KEYS & raw.keys():
        return dragon.answer(raw, raw.get("policy"))

    faults = Faults()
    case = _tried(lambda: check(raw), faults)
    # Look up the policy even if the case has faults, to report the faults of both together.
    policy_and_seed = _tried(lambda: _policy(raw, case), faults) if isinstance(raw.get("policy"), str | None) else None
    faults.check()
    assert case is not None
    assert policy_and_seed is not None
    return standard.answer(case, *policy_and_seed)


def _tried(make: Callable[[], T], faults: Faults) -> T | None:
    """The result of *make*, or None; its faults are added to *faults*."""
    try:
        return make()
    except BadInput as error:
        faults.take(error)
        return None


def _policy(raw: dict[str, Any], case: Case | None) -> tuple[AnyPolicy, int]:
    """The policy of a case with its options, and the seed; raises BadInput."""
    name = raw.get("policy")
    if name is None:
        raise BadInput.one("is required", "policy")
    options = dict(raw["options"]) if isinstance(raw.get("options"), dict) else {}
    seed = options.pop("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadInput.one("must be a whole number, 0 or more", "options.seed")
    record = lookup(name)
    known = {option.name for option in record.options} if record is not None else set()
    if case is not None and case.entities and "entities" in known:
        options.setdefault("entities", {key: entity.model_dump() for key, entity in case.entities.items()})
    if "shares" in known:
        # The answer to a case is leximin, whatever the default in rounds is.
        options.setdefault("shares", "leximin")
    return find_policy(name, options), seed
