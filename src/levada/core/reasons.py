"""Why a job waits, or has the size it has: a code and one number as evidence in columns, a sentence when asked for."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from levada.core.codes import Codes
from levada.core.types import Ints


class Code(Codes):
    """Each waiting job has exactly one of these."""

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
    #: As `RESIZING`, of a job whose workers all stop and start again for it.
    RESTARTING_RESIZED: Final = 36
    #: A worker was lost, too few are left, and the job may not start again.
    NO_RETRIES: Final = 37
    #: Preempted by a job that had to leave its node.
    MADE_ROOM: Final = 38


#: One sentence per code. `{evidence}` is the number in the evidence column, `{workers}` so many workers.
SENTENCES: dict[int, str] = {
    Code.RUNS: "It runs.",
    Code.NEW: "It has just arrived; the next decision is about it.",
    Code.CAPACITY: "Not enough is free for it; jobs before it have the rest, or it is out of service.",
    Code.FRAGMENTED: "Enough is free in all, but not where its workers fit ({evidence} of them could be placed).",
    Code.QUEUE_SHARE: "What its queue has left of its share, and may borrow, is too little for it.",
    Code.QUEUE_LIMIT: "Its queue's limit leaves no room for its minimum.",
    Code.TOO_LARGE: "No state of this cluster could hold its minimum ({evidence} workers at most).",
    Code.UNKNOWN_TYPE: "None of the GPU types it allows exists in this cluster.",
    Code.DEPENDENCY: "It starts when the jobs it comes after have succeeded: {evidence} to go.",
    Code.DEPENDENCY_FAILED: "A job it comes after has not succeeded and never will.",
    Code.SUSPENDED: "Its user has suspended it.",
    Code.PREEMPTED: "It was stopped so that others could run; it goes on when its turn comes.",
    Code.NODE_LOST: "A node it ran on was lost; it starts again from its checkpoint.",
    Code.RESTARTING: "Failed; restarting from its checkpoint (retry {evidence}).",
    Code.BACKOFF: "An operation on it failed; the next try comes after a pause (try {evidence}).",
    Code.SET_ASIDE: "It kept failing ({evidence} times in a row) and is set aside until it is updated or resumed.",
    Code.REJECTED: "The policy's last decision broke a rule and was not carried out.",
    Code.STARTING: "It is starting.",
    Code.STOPPING: "It is stopping.",
    Code.RESERVED: "What it needs is kept free for somebody else (a serving pod, or a job that waits longer).",
    Code.HELD_DOWN: "It may grow again when {evidence} s have passed without new demand by serving pods.",
    Code.NO_GAIN: "It would not run faster with more.",
    Code.UNKNOWN_SPEED: "The policy needs to know how fast it runs or how much is left, and nothing is known yet.",
    Code.FINISHED: "It has succeeded.",
    Code.CANCELLED: "It was cancelled.",
    Code.FAILED: "Failed.",
    Code.WAITS_FOR_DEVICES: "It starts as soon as others have given up their devices: {evidence} to go.",
    Code.IN_LINE: "A job before it does not fit yet, and under this policy nobody overtakes.",
    Code.CANNOT_RUN: "As far as is known, it makes no progress on any GPU type that is there.",
    Code.INTERRUPTED: "All workers were found stopped; restarting, from the last checkpoint if there is one.",
    Code.DRAINED: "A node it ran on is being drained; it goes on elsewhere when its turn comes.",
    Code.LEFT: "It left by itself with exit code 75 soon after its start (time {evidence} in a row); "
    "it starts again from its checkpoint after a pause.",
    Code.MADE_ROOM: "Stopped to make room for a job whose node is being drained; it goes on when its turn comes.",
    Code.RESIZING: "Changing to {workers} without a restart.",
    Code.RESTARTING_RESIZED: "Restarting with {workers}.",
    Code.NO_RETRIES: "Lost a worker; fewer than min ({evidence}) are left and no retries remain.",
    Code.INVALID: "Its description cannot be carried out.",
    Code.TIME_LIMIT: "It has run as long as its time limit allows.",
    Code.USER_LIMIT: "What one user may have in its queue leaves no room for its minimum.",
}


#: A column holds a reason and its number as `code + PACKED * number`; 0 = none.
PACKED = 256


def packed(code: Ints, evidence: Ints) -> Ints:
    """Reasons with their numbers, as one column."""
    return code + PACKED * np.maximum(evidence, 0)


#: Where the number is 0 and the sentence would sound odd.
_WITH_NOTHING: dict[int, str] = {
    Code.FRAGMENTED: "Enough is free in all, but not where its workers fit.",
    Code.TOO_LARGE: "No state of this cluster could hold its minimum.",
    Code.NO_RETRIES: "A worker failed and no retries remain.",
}


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for people and programs."""

    code: str
    text: str


def reason(code: int, evidence: int = 0) -> Reason:
    """The reason in words."""
    name = Code.name(code).lower().replace("_", "-")
    sentence = SENTENCES[code] if evidence else _WITH_NOTHING.get(code, SENTENCES[code])
    workers = f"{evidence} worker{'' if evidence == 1 else 's'}"
    return Reason(code=name, text=sentence.format(evidence=evidence, workers=workers))
