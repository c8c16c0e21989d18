"""Jobs that the cluster of a case can never hold; no policy sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from levada.allocate.build_cluster import CaseWorld, gpu_types
from levada.core.layout import NOT_ALLOWED
from levada.core.reasons import Code, Reason, reason
from levada.core.types import CPU_TYPE
from levada.errors import did_you_mean

if TYPE_CHECKING:
    from levada.allocate.case_file import Case


def infeasible(case: Case, setup: CaseWorld) -> dict[int, Reason]:
    """By slot why the cluster can never hold a job, with similar type names."""
    table, inventory, slots = setup.world.table, setup.world.inventory, setup.slots
    exists = np.bincount(inventory.type_of, minlength=len(inventory.types)) > 0
    exists[CPU_TYPE] = len(inventory.nodes) > 0
    allowed = (table.preference[:, slots] != NOT_ALLOWED) & exists[:, None]
    unit = table.units()[slots]
    most = np.where(allowed, inventory.capacity()[:, None], 0).max(axis=0) // np.maximum(unit, 1)
    nowhere = ~allowed.any(axis=0)
    too_large = ~nowhere & (unit > 0) & (most < table.min[slots])
    refused = {int(slot): reason(Code.UNKNOWN_TYPE) for slot in slots[nowhere]}
    refused |= {
        int(slot): reason(Code.TOO_LARGE, int(n), _too_large(int(table.min[slot]), int(n)))
        for slot, n in zip(slots[too_large], most[too_large], strict=True)
    }
    _suggest_types(case, setup, refused)
    return refused


def _too_large(least: int, room: int) -> str:
    return f"Can never start: needs at least {least} worker{'' if least == 1 else 's'}, the cluster can hold {room}."


def _suggest_types(case: Case, setup: CaseWorld, refused: dict[int, Reason]) -> None:
    """Add similar type names to the reasons of jobs whose types do not exist."""
    types = gpu_types(case.cluster)
    for slot, job in zip(setup.slots.tolist(), case.jobs, strict=True):
        if slot in refused and job.gpu_types and not set(types) & set(job.gpu_types):
            why = refused[slot]
            text = why.text.rstrip(".") + did_you_mean(job.gpu_types[0], types, f"it has {', '.join(types) or 'none'}.")
            refused[slot] = Reason(code=why.code, text=text)
