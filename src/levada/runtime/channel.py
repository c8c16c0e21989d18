"""Channels between a worker and its supervisor: files, HTTP, or none.

A channel is used by the heartbeat thread only and may block; the step loop never calls it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from levada.runtime.generation_file import ENDLESS, Lease, World, parse_lease, parse_world
from levada.runtime.report import ProgressReport, Writer
from levada.runtime.worker_env import WorkerEnv


class Instructions(NamedTuple):
    """The latest instructions of the supervisor."""

    world: World | None = None
    lease: Lease = ENDLESS


class Channel(Protocol):
    """A way to report progress and to receive instructions."""

    #: Seconds between two exchanges.
    period_s: float
    #: Number of reports that were lost.
    dropped: int
    #: The latest instructions.
    instructions: Instructions

    def exchange(self, report: ProgressReport, urgent: bool) -> Instructions:
        """Send *report* and return the latest instructions; never raises. *urgent*: send now, due or not."""
        ...


class FolderChannel:
    """Files shared with the supervisor of this machine; training does not need the server."""

    period_s = 0.05

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Writer | None = None
        self.dropped = 0
        self._path = folder.parent.parent / "world.json"
        self._version: tuple[int, int, int] | None = None
        self.instructions = Instructions()
        # The supervisor writes the file before it starts a worker, so the lease is known before the first step.
        self._read_world()

    def exchange(self, report: ProgressReport, urgent: bool) -> Instructions:
        """Write the report in place, and read the world if its file has changed."""
        try:
            self._writer = self._writer or Writer(self._folder)
            self._writer.write(report)
        except OSError:
            self.dropped += 1  # a full disk must not stop training
        self._read_world()
        return self.instructions

    def _read_world(self) -> None:
        try:
            stat = self._path.stat()
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if version != self._version:
                self.instructions = _parse(json.loads(self._path.read_bytes()))
                self._version = version
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # missing or incomplete: the next exchange reads it again


class NoChannel:
    """No supervisor: a script started by hand, or a further process of torchrun."""

    period_s = 0.05
    dropped = 0

    def __init__(self, world: World) -> None:
        self.instructions = Instructions(world)

    def exchange(self, report: ProgressReport, urgent: bool) -> Instructions:
        """Return the world of the environment, which never changes."""
        return self.instructions


def connect(place: WorkerEnv) -> Channel:
    """The channel for this environment."""
    if place.state is not None:
        if not place.state.is_dir():
            raise FileNotFoundError(
                f"LEVADA_STATE_DIR is {place.state}, which is not a folder: unset it to train without a supervisor"
            )
        return FolderChannel(place.state)
    if place.server:
        from levada.runtime.http import HttpChannel  # imported only if needed

        return HttpChannel(place)
    return NoChannel(place.world)


def _parse(document: Any) -> Instructions:
    """Parse the content of `world.json`."""
    lease = document.get("lease")
    return Instructions(parse_world(document), ENDLESS if lease is None else parse_lease(lease))
