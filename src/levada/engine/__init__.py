"""The state machine: events in, commands out; the only owner of job state.

`Engine.handle` is pure: no clock, no I/O. A shell (the simulator or the server) runs policies, carries out operations
and returns the results as events.

Event handlers: `job_events`, `node_events`, `foreign` (foreign pods), `acks` (operations). `admission` and `guards`
select the jobs that a policy decides about, `commit` applies its decision, `operations` issues the resulting
operations, `explain` gives reasons.

Other packages read an engine through `queries` and change it by events; `state` is private. `state_fields` lists the
fields of the state, `persist` dumps and loads it, `replay` applies a log to it.
"""

from levada.engine.engine import Engine
from levada.engine.options import Options
from levada.engine.run_policy import run_policy

__all__ = ["Engine", "Options", "run_policy"]
