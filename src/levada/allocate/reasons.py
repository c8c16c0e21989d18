"""The reasons of a case's answer: why each job has its size."""

from __future__ import annotations

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code, Reason, reason
from levada.core.types import CPU_TYPE, WHOLE
from levada.tables.snapshot import Snapshot

#: A server uses `NEW` before the first decision about a job; in a case, the policy has skipped the job.
_SKIPPED = "Waiting for the next decision: the policy starts one job per decision."


class SizeReasons:
    """The reasons of the sizes of *decision*, with the remaining capacity."""

    def __init__(self, policy: str, snap: Snapshot, decision: Decision) -> None:
        self._policy, self._snap, self._decision = policy, snap, decision
        used, runs = np.zeros_like(snap.capacity), decision.count > 0
        np.add.at(used, decision.type[runs], (decision.count * snap.jobs.unit)[runs])
        self._left = np.maximum(snap.capacity - used, 0)

    def of(self, row: int) -> Reason:
        """The reason for the size of the job in *row*."""
        code, evidence = self._decision.reason.item(row), self._decision.evidence.item(row)
        if code == Code.RUNS:
            return reason(code, text=self._size(row))
        if code == Code.CAPACITY:
            return reason(code, text=self._shortage(row))
        return reason(code, evidence, _SKIPPED if code == Code.NEW else "")

    def _size(self, row: int) -> str:
        jobs, count, kind = self._snap.jobs, self._decision.count.item(row), self._decision.type.item(row)
        most = jobs.max.item(row)
        if count >= most:
            only = jobs.min[row] == most
            return f"Has {_workers(count)}, {'its only size' if only else 'the most that it may have'}."
        left = f"{self._left[kind] / WHOLE:g} of {self._snap.capacity[kind] / WHOLE:g} {self._unit(kind)} are left"
        enough = self._left[kind] >= jobs.step[row] * jobs.unit[row]
        more = f", and {self._policy} gives it no more" if enough else ""
        return f"Has {count} of at most {most} workers; {left}{more}."

    def _shortage(self, row: int) -> str:
        jobs = self._snap.jobs
        need = int(jobs.min[row] * jobs.unit[row])
        what = "core" if jobs.milli[row] == 0 else "GPU"
        types = np.flatnonzero(self._snap.allowed[row] & (self._snap.capacity > 0)).tolist()
        left = ", ".join(f"{self._left[kind] / WHOLE:g} {self._name(kind)}left" for kind in types)
        return f"Needs {need / WHOLE:g} {what}{'' if need <= WHOLE else 's'}; {left}." if left else ""

    def _name(self, kind: int) -> str:
        return "" if kind == CPU_TYPE else f"{self._snap.inventory.types[kind]} "

    def _unit(self, kind: int) -> str:
        return f"{self._name(kind)}{'cores' if kind == CPU_TYPE else 'GPUs'}"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def percent(part: float) -> str:
    """A fraction as a percentage without the sign, or "<0.01"."""
    return f"{100 * part:.4g}" if part >= 1e-4 else "<0.01"
