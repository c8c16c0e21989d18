"""How fast a job runs: on which GPU type, with how many workers, how sure we are, and what a restart costs.

- `model`: the protocol `ThroughputModel` that policies ask, and what follows from it (`remaining_s`).
- `beliefs`: `Beliefs`, the base class of all models here: jobs are bound to it, and it may learn.
- `table`: `TableModel`, speeds that somebody wrote down.
- `profiles`: `Profiles`, speeds that were measured by workload, and `ProfileModel`, which answers from them.
- `completion`: `Completed`, profiles with holes that are filled from workloads that resemble each other (`factors`).
- `estimator`: `Estimator`, speeds learned from the progress of running jobs. It keeps the rates seen per workload, GPU
  type and size (`samples`), fits one monotone curve through each (`curve`), and lets workloads borrow from the GPU
  types they have run on for those they have not (`fitted`).
- `online`: `Online`, which begins with a prior of any kind and moves to what is seen.

Pure: arrays in, arrays out. Nothing here reads a clock, a file or the environment, or logs; time comes in with the
observations, and chance as a generator. It imports numpy, msgspec and the standard library, and of Levada at most
`core` and `kernels`.
"""

from levada.perf.beliefs import Beliefs
from levada.perf.completion import Completed, completed, measured
from levada.perf.curve import Curves, fit, isotonic
from levada.perf.estimator import Estimator, Point
from levada.perf.growing import NameList
from levada.perf.kept import EstimatorState, renumbered
from levada.perf.model import Bools, Floats, Ints, ThroughputModel, remaining_s
from levada.perf.online import Online
from levada.perf.profiles import ProfileModel, Profiles
from levada.perf.samples import Observations
from levada.perf.table import JobSpeed, PairSpeed, TableModel
from levada.perf.tuning import RestartKind, Tuning

__all__ = [
    "Beliefs",
    "Bools",
    "Completed",
    "Curves",
    "Estimator",
    "EstimatorState",
    "Floats",
    "Ints",
    "JobSpeed",
    "NameList",
    "Observations",
    "Online",
    "PairSpeed",
    "Point",
    "ProfileModel",
    "Profiles",
    "RestartKind",
    "TableModel",
    "ThroughputModel",
    "Tuning",
    "completed",
    "fit",
    "isotonic",
    "measured",
    "remaining_s",
    "renumbered",
]
