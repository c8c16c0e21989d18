"""Throughput models: rates by GPU type and size, confidence, restart costs.

- `model`: the protocol `ThroughputModel` for policies, and values derived from it (`remaining_s`).
- `beliefs`: `Beliefs`, the base class of all models: jobs are bound to it, and it may learn.
- `table_model`: `TableModel`, speeds given as tables.
- `profiles`: `Profiles`, measured speeds by workload, and `ProfileModel`, which looks them up.
- `completion`: `Completed`, profiles whose missing values are estimated from similar workloads (`factorization`).
- `estimator`: `Estimator`, speeds learned from the progress of running jobs. It stores rates by workload, GPU type and
  size (`samples`), fits a monotone curve through each (`curve`), and transfers curves to GPU types on which a workload
  has not run (`fitted_curves`).
- `online`: `Online`, which starts with a prior model and converges to observed rates.

Pure: no module here reads a clock, a file or the environment, or logs. Time is part of the observations, randomness is
a generator argument. Imports: numpy, msgspec, the standard library, `core` and `kernels`.
"""

from levada.perf.beliefs import Beliefs
from levada.perf.completion import Completed, completed, measured
from levada.perf.curve import Curves, fit, isotonic
from levada.perf.estimator import Estimator, Point
from levada.perf.estimator_state import EstimatorState, renumbered
from levada.perf.index_map import NamesByNumber
from levada.perf.model import Bools, Floats, Ints, ThroughputModel, remaining_s
from levada.perf.online import Online
from levada.perf.profiles import ProfileModel, Profiles
from levada.perf.samples import Observations
from levada.perf.table_model import JobSpeed, PairSpeed, TableModel
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
    "NamesByNumber",
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
