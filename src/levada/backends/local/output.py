"""What the workers of a job say, wherever they are: the end of it, all of it, and what is added."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from levada.backends.local.hosts import Host
from levada.backends.local.logs import Cursor
from levada.backends.local.roster import started_in
from levada.backends.protocol import LogLine
from levada.errors import NotFound

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend

_FOLLOW_S = 0.25


class _Source:
    """The log of one worker while it is read."""

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.name, self.cursor = host, name, Cursor()


class Output:
    """The output of one job."""

    def __init__(self, backend: LocalBackend, job: str) -> None:
        self._backend, self._job = backend, job

    async def lines(
        self, *, worker: str | None, tail: int | None, follow: bool, previous: bool
    ) -> AsyncIterator[LogLine]:
        """Lines of all its workers, or of one (by index or by name); of those before a restart with *previous*."""
        sources = {source.name: source for source in self._sources(worker, previous)}
        if not sources and worker is not None and not follow:
            raise NotFound(f"{self._job} has no worker {worker!r}; `levada describe {self._job}` lists them")
        if tail is not None:
            for source in sources.values():
                source.cursor = await source.host.log_end(self._job, source.name, tail)
        while True:
            quiet = True
            for source in list(sources.values()):
                async for line in self._read(source, live=follow):
                    quiet = False
                    yield line
            if not follow:
                return
            fresh = [] if previous else self._sources(worker, previous)
            for source in fresh:
                sources.setdefault(source.name, source)
            if quiet and self._is_over():
                return
            await asyncio.sleep(_FOLLOW_S)

    async def _read(self, source: _Source, *, live: bool) -> AsyncIterator[LogLine]:
        """All that is there."""
        while True:
            ended = not self._is_alive(source)
            chunk = await source.host.read_log(self._job, source.name, source.cursor, rest=ended or not live)
            if not chunk.lines:
                return
            for text, at in zip(chunk.lines, chunk.times, strict=True):
                yield LogLine(worker=source.name, at=at, text=text)
            source.cursor = chunk.next

    def _sources(self, worker: str | None, previous: bool) -> list[_Source]:
        """Logs of the newest worker of each place, or of the one before it; a name means just that one."""
        places: dict[str, list[_Source]] = {}
        for host in self._backend.hosts.values():
            for name in host.workers(self._job):
                places.setdefault(name.partition("-")[2], []).append(_Source(host, name))
        found = []
        for place, sources in places.items():
            sources.sort(key=lambda source: started_in(source.name))
            found += [source for source in sources if source.name == worker]
            if worker in (None, place):
                found += sources[-2:-1] if previous else sources[-1:]
        # As they were written: those of an older generation first.
        return sorted(found, key=lambda source: (started_in(source.name), len(source.name), source.name))

    def _is_alive(self, source: _Source) -> bool:
        seen = source.host.workers(self._job).get(source.name)
        return seen is not None and seen.alive

    def _is_over(self) -> bool:
        """Nothing of the job runs, and nothing is under way that would let it."""
        gang = self._backend.gangs.get(self._job)
        return gang is None or not (gang.busy or any(seen.alive for seen in gang.seen.values()))
