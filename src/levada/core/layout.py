"""The layout of the job table, and the numbers that stand in its columns, as plain module constants.

Kernels use these names: a compiler folds a constant of a module, but knows no class like `Phase` or `Code`.
"""

from __future__ import annotations

from levada.core import reasons, types
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
INVALID, DEPENDENCY, DEPENDENCY_FAILED = Code.INVALID, Code.DEPENDENCY, Code.DEPENDENCY_FAILED
SAYS_RESIZING, SAYS_RESTARTING_RESIZED, MADE_ROOM = Code.RESIZING, Code.RESTARTING_RESIZED, Code.MADE_ROOM
#: The last reason, and those that only the engine gives: that a job is over.
LAST_REASON = max(Code.numbers())
FINISHED, CANCELLED, FAILED, TIME_LIMIT_REACHED = Code.FINISHED, Code.CANCELLED, Code.FAILED, Code.TIME_LIMIT
#: A reason and its number in one, as `core.reasons.packed` has it.
PACKED = reasons.PACKED

# Values of a device's owner besides a slot.
FREE, SHARED = -1, -2
#: The type of workers without a GPU. It is the first one, so that its number is always the same.
CORES = types.CPU_TYPE
#: One whole GPU in 1/1000ths, and what each of two jobs gets of a device that they share as packed jobs.
WHOLE, HALF = types.WHOLE, types.PACKED
#: Preference for a type that the job may not use.
NOT_ALLOWED = 32767

# Rows of a plane's `devices` and `nodes`.
OWNER, INDEX = range(2)
USED_CPU, USED_MEMORY = range(2)

# Rows of `Openings.devices`: node, type, whether it is there, whether new grants may touch it, whether they may take it
# whole, what others leave of it in 1/1000ths, its memory, and what others leave of that in MiB.
NODE_OF, TYPE_OF, PRESENT, DEVICE_OPEN, WHOLE_OPEN, MILLI_LEFT, GPU_MEMORY_OF, GPU_MEMORY_LEFT = range(8)
# Rows of `Openings.nodes`: cores and memory that others leave (0 where no new grant may go), whether new grants may go
# there, whether it is lost, rack and zone.
CPU_FREE, MEMORY_FREE, NODE_OPEN, LOST, RACK, ZONE = range(6)
# Rows of `Openings.pools`.
POOL_START, POOL_STOP, POOL_NODE, POOL_TYPE = range(4)

# Rows of places: see `core.plane`.
ROW_SLOT, ROW_INDEX, ROW_NODE, ROW_DEVICE, ROW_MILLI, ROW_MEMORY = range(6)

#: Stands for "not limited" in amounts of cores and memory; small enough that a thousand of them add up.
UNLIMITED = 1 << 50
