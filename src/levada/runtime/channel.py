"""How a worker and its supervisor hear of each other: through files, over HTTP, or not at all.

A channel is used by one thread, which may wait; nothing here is called between steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from levada.runtime.place import Place
from levada.runtime.report import Report, Writer
from levada.runtime.world import ENDLESS, Lease, World, parse_lease, parse_world


class News(NamedTuple):
    """What the supervisor has said last."""

    world: World | None = None
    lease: Lease = ENDLESS


class Channel(Protocol):
    """One way to tell how far this worker is and to hear what it is to do."""

    #: Seconds between two looks.
    pace_s: float
    #: Reports that did not get through.
    dropped: int
    #: The latest.
    news: News

    def exchange(self, report: Report, hurry: bool) -> News:
        """Tells *report* and returns the latest news; never raises. In a *hurry* it tells now, due or not."""
        ...


class FolderChannel:
    """Files of the supervisor of this machine: no server is needed to train."""

    pace_s = 0.05

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Writer | None = None
        self.dropped = 0
        self._path = folder.parent.parent / "world.json"
        self._seen: tuple[int, int, int] | None = None
        self.news = News()
        # The supervisor writes it before it starts a worker: the lease is known before the first step.
        self._read_world()

    def exchange(self, report: Report, hurry: bool) -> News:
        """Writes the report in place, and reads the world where its file is a new one."""
        try:
            self._writer = self._writer or Writer(self._folder)
            self._writer.write(report)
        except OSError:
            self.dropped += 1  # a disk that is full stops no training
        self._read_world()
        return self.news

    def _read_world(self) -> None:
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self.news = _news(json.loads(self._path.read_bytes()))
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # not there yet, or not whole: the next look tells


class NoChannel:
    """Nobody listens: a script on its own, or under torchrun."""

    pace_s = 0.05
    dropped = 0

    def __init__(self, world: World) -> None:
        self.news = News(world)

    def exchange(self, report: Report, hurry: bool) -> News:
        """The world of the environment, for good."""
        return self.news


def connect(place: Place) -> Channel:
    """The channel for this place."""
    if place.state is not None:
        if not place.state.is_dir():
            raise FileNotFoundError(
                f"LEVADA_STATE_DIR is {place.state}, which is no folder: unset it to train without a supervisor"
            )
        return FolderChannel(place.state)
    if place.server:
        from levada.runtime.http import HttpChannel  # who needs no server need not import what talks to one

        return HttpChannel(place)
    return NoChannel(place.world)


def _news(told: Any) -> News:
    """What `world.json` says."""
    lease = told.get("lease")
    return News(parse_world(told), ENDLESS if lease is None else parse_lease(lease))
