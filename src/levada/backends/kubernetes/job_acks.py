"""Acknowledgements of the operations of a job, one per generation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from levada.backends.kubernetes.kinds import Ending
from levada.backends.kubernetes.objects import PodObject
from levada.backends.kubernetes.outbox import Outbox
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.kubernetes.seats import PodPlan
from levada.backends.kubernetes.stamp import FAILED, LEFT, QUIT, UNDONE
from levada.core import events as ev
from levada.core.plan import OpKind


class JobAcks:
    """Turns observations of a job into events; `OwnedJob.told` is what was told of the current generation."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def ended(self, job: OwnedJob, pods: Sequence[PodObject], ending: Ending) -> None:
        """Report the end of a job, once for each generation."""
        assert job.stamp is not None
        outcome = "JobsFinished" if ending.succeeded else "JobsFailed"
        if job.told == outcome:
            return
        if job.told in ("", "Released") and job.stamp.kind != OpKind.STOP:
            self._outbox.tell(ev.Running, job)
        job.told = outcome
        codes = [pod.exit_code for pod in pods if pod.exit_code is not None]
        code = 0 if ending.succeeded else next((code for code in codes if code), None)
        text = "all workers are done" if ending.succeeded else ending.why or "the job failed"
        self._outbox.note(job.id, "exit", text, exit_code=code)
        self._outbox.tell(ev.JobsFinished if ending.succeeded else ev.JobsFailed, job)

    def stopped(self, job: OwnedJob) -> None:
        """Report that no pod of a job that stops holds anything."""
        assert job.stamp is not None
        kind, told = {
            FAILED: (ev.OperationFailed, "OperationFailed"),
            LEFT: (ev.JobsLeft, "JobsLeft"),
        }.get(job.stamp.verdict, (ev.Released, "Released"))
        if job.told != told:
            job.told, job.running = told, 0
            if job.stamp.verdict == QUIT and job.stamp.kind != OpKind.STOP:
                return
            self._outbox.tell(kind, job, **({"why": job.stamp.why} if kind is ev.OperationFailed else {}))

    def restarted(self, job: OwnedJob) -> None:
        """Report that all workers have left for a restart with the new size."""
        assert job.stamp is not None
        job.restarting = False
        job.stamp = msgspec.structs.replace(job.stamp, world=job.stamp.generation)
        if job.stamp.kind == OpKind.RESIZE and job.told == "":
            job.told = "Released"
            self._outbox.tell(ev.JobsRestarted, job)
            self._outbox.tell(ev.Released, job)

    def observed(self, job: OwnedJob, plan: PodPlan, *, in_place: bool) -> bool:
        """Report how far a start or resize is; True if a resize has just been completed.

        *in_place*: whether the next resize needs no restart, which the engine must know.
        """
        stamp = job.stamp
        assert stamp is not None
        if stamp.verdict == UNDONE:
            if plan.is_running and job.told != "OperationFailed":
                job.told = "OperationFailed"
                self._outbox.tell(ev.OperationFailed, job, why=stamp.why)
            return False
        if plan.is_released and job.told == "" and stamp.kind == OpKind.RESIZE:
            job.told = "Released"
            self._outbox.tell(ev.Released, job)
        if plan.is_running and job.in_place is not in_place:
            job.in_place = in_place
            modes = np.array([int(in_place)])
            self._outbox.add(ev.ResizeModes(at=0.0, number=np.array([stamp.number]), in_place=modes))
        if plan.is_running and job.told != "Running":
            job.told, job.running, job.ran_on = "Running", plan.running, stamp.places
            self._outbox.tell(ev.Running, job)
            return stamp.kind == OpKind.RESIZE
        if job.told == "Running" and plan.running != job.running:
            kind = ev.WorkersStarted if plan.running > job.running else ev.WorkersStopped
            job.running = plan.running
            self._outbox.tell(kind, job, running=plan.running)
        return False
