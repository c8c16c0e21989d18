"""What happened to jobs, told by comparing the engine's columns before and after a turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from levada.core.job import Phase
from levada.core.reasons import reason
from levada.core.types import Ints
from levada.engine.queries import Queries

#: People are told of changes of the first six; all but the reason are changes of how a job stands.
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


class Happened(NamedTuple):
    """One change of one job."""

    number: int
    type: str
    text: str
    data: Mapping[str, Any]


class Chronicle:
    """Remembers how jobs looked after the last turn."""

    def __init__(self, query: Queries) -> None:
        #: How they looked; replaced by each turn, never changed.
        self.last = _columns(query)
        #: Numbers of the jobs that stand otherwise since the last turn.
        self.moved: list[int] = []

    def changes(self, query: Queries) -> Iterator[Happened]:
        """What a turn changed, by slot; jobs that are over are told of elsewhere."""
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
            yield from _told(query, slot, before[:, slot], now[:, slot])


def _columns(query: Queries) -> Ints:
    return query.jobs.among(_WATCHED)


def _told(query: Queries, slot: int, before: Ints, now: Ints) -> Iterator[Happened]:
    number, phase, held, held_type, generation, code = (int(value) for value in now[:6])
    types = query.cluster.types
    is_new = int(before[0]) != number
    why = reason(code, int(query.jobs.evidence[slot]))
    if is_new:
        yield Happened(number, "submitted", "It was accepted.", {"phase": Phase.label(phase)})
    if (not is_new and int(before[1]) != phase) or (is_new and phase != Phase.PENDING):
        name = Phase.label(phase)
        yield Happened(number, "phase", f"{name}: {why.text}", {"phase": name, "reason": why.code})
    elif not is_new and int(before[5]) != code and phase == Phase.PENDING:
        yield Happened(number, "reason", why.text, {"phase": Phase.label(phase), "reason": why.code})
    had, had_type = (0, -1) if is_new else (int(before[2]), int(before[3]))
    if (held, held_type if held else -1) != (had, had_type if had else -1):
        kind = types[held_type] if held and held_type > 0 else None
        text = f"It has {held} worker{'' if held == 1 else 's'}{f' on {kind}' if kind else ''}; it had {had}."
        yield Happened(
            number, "grant", text, {"workers": held, "before": had, "gpu_type": kind, "generation": generation}
        )
