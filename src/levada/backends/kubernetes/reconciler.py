"""Reconciler: one step towards the last operation of a job, from the caches.

It runs whenever anything changes.

    start     patch size and suspend = false, pin the gated pods, wait until all run
    resize    patch the size; pods that keep a place stay, others are deleted and their replacements pinned. Where the
              kind cannot do that, or rank 0 would move: suspend, wait until the pods are gone, resume with the new size
    stop      suspend, wait until the pods are gone

Each write is followed by another step, so that no step depends on what an earlier one has done. Replacements of pods
that failed come back gated: placing never ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.adoption import make_key
from levada.backends.kubernetes.client import ApiError
from levada.backends.kubernetes.face import face_annotations, face_delay, face_event, shown_in
from levada.backends.kubernetes.job_acks import JobAcks
from levada.backends.kubernetes.job_writer import JobWriter
from levada.backends.kubernetes.kinds import Ending
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.outbox import Outbox
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.kubernetes.seats import PodPlan, holders, plan_pods
from levada.backends.kubernetes.stamp import FAILED, FINISHED, LEFT, UNDONE, Stamp, stamp_of
from levada.core import events as ev
from levada.core.plan import OpKind

_REVERTED = "Put back to {} workers: set levada.dev/min-workers, max-workers or suspend instead"
#: Pause after an eviction that a PodDisruptionBudget forbade.
_EVICTION_S = 5.0
#: Pause after a write that another one overtook.
_CONFLICT_S = 0.02


class JobCaches(Protocol):
    """What the reconciler reads: the caches."""

    def object_of(self, job: OwnedJob) -> JobObject | None:
        """The object of a job; None if it does not exist, or another one has its name."""
        ...

    def pods_of(self, job: OwnedJob, found: JobObject | None) -> list[PodObject]:
        """The pods of a job; without its object, those that are left of it."""
        ...


class JobReconciler:
    """Steps jobs; `step` returns the seconds after which to look again even if nothing changes."""

    def __init__(self, view: JobCaches, writer: JobWriter, outbox: Outbox, epoch: Callable[[Stamp], None]) -> None:
        """*epoch* is called with each stamp that is read."""
        self._view, self._writer, self._outbox, self._see = view, writer, outbox, epoch
        self._acks = JobAcks(outbox)

    async def step(self, job: OwnedJob) -> float | None:
        """Do what is next for a job."""
        try:
            return await self._step(job)
        except ApiError as error:
            if error.is_stale:
                return _CONFLICT_S  # the watch brings the newer version
            raise

    async def _step(self, job: OwnedJob) -> float | None:
        found = self._view.object_of(job)
        pods = self._view.pods_of(job, found)
        # Their kubelet cannot end them any more.
        await self._writer.delete_pods([pod for pod in holders(pods) if self._writer.is_node_gone(pod)])
        if found is None:
            return await self._step_without_object(job, pods)
        written = stamp_of(found.metadata.annotations)
        if written is not None:
            self._see(written)
        if job.cancelled:
            await self._writer.delete_job(job, found)
            return None
        if job.notice is not None:
            await self._writer.event(found, *job.notice)
            job.notice = None
        if job.stamp is None:
            return await self._show(job, found)
        ending = job.kind.ending(found, self._current(job, pods))
        if ending is not None:
            return await self._step_ended(job, found, pods, ending)
        if job.stamp.stops:
            return await self._step_stopping(job, found, pods)
        return await self._step_up(job, found, pods, written)

    async def _step_without_object(self, job: OwnedJob, pods: Sequence[PodObject]) -> float | None:
        """Create the object of a new job; a job whose object was deleted has nothing to run."""
        if job.stamp is None or job.cancelled:
            return None
        if not job.stamp.stops and job.manifest and not job.uid:
            try:
                await self._writer.create_job(job)
            except ApiError as error:
                if error.is_away or error.reason == "AlreadyExists":
                    raise
                self._give_up(job, f"cannot create {job.kind.resource.kind} {job.name}: {error}")
            return 0.0
        if holders(pods):
            if job.kind.makes_pods:
                await self._writer.delete_pods([pod for pod in pods if not pod.is_leaving])
            return None
        if job.stamp.stops:
            self._acks.stopped(job)
        elif not job.told:
            job.told = "OperationFailed"
            self._outbox.depart(job.id if job.manifest else make_key(job.kind, job.namespace, job.name, job.uid))
            what = f"{job.kind.resource.kind} {job.namespace}/{job.name} was deleted"
            self._outbox.tell(ev.OperationFailed, job, why=what)
        return None

    # --- end --------------------------------------------------------------------------------------------------------

    async def _step_ended(
        self, job: OwnedJob, found: JobObject, pods: Sequence[PodObject], ending: Ending
    ) -> float | None:
        """Report the end once no pod holds anything: operators may leave workers of a finished job running."""
        assert job.stamp is not None
        if job.kind.makes_pods and ending.succeeded:
            job.stamp = msgspec.structs.replace(job.stamp, verdict=FINISHED)
        await self._write(job, found, suspend=None)
        alive = holders(pods)
        await self._writer.delete_pods([pod for pod in alive if not pod.is_leaving])
        if alive:
            return None
        self._acks.ended(job, pods, ending)
        return await self._show(job, found)

    async def _step_stopping(self, job: OwnedJob, found: JobObject, pods: Sequence[PodObject]) -> float | None:
        if await self._write(job, found, suspend=True):
            return 0.0
        if job.kind.makes_pods or job.kind.is_pod:
            await self._writer.delete_pods([pod for pod in pods if not pod.is_leaving and not pod.is_gated])
        if not holders(pods):
            self._acks.stopped(job)
            return await self._show(job, found)
        return None

    # --- start, resize, run -----------------------------------------------------------------------------------------

    async def _step_up(
        self, job: OwnedJob, found: JobObject, pods: Sequence[PodObject], written: Stamp | None
    ) -> float | None:
        stamp = job.stamp
        assert stamp is not None
        plan = plan_pods(job.kind, found, self._current(job, pods), stamp.places)
        is_new = written is None or written.generation < stamp.generation
        held = holders(pods)
        if is_new and held and self._needs_restart(job, found, plan):
            job.restarting = True
        if job.restarting:
            if held:
                await self._write(job, found, suspend=True)
                if job.kind.makes_pods:
                    await self._writer.delete_pods([pod for pod in held if not pod.is_leaving])
                return self._overdue(job, plan)
            self._acks.restarted(job)
        edited = job.kind.size(found) != stamp.size or job.kind.is_suspended(found)
        try:
            if await self._write(job, found, suspend=False):
                if edited and not is_new and job.told == "Running" and not job.kind.makes_pods:
                    await self._writer.event(found, "Reverted", _REVERTED.format(stamp.size))
                return 0.0
        except ApiError as error:
            if error.is_away or error.is_stale or error.is_missing:
                raise
            if stamp.kind == OpKind.RESIZE and held and not job.must_restart:
                # E.g. a gang of Kubernetes' own, whose size is fixed while it runs.
                job.must_restart = job.restarting = True
                return 0.0
            self._give_up(job, str(error))
            return 0.0
        delays = [None if await self._move_pods(job, found, pods, plan) else _EVICTION_S]
        in_place = job.kind.is_elastic(found) and not job.must_restart
        if self._acks.observed(job, plan, in_place=in_place):
            await self._writer.touch_servers(job, found, stamp.generation)
        delays.append(await self._show(job, found))
        if job.told in ("", "Released"):
            delays.append(self._overdue(job, plan))
        return min((delay for delay in delays if delay is not None), default=None)

    def _needs_restart(self, job: OwnedJob, found: JobObject, plan: PodPlan) -> bool:
        assert job.stamp is not None
        # A start finds workers only if an earlier operation was lost.
        if job.stamp.kind == OpKind.START or job.must_restart or not job.kind.is_elastic(found):
            return True
        return plan.seating.moves_first or not job.kind.may_move(found, len(plan.seating.moves))

    async def _move_pods(self, job: OwnedJob, found: JobObject, pods: Sequence[PodObject], plan: PodPlan) -> bool:
        """Delete, pin and create pods; False if a deletion must be tried again."""
        assert job.stamp is not None
        current = {pod.metadata.uid for pod in self._current(job, pods)}
        stale = [pod for pod in pods if pod.metadata.uid not in current and not pod.is_leaving]
        await self._writer.delete_pods(stale if not job.kind.makes_pods else [*plan.deletes, *stale])
        allowed = job.kind.makes_pods or await self._writer.evict(plan.deletes)
        await asyncio.gather(*(self._writer.pin(pod, node) for pod, node in plan.pins if self._writer.has_node(node)))
        taken = {pod.metadata.name for pod in pods}
        if plan.creates and not taken:
            await self._writer.create_service(job, found)
        await asyncio.gather(
            *(
                self._writer.create_pod(job, found, ordinal, node)
                for ordinal, node in plan.creates
                if f"{job.name}-{ordinal}" not in taken
            )
        )
        return allowed

    def _current(self, job: OwnedJob, pods: Sequence[PodObject]) -> list[PodObject]:
        """Without pods that Levada made before the last start of all workers."""
        world = 0 if job.stamp is None or not job.kind.makes_pods else job.stamp.world
        return [pod for pod in pods if int(pod.metadata.annotations.get(names.GENERATION, world) or 0) >= world]

    def _overdue(self, job: OwnedJob, plan: PodPlan) -> float:
        """Seconds until the operation has failed; 0 if it has just been rolled back."""
        assert job.stamp is not None
        left = job.since + job.stamp.start_limit_s - asyncio.get_running_loop().time()
        if left > 0:
            return left
        limit = f"{job.stamp.start_limit_s:.0f} s"
        self._give_up(job, f"not all workers run after {limit}: {plan.shortfall()}")
        return 0.0

    def _give_up(self, job: OwnedJob, why: str) -> None:
        """Roll back: a start stops all workers, a resize returns to the places before if these are still the job's."""
        stamp = job.stamp
        assert stamp is not None
        verdict, places = FAILED, stamp.places
        if stamp.kind == OpKind.RESIZE:
            kept = job.told == "" or stamp.only_grows
            undo = stamp.previous and kept and not job.restarting and stamp.verdict == ""
            verdict, places = (UNDONE, stamp.previous) if undo else (LEFT, stamp.places)
        job.stamp = msgspec.structs.replace(stamp, verdict=verdict, why=why, places=places)
        job.told, job.restarting = "", False
        job.since = asyncio.get_running_loop().time()
        self._outbox.note(job.id, "undone", f"rolled back: {why}")

    # --- writes to the object ---------------------------------------------------------------------------------------

    async def _write(self, job: OwnedJob, found: JobObject, suspend: bool | None) -> bool:
        """Write stamp, size and face in one patch if the object differs; None leaves its size. True if written."""
        stamp = job.stamp
        assert stamp is not None
        spec: Mapping[str, Any] = found.spec
        if suspend is not None:
            size = job.kind.size(found) if suspend else stamp.size
            spec = job.kind.planned(found, size, suspend=suspend)
        return await self._patch(job, found, spec, stamp.annotations())

    async def _show(self, job: OwnedJob, found: JobObject) -> float | None:
        """Write the face of a job if that is due."""
        delay = face_delay(job, asyncio.get_running_loop().time())
        if delay == 0.0:
            await self._patch(job, found, found.spec, {})
            return None
        return delay

    async def _patch(
        self, job: OwnedJob, found: JobObject, spec: Mapping[str, Any], annotations: dict[str, str]
    ) -> bool:
        now = asyncio.get_running_loop().time()
        face = job.face if face_delay(job, now) == 0.0 else None
        if face is not None:
            annotations = {**annotations, **face_annotations(face)}
        written = await self._writer.patch_job(job, found, spec, annotations)
        if face is not None:
            before = job.shown or shown_in(found.metadata.annotations)
            job.shown, job.shown_at = face, now
            event = face_event(before, face)
            if event is not None:
                await self._writer.event(found, *event)
        return written
