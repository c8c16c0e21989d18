"""The layout of the job table, and the numbers that stand in its columns, as plain module constants.

Kernels use these names: a compiler folds a constant of a module, but knows no class like `Phase` or `Code`.
"""

from __future__ import annotations

from levada.core import plane, reasons, types
from levada.core.job import Phase, Preemptible
from levada.core.plan import OpKind
from levada.core.reasons import Code

_BEFORE = len(globals())
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
INT_COLUMNS = tuple(name.lower() for name in list(globals())[_BEFORE + 1 :])

_BEFORE = len(globals())
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
FLOAT_COLUMNS = tuple(name.lower() for name in list(globals())[_BEFORE:])

# Phases of a job.
PENDING, STARTING, RUNNING = Phase.PENDING, Phase.STARTING, Phase.RUNNING
RESIZING, STOPPING, SUSPENDED = Phase.RESIZING, Phase.STOPPING, Phase.SUSPENDED

# Kinds of operations.
OP_NONE, OP_START, OP_RESIZE, OP_STOP = OpKind.NONE, OpKind.START, OpKind.RESIZE, OpKind.STOP

# Whether a job may be preempted.
NEVER, AUTO, ALWAYS, AT_ONCE = Preemptible.NEVER, Preemptible.AUTO, Preemptible.ALWAYS, Preemptible.AT_ONCE

# Reasons.
RUNS, NEW, CAPACITY, FRAGMENTED = Code.RUNS, Code.NEW, Code.CAPACITY, Code.FRAGMENTED
QUEUE_LIMIT, TOO_LARGE, UNKNOWN_TYPE, USER_LIMIT = Code.QUEUE_LIMIT, Code.TOO_LARGE, Code.UNKNOWN_TYPE, Code.USER_LIMIT
PREEMPTED, NODE_LOST, RESTARTING, BACKOFF = Code.PREEMPTED, Code.NODE_LOST, Code.RESTARTING, Code.BACKOFF
SET_ASIDE, INTERRUPTED, DRAINED, LEFT = Code.SET_ASIDE, Code.INTERRUPTED, Code.DRAINED, Code.LEFT
SAYS_STARTING, SAYS_STOPPING, WAITS_FOR_DEVICES = Code.STARTING, Code.STOPPING, Code.WAITS_FOR_DEVICES
SAYS_RESIZING, SAYS_RESTARTING_RESIZED, MADE_ROOM = Code.RESIZING, Code.RESTARTING_RESIZED, Code.MADE_ROOM
#: The last reason, and those that only the engine gives: that a job is over.
LAST_REASON = max(Code.numbers())
FINISHED, CANCELLED, FAILED, TIME_LIMIT_REACHED = Code.FINISHED, Code.CANCELLED, Code.FAILED, Code.TIME_LIMIT
#: A reason and its number in one, as `core.reasons.packed` has it.
PACKED = reasons.PACKED

# Values of a device's owner besides a slot.
FREE, SHARED = plane.FREE, plane.SHARED
#: The type of workers without a GPU.
CORES = types.CPU_TYPE
#: One whole GPU in 1/1000ths.
WHOLE = types.WHOLE
#: Preference for a type that the job may not use.
NOT_ALLOWED = 32767
