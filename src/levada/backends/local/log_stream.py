"""Log stream of a job: output of its workers on all machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from levada.backends.local.logs import Cursor
from levada.backends.local.machines import MachineLink
from levada.backends.local.members import started_in
from levada.backends.protocol import LogLine
from levada.errors import NotFound

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend

_FOLLOW_S = 0.25


class _Source:
    """The log of one worker and the position in it."""

    def __init__(self, host: MachineLink, name: str) -> None:
        self.host, self.name, self.cursor = host, name, Cursor()


class LogStream:
    """Reads the output of one job."""

    def __init__(self, backend: LocalBackend, job: str) -> None:
        self._backend, self._job = backend, job

    async def lines(
        self, *, worker: str | None, tail: int | None, follow: bool, previous: bool
    ) -> AsyncIterator[LogLine]:
        """Yield lines of all workers, or of one (by index or name); *previous*: of those before the last restart."""
        sources = {source.name: source for source in self._sources(worker, previous)}
        if not sources and worker is not None and not follow:
            raise NotFound(f"{self._job} has no worker {worker!r}; `levada describe {self._job}` lists them")
        if tail is not None:
            for source in sources.values():
                source.cursor = await source.host.log_end(self._job, source.name, tail)
        while True:
            idle = True
            for source in list(sources.values()):
                async for line in self._read(source, live=follow):
                    idle = False
                    yield line
            if not follow:
                return
            new = [] if previous else self._sources(worker, previous)
            for source in new:
                sources.setdefault(source.name, source)
            if idle and self._is_over():
                return
            await asyncio.sleep(_FOLLOW_S)

    async def _read(self, source: _Source, *, live: bool) -> AsyncIterator[LogLine]:
        """Yield all lines that are available now."""
        while True:
            ended = not self._is_alive(source)
            chunk = await source.host.read_log(self._job, source.name, source.cursor, rest=ended or not live)
            if not chunk.lines:
                return
            for text, at in zip(chunk.lines, chunk.times, strict=True):
                yield LogLine(worker=source.name, at=at, text=text)
            source.cursor = chunk.next

    def _sources(self, worker: str | None, previous: bool) -> list[_Source]:
        """Logs of the newest worker per place, or with *previous* of the one before it; a name selects one worker."""
        places: dict[str, list[_Source]] = {}
        for host in self._backend.hosts.values():
            for name in host.workers(self._job):
                places.setdefault(name.partition("-")[2], []).append(_Source(host, name))
        selected = []
        for place, sources in places.items():
            sources.sort(key=lambda source: started_in(source.name))
            selected += [source for source in sources if source.name == worker]
            if worker in (None, place):
                selected += sources[-2:-1] if previous else sources[-1:]
        # Older generations first.
        return sorted(selected, key=lambda source: (started_in(source.name), len(source.name), source.name))

    def _is_alive(self, source: _Source) -> bool:
        status = source.host.workers(self._job).get(source.name)
        return status is not None and status.alive

    def _is_over(self) -> bool:
        """Whether no worker of the job runs and no operation is under way."""
        controller = self._backend.controllers.get(self._job)
        return controller is None or not (controller.busy or controller.workers.alive())
