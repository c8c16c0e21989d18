"""`python -m levada.sim.compiled` compiles the kernels ahead, so that the first large simulation need not wait.

What is compiled stays in the cache beside the kernels; where all of it is there, this takes seconds.
"""

from __future__ import annotations

import sys
from typing import Any

from levada.kernels import switch
from levada.sim.run import simulate
from levada.sim.settings import Settings

#: Tiny simulations that go through all kernels together: sizes and shares, gangs, failures, and every kind of world.
_RUNS: tuple[dict[str, Any], ...] = (
    {"policy": "fifo"},
    {"policy": "elastic-srjf", "multi_gpu": True, "failures_every_s": 7200.0},
    {"policy": "elastic-tiresias"},
    {"policy": "afs-l"},
    {"policy": "max_min_fairness_perf"},
    {"policy": "max_min_fairness_packed", "multi_gpu": True},
    {"policy": "finish_time_fairness_perf"},
    {"policy": "max_min_fairness_perf", "mechanism": "gavel", "multi_gpu": True},
    {"policy": "min_total_duration_perf", "ideal": True},
)


def main() -> None:
    """Runs them on compiled kernels; nothing to do where numba is not installed."""
    if switch.use_fastest() != "numba":
        return
    sys.stderr.write("compiling kernels ahead (two or three minutes the first time)\n")
    for run in _RUNS:
        simulate(
            Settings(
                cluster={"v100": 16, "k80": 16}, workload="gavel", jobs=30, rate=4.0, fixed_duration_s=1800.0, **run
            )
        )


if __name__ == "__main__":
    main()
