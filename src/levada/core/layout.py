"""The layout of the job table and the codes in its columns, as module constants.

Kernels use these names: the compiler folds module constants, but does not know classes like `Phase` or `Code`.
"""

from __future__ import annotations

from levada.core import reasons, types
from levada.core.job import Phase, Preemptible
from levada.core.plan import OpKind
from levada.core.reasons import Code

_BEFORE = len(globals())
# Rows of the integer block.
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
    NODE_CLASS,
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
) = range(58)
INT_COLUMNS = tuple(name.lower() for name in list(globals())[_BEFORE + 1 :])

_BEFORE = len(globals())
# Rows of the float block.
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
INELIGIBLE_NODES = Code.INELIGIBLE_NODES
#: The last code, and codes that only the engine sets, for ended jobs.
LAST_REASON = max(Code.numbers())
FINISHED, CANCELLED, FAILED, TIME_LIMIT_REACHED = Code.FINISHED, Code.CANCELLED, Code.FAILED, Code.TIME_LIMIT
#: Factor of packed reasons; see `core.reasons.packed`.
PACKED = reasons.PACKED

# Values of `owner` besides slots.
FREE, SHARED = -1, -2
#: The type of workers without a GPU, always number 0.
CORES = types.CPU_TYPE
#: One whole GPU in 1/1000ths, and the part of each of two packed jobs.
WHOLE, HALF = types.WHOLE, types.PACKED
#: Value of `preference` for types that a job may not use.
NOT_ALLOWED = 32767

# Rows of `Assignment.devices` and `Assignment.nodes`.
OWNER, INDEX = range(2)
USED_CPU, USED_MEMORY = range(2)

# Rows of `Allocatable.devices`: node, type, whether it exists, whether new grants may use it, whether they may use all
# of it, free 1/1000ths, total MiB of memory, free MiB (free: without foreign use and reservations).
NODE_OF, TYPE_OF, PRESENT, DEVICE_OPEN, WHOLE_OPEN, MILLI_LEFT, GPU_MEMORY_OF, GPU_MEMORY_LEFT = range(8)
# Rows of `Allocatable.nodes`: free CPU and memory (0 if unusable), whether new grants may use it, whether it is lost,
# rack and zone.
CPU_FREE, MEMORY_FREE, NODE_OPEN, LOST, RACK, ZONE = range(6)
# Rows of `Allocatable.pools`.
POOL_START, POOL_STOP, POOL_NODE, POOL_TYPE = range(4)

# Rows of `Assignment.rows`.
ROW_SLOT, ROW_INDEX, ROW_NODE, ROW_DEVICE, ROW_MILLI, ROW_MEMORY = range(6)

#: Means "unlimited" for CPU and memory; small enough to add a thousand of them.
UNLIMITED = 1 << 50
