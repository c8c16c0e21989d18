"""Faces: what users of a cluster see of their jobs, kept current."""

from __future__ import annotations

from levada.backends.protocol import Face
from levada.core.job import Phase
from levada.live.loop import Loop


class Faces:
    """Follows the history and hands the backend the latest state of each job that it names."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def run(self) -> None:
        """Show all listed jobs, then each one that changes, until cancelled."""
        last = self._loop.broadcast.last
        for job in list(self._loop.records.by_id):
            await self.show(job)
        async for line in self._loop.broadcast.watch(last):
            if line.job is not None:
                await self.show(line.job)

    async def show(self, job_id: str) -> None:
        """Show the state of a job; does nothing for one that is not listed."""
        face = self._face(job_id)
        if face is not None:
            await self._loop.backend.show(job_id, face)

    def _face(self, job_id: str) -> Face | None:
        record, query = self._loop.records.by_id.get(job_id), self._loop.engine.query
        if record is None:
            return None
        if record.result is not None:
            reason = record.result["reason"]
            return Face(state=record.result["phase"], reason=reason["text"] if reason else "")
        job = query.job(job_id)
        if job is None or job.phase == Phase.RESIZING:
            return None  # its end is not stored yet, or its new size is shown when it has it
        return Face(
            state=Phase.label(job.phase),
            reason=query.reason(job_id).text,
            workers=job.held,
            generation=job.generation,
        )
