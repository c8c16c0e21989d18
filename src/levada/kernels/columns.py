"""Where a job's numbers stand in the two blocks of the table, and what some of them mean, for kernels.

`core` gives these rows and values their names; a test holds the two together.
"""

from __future__ import annotations

# Rows of the block of whole numbers.
(
    NUMBER,
    MIN,
    MAX,
    STEP,
    DESIRED,
    OWN_MIN,
    OWN_MAX,
    FIXED,
    BELOW_FIXED,
    MILLI,
    GPU_MEMORY,
    CPU,
    MEMORY,
    SERVERS,
    SERVER_CPU,
    SERVER_MEMORY,
    PRIORITY,
    QUEUE,
    QUEUE_NAME,
    WORKLOAD,
    ENTITY,
    PREEMPTIBLE,
    RESIZES_IN_PLACE,
    RETRIES,
    ANY_TYPE,
    AFFINITY,
    ANTI_AFFINITY,
    EXCLUSION,
    HAS_ROWS,
    TYPE,
    COUNT,
    HELD_TYPE,
    HELD,
    OBSERVED,
    PHASE,
    GENERATION,
    OP,
    ISSUED,
    INTENT,
    REASON,
    EVIDENCE,
    STOPPED_BY,
    SAVED,
    ACCEPTS_LOSS,
    ASIDE,
    FAILURES,
    UNSURE,
    RESTARTS,
    RETRIED,
    RESIZES,
    MOVES,
    WAITS_FOR,
    CHANGED,
    FEASIBLE,
    BATCH,
    RANK,
    RAN,
) = range(57)

# Rows of the block of floating-point numbers.
(
    SUBMITTED,
    WEIGHT,
    STEPS,
    STEPS_DONE,
    DEADLINE,
    TIME_LIMIT,
    FIRST_STARTED,
    STARTED,
    RESIZED,
    SINCE,
    WAITING_S,
    RUNNING_S,
    GPU_SECONDS,
    RUN_WAITING_S,
    RUN_RUNNING_S,
    RUN_GPU_SECONDS,
    REPORTED,
    RETRY_AT,
    ISSUED_AT,
    OP_DEADLINE,
) = range(20)

# Phases of a job.
PENDING, STARTING, RUNNING, RESIZING, STOPPING, SUSPENDED = range(6)
# Kinds of operations.
OP_NONE, OP_START, OP_RESIZE, OP_STOP = range(4)
# Whether a job may be preempted.
NEVER, AUTO, ALWAYS, AT_ONCE = range(4)
# Reasons.
RUNS, CAPACITY, FRAGMENTED, PREEMPTED, NODE_LOST, RESTARTING, BACKOFF, SET_ASIDE = 0, 2, 3, 11, 12, 13, 14, 15
INTERRUPTED, DRAINED, LEFT, SAYS_RESIZING, SAYS_RESTARTING_RESIZED = 32, 33, 34, 35, 36
MADE_ROOM = 38
#: A reason and its number in one, as `core.reasons.packed` has it.
PACKED = 256
QUEUE_LIMIT, TOO_LARGE, UNKNOWN_TYPE, USER_LIMIT = 5, 6, 7, 29
NEW, SAYS_STARTING, SAYS_STOPPING, WAITS_FOR_DEVICES = 1, 17, 18, 26
#: The last reason there is, and those that no policy can know: that a job is over.
LAST_REASON = 38
FINISHED, CANCELLED, FAILED, TIME_LIMIT_REACHED = 23, 24, 25, 28
# Values of a device's owner besides a slot.
FREE, SHARED = -1, -2

#: The type of workers without a GPU.
CORES = 0

WHOLE = 1000
NOT_ALLOWED = 32767
