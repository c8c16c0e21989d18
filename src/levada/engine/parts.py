"""What an engine's state is made of: the one list for forks, snapshots and checkpoints of simulations.

A field of `State` that is not in it cannot be copied or dumped, and both say so.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from levada.engine.state import State


class Part(Enum):
    """How a field is copied and dumped."""

    #: A plain value: shared by forks, dumped under its name.
    VALUE = "value"
    #: Never changed in place: shared by forks, dumped in a form of its own.
    SETTING = "setting"
    #: A list, dict or set of values that never change: copied one level deep, dumped in a form of its own.
    CONTAINER = "container"
    #: Changed in place: copied and dumped by its own rules.
    OWN = "own"
    #: Follows from the rest, or is empty between events: copied one level deep, never dumped.
    CACHE = "cache"


#: Fields that follow from the rest, or are empty between events, with what they begin as.
CACHES: Final[Mapping[str, type[dict[Any, Any]] | type[set[Any]] | type[list[Any]]]] = {
    "most_workers": dict,
    "fits": set,
    "commands": list,
}

PARTS: Final[dict[str, Part]] = {
    **dict.fromkeys(
        (
            *("now", "revision", "seed", "submitted", "ended", "refused", "stale_results", "renumbered"),
            *("dirty", "turnover", "acked", "left_out", "heed_at", "fills", "deciding", "asked_policy"),
            *("last_decided", "rejections", "last_rejection", "next_try", "policy_wake", "guard_wake", "next_alarm"),
            *("last_rung", "told_wake", "may_issue", "unsent", "may_cycle"),
        ),
        Part.VALUE,
    ),
    **dict.fromkeys(
        ("policy", "policy_named", "policy_options", "make_policy", "options", "in_view"),
        Part.SETTING,
    ),
    # Lessons, pauses and jobs that are over have been learned from when a dump is made.
    **dict.fromkeys(("lessons", "pauses", "over", "reservations", "leaves"), Part.CONTAINER),
    **dict.fromkeys(("world", "policy_state", "perf", "dependents", "claimed_rows"), Part.OWN),
    **dict.fromkeys(CACHES, Part.CACHE),
}


def values(state: State, *kinds: Part) -> Iterator[tuple[str, Any]]:
    """Fields of these kinds (all unless given) with their values; raises TypeError where one is not in the list."""
    if vars(state).keys() != PARTS.keys():
        raise TypeError(f"engine.parts and State differ: {sorted(vars(state).keys() ^ PARTS.keys())}")
    return ((name, value) for name, value in vars(state).items() if not kinds or PARTS[name] in kinds)


def copied(state: State) -> State:
    """An independent copy, in O(active jobs + devices): nothing that either one changes is shared.

    Pending lessons go along as they are. Learning them here would change what this state believes, and when, by
    asking.
    """
    twin = State.__new__(State)
    fields = vars(twin)
    fields.update(values(state, Part.VALUE, Part.SETTING))
    fields.update((name, value.copy()) for name, value in values(state, Part.CONTAINER, Part.CACHE))
    twin.world = state.world.copy()
    twin.policy_state = copy.deepcopy(state.policy_state)
    twin.perf = state.copy_of_perf(twin.world)
    twin.dependents = {number: list(after) for number, after in state.dependents.items()}
    twin.claimed_rows = {number: rows.copy() for number, rows in state.claimed_rows.items()}
    return twin
