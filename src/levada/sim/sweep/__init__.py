"""Many simulations: each policy with each load, cluster and seed, on all cores, kept so that an interrupt loses little.

`plan` says what runs there are, `one` runs one of them, `pool` many at a time, `folder` keeps what came out.
"""

from levada.sim.sweep.folder import Folder
from levada.sim.sweep.plan import AXES, Plan, Task
from levada.sim.sweep.pool import Done, work

__all__ = ["AXES", "Done", "Folder", "Plan", "Task", "work"]
