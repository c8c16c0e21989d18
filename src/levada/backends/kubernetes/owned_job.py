"""State of a job that Levada runs on the cluster, between two looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from levada.backends.kubernetes.kinds import JobKind
from levada.backends.kubernetes.stamp import Stamp
from levada.backends.protocol import Face
from levada.core.grant import WorkerPlace


class OwnedJob(msgspec.Struct, kw_only=True):
    """A job of this store. All that must survive a restart is in `stamp`, which its object carries."""

    id: str
    kind: JobKind
    namespace: str
    name: str
    #: Of its object; empty until it was seen.
    uid: str = ""
    #: The object to create; empty if it exists.
    manifest: Mapping[str, Any] = {}
    #: The last operation; None while the job waits for its first one.
    stamp: Stamp | None = None
    #: The event reported for the stamp: empty, Released, Running, OperationFailed, JobsFinished, JobsFailed, JobsLeft.
    told: str = ""
    #: When the operation began, by the clock of the event loop.
    since: float = 0.0
    #: All workers leave and start again with the new size.
    restarting: bool = False
    #: The API server refused to resize it while it runs.
    must_restart: bool = False
    #: Whether it was reported to resize in place; None before the first report.
    in_place: bool | None = None
    #: Number of running workers that was reported last.
    running: int = 0
    #: Where the workers ran when `Running` was reported last.
    ran_on: tuple[WorkerPlace, ...] = ()
    #: Delete its object: the user cancelled the job.
    cancelled: bool = False
    #: Reason and message of an event that is to be recorded.
    notice: tuple[str, str] | None = None
    #: What users see, what they saw last, and when that was written.
    face: Face | None = None
    shown: Face | None = None
    shown_at: float = float("-inf")

    @property
    def pods_key(self) -> tuple[str, str, str]:
        """The group of its pods in the index of pods."""
        return self.kind.pods_of, self.namespace, self.name
