"""The fields of an engine's state.

The only list for forks, snapshots and simulator checkpoints.

Copying and dumping raise if `State` has a field that is not in the list. Names of `VALUE` fields are stored in dumps.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from levada.engine.state import State


class FieldKind(Enum):
    """How a field is copied and dumped."""

    #: A plain value: shared by forks, dumped under its name.
    VALUE = "value"
    #: Immutable: shared by forks, dumped by separate code.
    SETTING = "setting"
    #: A list, dict or set of immutable values: copied one level deep, dumped by separate code.
    CONTAINER = "container"
    #: Mutable: copied and dumped by separate code.
    OWN = "own"
    #: Computed from other fields, or empty between events: copied one level deep, never dumped.
    CACHE = "cache"


#: Fields that are computed from others or empty between events, with their initial types.
CACHES: Final[Mapping[str, type[dict[Any, Any]] | type[set[Any]] | type[list[Any]]]] = {
    "most_workers": dict,
    "fits": set,
    "commands": list,
}

PARTS: Final[dict[str, FieldKind]] = {
    **dict.fromkeys(
        (
            *("now", "revision", "seed", "submitted", "ended", "refused", "stale_results", "renumbered"),
            *("dirty", "turnover", "acked", "left_out", "heed_at", "fills", "deciding", "asked_policy"),
            *("last_decided", "rejections", "last_rejection", "next_try", "policy_wake", "guard_wake", "next_alarm"),
            *("last_rung", "told_wake", "may_issue", "unsent", "may_cycle", "unclaimed"),
            *("fill_only", "redecisions", "most_placed", "away_since"),
        ),
        FieldKind.VALUE,
    ),
    **dict.fromkeys(
        ("policy", "policy_named", "policy_options", "make_policy", "options", "in_view"),
        FieldKind.SETTING,
    ),
    # `lessons`, `pauses` and `over` are empty when a dump is made: the engine learns first.
    **dict.fromkeys(("lessons", "pauses", "over", "reservations", "leaves", "unmet"), FieldKind.CONTAINER),
    **dict.fromkeys(("world", "policy_state", "perf", "dependents", "claimed_rows"), FieldKind.OWN),
    **dict.fromkeys(CACHES, FieldKind.CACHE),
}


def values(state: State, *kinds: FieldKind) -> Iterator[tuple[str, Any]]:
    """Names and values of fields of *kinds* (default: all); raises TypeError if a field is not in the list."""
    if vars(state).keys() != PARTS.keys():
        raise TypeError(f"state_fields.PARTS and State differ: {sorted(vars(state).keys() ^ PARTS.keys())}")
    return ((name, value) for name, value in vars(state).items() if not kinds or PARTS[name] in kinds)


def copied(state: State) -> State:
    """An independent copy, in O(active jobs + devices).

    Queued observations are copied, not learned: a copy must not change the original.
    """
    twin = State.__new__(State)
    fields = vars(twin)
    fields.update(values(state, FieldKind.VALUE, FieldKind.SETTING))
    fields.update((name, value.copy()) for name, value in values(state, FieldKind.CONTAINER, FieldKind.CACHE))
    twin.world = state.world.copy()
    twin.policy_state = copy.deepcopy(state.policy_state)
    twin.perf = state.copy_of_perf(twin.world)
    twin.dependents = {number: list(dependents) for number, dependents in state.dependents.items()}
    twin.claimed_rows = {number: rows.copy() for number, rows in state.claimed_rows.items()}
    return twin
