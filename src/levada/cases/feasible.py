"""Jobs that the cluster of a case could never hold: no policy sees them, so they stand in nobody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from levada.cases.scene import Scene, gpu_types
from levada.core.layout import NOT_ALLOWED
from levada.core.reasons import Code, Reason, reason
from levada.core.types import CPU_TYPE
from levada.errors import did_you_mean

if TYPE_CHECKING:
    from levada.cases.casefile import Case


def infeasible(case: Case, scene: Scene) -> dict[int, Reason]:
    """By slot, why no state of the cluster could hold the job, with types that may have been meant."""
    table, inventory, slots = scene.world.table, scene.world.inventory, scene.slots
    exists = np.bincount(inventory.type_of, minlength=len(inventory.types)) > 0
    exists[CPU_TYPE] = len(inventory.nodes) > 0
    allowed = (table.preference[:, slots] != NOT_ALLOWED) & exists[:, None]
    unit = table.units()[slots]
    most = np.where(allowed, inventory.capacity()[:, None], 0).max(axis=0) // np.maximum(unit, 1)
    nowhere = ~allowed.any(axis=0)
    too_large = ~nowhere & (unit > 0) & (most < table.min[slots])
    refused = {int(slot): reason(Code.UNKNOWN_TYPE) for slot in slots[nowhere]}
    refused |= {
        int(slot): reason(Code.TOO_LARGE, int(n)) for slot, n in zip(slots[too_large], most[too_large], strict=True)
    }
    _suggest_types(case, scene, refused)
    return refused


def _suggest_types(case: Case, scene: Scene, refused: dict[int, Reason]) -> None:
    """Adds to the reason of jobs whose types do not exist those that may have been meant."""
    types = gpu_types(case.cluster)
    for slot, job in zip(scene.slots.tolist(), case.jobs, strict=True):
        if slot in refused and job.gpu_types and not set(types) & set(job.gpu_types):
            why = refused[slot]
            text = why.text.rstrip(".") + did_you_mean(job.gpu_types[0], types, f"it has {', '.join(types) or 'none'}.")
            refused[slot] = Reason(code=why.code, text=text)
