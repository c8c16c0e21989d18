"""The state machine: events in, commands out; the only owner of job state.

`Engine.handle` is pure: no clock, no I/O. A shell runs policies, carries out operations and feeds back what happens.
The simulator, one machine and Kubernetes are such shells around this one engine.

What an event does to jobs is in `jobs`, to machines in `nodes`, to others' pods in `foreign`, to operations in `acks`.
Who may be decided about is in `admit` and `guards`; what becomes of a decision in `commit`; what follows in
`operations`. `explain` says why.

Others read an engine through `queries` and write by sending events; `state` is private. `parts` lists what the state is
made of, `persist` dumps and loads it, `replay` brings it to the end of a log.
"""

from levada.engine.answer import answer
from levada.engine.engine import Engine
from levada.engine.options import Options

__all__ = ["Engine", "Options", "answer"]
