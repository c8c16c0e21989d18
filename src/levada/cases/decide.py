"""What `levada allocate` does: a case as plain values, either kind of it, to the answer of its policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from levada.cases import dragon, standard
from levada.cases.casefile import Case, check
from levada.errors import BadInput, Faults
from levada.plugins import find_policy
from levada.policies.protocol import AnyPolicy
from levada.policies.table import lookup

T = TypeVar("T")

#: The keys that tell the two kinds of cases apart.
STANDARD_KEYS = frozenset({"cluster", "jobs"})
DRAGON_KEYS = frozenset({"mode", "nodes", "running", "pending", "last_action", "priority_pods"})


def decide(raw: dict[str, Any], policy: str | None = None) -> dict[str, Any]:
    """The answer to a case of either kind; *policy* overrides the case's. Raises BadInput."""
    if policy is not None:
        raw = {**raw, "policy": policy}
    if DRAGON_KEYS & raw.keys() and not STANDARD_KEYS & raw.keys():
        return dragon.answer(raw, raw.get("policy"))

    faults = Faults()
    case = _tried(lambda: check(raw), faults)
    # The policy is looked for in any case: what is wrong with it is told together with the rest.
    found = _tried(lambda: _policy(raw, case), faults) if isinstance(raw.get("policy"), str | None) else None
    faults.check()
    assert case is not None
    assert found is not None
    return standard.answer(case, *found)


def _tried(make: Callable[[], T], faults: Faults) -> T | None:
    """What *make* makes; its faults, where it makes nothing, go to those of others."""
    try:
        return make()
    except BadInput as error:
        faults.take(error)
        return None


def _policy(raw: dict[str, Any], case: Case | None) -> tuple[AnyPolicy, int]:
    """The policy that a case names, even one with faults, with its options, and the seed; raises BadInput."""
    name = raw.get("policy")
    if name is None:
        raise BadInput.one("is required", "policy")
    options = dict(given) if isinstance(given := raw.get("options", {}), dict) else {}
    seed = options.pop("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadInput.one("must be a whole number, 0 or more", "options.seed")
    record = lookup(name)
    known = {option.name for option in record.options} if record is not None else set()
    if case is not None and case.entities and "entities" in known:
        options.setdefault("entities", {each: entity.model_dump() for each, entity in case.entities.items()})
    if "shares" in known:
        # One case is answered with the best for the worst-off, whatever rounds take.
        options.setdefault("shares", "leximin")
    return find_policy(name, options), seed
