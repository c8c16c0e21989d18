"""Reasons why a job waits or has its size: codes in columns, and texts."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from levada.core.codes import Codes
from levada.core.types import Ints


class Code(Codes):
    """Codes of reasons. Each waiting job has exactly one."""

    #: Not waiting.
    RUNS: Final = 0
    NEW: Final = 1
    CAPACITY: Final = 2
    FRAGMENTED: Final = 3
    QUEUE_SHARE: Final = 4
    QUEUE_LIMIT: Final = 5
    TOO_LARGE: Final = 6
    UNKNOWN_TYPE: Final = 7
    DEPENDENCY: Final = 8
    DEPENDENCY_FAILED: Final = 9
    SUSPENDED: Final = 10
    PREEMPTED: Final = 11
    NODE_LOST: Final = 12
    RESTARTING: Final = 13
    BACKOFF: Final = 14
    SET_ASIDE: Final = 15
    REJECTED: Final = 16
    STARTING: Final = 17
    STOPPING: Final = 18
    RESERVED: Final = 19
    HELD_DOWN: Final = 20
    NO_GAIN: Final = 21
    UNKNOWN_SPEED: Final = 22
    FINISHED: Final = 23
    CANCELLED: Final = 24
    FAILED: Final = 25
    WAITS_FOR_DEVICES: Final = 26
    INVALID: Final = 27
    TIME_LIMIT: Final = 28
    USER_LIMIT: Final = 29
    IN_LINE: Final = 30
    CANNOT_RUN: Final = 31
    INTERRUPTED: Final = 32
    DRAINED: Final = 33
    LEFT: Final = 34
    RESIZING: Final = 35
    #: Like `RESIZING`, by a restart of all workers.
    RESTARTING_RESIZED: Final = 36
    #: A worker was lost, fewer than the minimum are left, and no retries remain.
    NO_RETRIES: Final = 37
    #: Preempted by a job that had to leave its node.
    MADE_ROOM: Final = 38
    #: Free devices are on nodes that are closed to its class.
    INELIGIBLE_NODES: Final = 39
    #: Instead of any other reason to wait for an operation; not stored in columns.
    BACKEND_AWAY: Final = 40


#: A sentence per code, for callers without an engine; `engine.reason_text` writes sentences with current numbers. Empty
#: where the phase says enough. `{evidence}` is the number in the evidence column, `{workers}` and `{others}` that many
#: workers or other jobs.
SENTENCES: dict[int, str] = {
    Code.RUNS: "",
    Code.NEW: "Queued; waiting for the next scheduling decision.",
    Code.CAPACITY: "Insufficient free GPUs: the rest are used by jobs ahead of it or are out of service.",
    Code.FRAGMENTED: "Enough GPUs are free, but the nodes can hold only {workers}.",
    Code.QUEUE_SHARE: "Its queue may not use enough GPUs now: its share is used, and it may not borrow more.",
    Code.QUEUE_LIMIT: "The limit of its queue leaves no room for its minimum.",
    Code.TOO_LARGE: "Can never start: the cluster can hold {workers} at most, fewer than its minimum.",
    Code.UNKNOWN_TYPE: "Can never start: no node has a GPU of a type that it allows.",
    Code.DEPENDENCY: "Waiting for {others} to succeed.",
    Code.DEPENDENCY_FAILED: "Depends on a job that did not succeed: cancel and resubmit.",
    Code.SUSPENDED: "Suspended by its user; `levada resume` continues it.",
    Code.PREEMPTED: "Preempted by other jobs; waiting for free GPUs.",
    Code.NODE_LOST: "Lost a node that it ran on; restarting from its checkpoint.",
    Code.RESTARTING: "Failed; restarting from its checkpoint (retry {evidence}).",
    Code.BACKOFF: "Start, resize or stop failed; retrying after a backoff (attempt {evidence}).",
    Code.SET_ASIDE: "Set aside after {evidence} failures in a row, until it is updated or resumed.",
    Code.REJECTED: "The last decision of the policy was invalid and rejected.",
    Code.STARTING: "Starting.",
    Code.STOPPING: "Stopping.",
    Code.RESERVED: "The GPUs it needs are reserved for serving pods, or for a job ahead of it.",
    Code.HELD_DOWN: "May grow again after {evidence} s without new demand by serving pods.",
    Code.NO_GAIN: "More GPUs would not make it faster.",
    Code.UNKNOWN_SPEED: "Speed or remaining work unknown, and the policy needs it: declare steps or epochs.",
    Code.FINISHED: "",
    Code.CANCELLED: "",
    Code.FAILED: "Failed.",
    Code.WAITS_FOR_DEVICES: "Waiting for other jobs to release {evidence} of its devices.",
    Code.IN_LINE: "Blocked by a job ahead of it; this policy does not backfill.",
    Code.CANNOT_RUN: "Not expected to make progress on any GPU type of this cluster.",
    Code.INTERRUPTED: "Stopped with the server; restarting from its checkpoint, if it saved one.",
    Code.DRAINED: "Its node is being drained; waiting for free GPUs elsewhere.",
    Code.LEFT: "Exited with code 75 soon after its start (consecutive exits: {evidence}); "
    "restarting from its checkpoint after a pause.",
    Code.MADE_ROOM: "Preempted by a job whose node is being drained; waiting for free GPUs.",
    Code.INELIGIBLE_NODES: "Enough GPUs are free, but not on the nodes that its selector and tolerations allow.",
    Code.BACKEND_AWAY: "The backend has been unreachable for {evidence} s; nothing is started or stopped.",
    Code.RESIZING: "Resizing to {workers} without a restart.",
    Code.RESTARTING_RESIZED: "Restarting with {workers}.",
    Code.NO_RETRIES: "Lost a worker; fewer than min ({evidence}) are left and no retries remain.",
    Code.INVALID: "Invalid: it cannot run as described.",
    Code.TIME_LIMIT: "Reached its time limit.",
    Code.USER_LIMIT: "The limit per user of its queue leaves no room for its minimum.",
}


#: A column holds a reason as `code + PACKED * evidence`; 0 = none.
PACKED = 256


def packed(code: Ints, evidence: Ints) -> Ints:
    """Reasons and their evidence in one column."""
    return code + PACKED * np.maximum(evidence, 0)


#: Sentences for evidence 0, where they differ.
_WITHOUT_EVIDENCE: dict[int, str] = {
    Code.FRAGMENTED: "Enough GPUs are free, but not where its workers fit.",
    Code.TOO_LARGE: "Can never start: the cluster cannot hold its minimum.",
    Code.NO_RETRIES: "A worker failed and no retries remain.",
}


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for people and programs."""

    code: str
    text: str


def reason(code: int, evidence: int = 0, text: str = "") -> Reason:
    """The reason with *text*, or with the general sentence of its code."""
    name = Code.name(code).lower().replace("_", "-")
    sentence = SENTENCES[code] if evidence else _WITHOUT_EVIDENCE.get(code, SENTENCES[code])
    s = "" if evidence == 1 else "s"
    numbers = {"evidence": evidence, "workers": f"{evidence} worker{s}", "others": f"{evidence} other job{s}"}
    return Reason(code=name, text=text or sentence.format(**numbers))


def with_phase(phase: str, text: str) -> str:
    """A phase and the reason for it, e.g. `Pending: Queued.`, `Running` or `Resizing from 2 to 4 workers.`"""
    return text if text.startswith(phase) else f"{phase}: {text}" if text else phase
