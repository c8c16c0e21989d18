"""Detect job changes: compare job columns before and after a turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from levada.core.job import Phase
from levada.core.reasons import with_phase
from levada.core.types import Ints
from levada.engine.queries import Queries

#: Columns that are compared. Changes of the first six go to the history; all but the reason are part of the commanded
#: state.
_WATCHED = (
    "number",
    "phase",
    "held",
    "held_type",
    "generation",
    "reason",
    "issued",
    "intent",
    "unsure",
    "waits_for",
    "aside",
    "failures",
)
_REASON = _WATCHED.index("reason")


class JobChange(NamedTuple):
    """One change of one job."""

    number: int
    type: str
    text: str
    data: Mapping[str, Any]


class ChangeDetector:
    """Keeps the watched columns as they were after the last turn."""

    def __init__(self, query: Queries) -> None:
        #: Watched columns; replaced in each turn, never mutated.
        self.last = _columns(query)
        #: Numbers of the jobs whose commanded state the last turn may have changed.
        self.moved: list[int] = []

    def changes(self, query: Queries) -> Iterator[JobChange]:
        """Yield the changes of a turn in slot order; ended jobs have left the table and are not included."""
        before, now = self.last, _columns(query)
        self.last = now
        if before.shape[1] < now.shape[1]:
            padding = np.full((len(_WATCHED), now.shape[1] - before.shape[1]), -1, np.int64)
            before = np.concatenate([before, padding], axis=1)
        differs = before != now
        changed = (differs.any(axis=0) & (now[0] >= 0)).nonzero()[0]
        differs[_REASON] = False
        self.moved = now[0][differs.any(axis=0) & (now[0] >= 0)].tolist()
        for slot in changed.tolist():
            yield from _changes_of(query, slot, before[:, slot], now[:, slot])


def _columns(query: Queries) -> Ints:
    return query.jobs.among(_WATCHED)


def _changes_of(query: Queries, slot: int, before: Ints, now: Ints) -> Iterator[JobChange]:
    number, phase, held, held_type, generation, code = (int(value) for value in now[:6])
    types = query.cluster.types
    is_new = int(before[0]) != number
    why = query.reason(query.job_id(number))
    if is_new:
        yield JobChange(number, "submitted", "Accepted.", {"phase": Phase.label(phase)})
    if (not is_new and int(before[1]) != phase) or (is_new and phase != Phase.PENDING):
        name = Phase.label(phase)
        yield JobChange(number, "phase", with_phase(name, why.text), {"phase": name, "reason": why.code})
    elif not is_new and int(before[5]) != code and phase == Phase.PENDING:
        yield JobChange(number, "reason", why.text, {"phase": Phase.label(phase), "reason": why.code})
    had, had_type = (0, -1) if is_new else (int(before[2]), int(before[3]))
    if (held, held_type if held else -1) != (had, had_type if had else -1):
        kind = types[held_type] if held and held_type > 0 else None
        text = f"Has {held} worker{'' if held == 1 else 's'}{f' on {kind}' if kind else ''} (before: {had})."
        yield JobChange(
            number, "grant", text, {"workers": held, "before": had, "gpu_type": kind, "generation": generation}
        )
