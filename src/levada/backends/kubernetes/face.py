"""What users of the cluster see of their jobs: annotations and events.

Never the status, which operators write.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from levada.backends.kubernetes import names
from levada.backends.kubernetes.objects import JobObject
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.protocol import Face

#: Least time between two writes for one job, unless its state or size changed.
_QUIET_S = 5.0
_LONGEST_MESSAGE = 1000


def face_delay(job: OwnedJob, now: float) -> float | None:
    """Seconds until the latest face may be written: 0 = now; None = it is written already."""
    face, shown = job.face, job.shown
    if face is None or face == shown:
        return None
    if shown is None or (face.state, face.workers) != (shown.state, shown.workers):
        return 0.0
    return max(0.0, job.shown_at + _QUIET_S - now)


def face_annotations(face: Face) -> dict[str, str]:
    """The annotations of a face."""
    return {names.STATE: face.state, names.REASON: face.reason, names.WORKERS: str(face.workers)}


def shown_in(annotations: Mapping[str, str]) -> Face | None:
    """The face that an object shows; None if it shows none."""
    if names.STATE not in annotations:
        return None
    workers = annotations.get(names.WORKERS, "0")
    return Face(
        state=annotations[names.STATE],
        reason=annotations.get(names.REASON, ""),
        workers=int(workers) if workers.isdecimal() else 0,
    )


def face_event(before: Face | None, face: Face) -> tuple[str, str] | None:
    """The reason and message of the event for a change; None if only details changed."""
    if before is not None and before.state == face.state == "Running" and before.workers != face.workers:
        return "Resized", f"Resized {before.workers} -> {face.workers} workers"
    if before is not None and before.state == face.state:
        return None
    match face.state:
        case "Pending":
            stopped = before is not None and before.state in ("Stopping", "Running")
            return "Preempted" if stopped else "Queued", face.reason or "Waiting for capacity"
        case "Starting":
            return "Admitted", f"Starting {face.workers} workers"
        case _:
            return face.state, face.reason or face.state


def event_body(job: JobObject, reason: str, message: str, now: float) -> dict[str, Any]:
    """An Event about a job; Refused and trouble are warnings."""
    at = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"
    meta = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta.name[:200]}.", "namespace": meta.namespace},
        "involvedObject": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
        "type": "Warning" if reason in ("Refused", "AlreadyRunning", "Failed") else "Normal",
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": "levada"},
        "reportingComponent": "levada",
    }
