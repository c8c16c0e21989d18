"""Sweeps: every policy with every load, cluster and seed, on all cores.

A sweep can be resumed after an interrupt. `plan` lists the runs, `run` executes one, `pool` executes many at a time,
`folder` stores the results.
"""

from levada.sim.sweep.folder import Folder
from levada.sim.sweep.plan import AXES, SweepPlan, Task
from levada.sim.sweep.pool import Done, work

__all__ = ["AXES", "Done", "Folder", "SweepPlan", "Task", "work"]
