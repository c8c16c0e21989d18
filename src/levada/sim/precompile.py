"""Fill the cache of compiled kernels before simulations and servers need it.

If the cache is complete, this takes seconds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from levada import jit
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.commands import Decide
from levada.core.events import JobsSubmitted
from levada.core.job import Job
from levada.engine import Engine, run_policy
from levada.sim.run import simulate
from levada.sim.settings import Settings

#: Minimum time between two progress lines.
_PROGRESS_S = 2.0
#: Tiny simulations that together call all kernels: sizes and shares, gangs, failures, and every simulated cluster.
#: Jobs arrive fast enough to wait for GPUs and to be preempted.
_RUNS: tuple[dict[str, Any], ...] = (
    {"policy": "fifo"},
    {"policy": "elastic-srjf", "multi_gpu": True, "failures_every_s": 7200.0},
    {"policy": "elastic-tiresias"},
    {"policy": "afs-l"},
    {"policy": "gandiva"},
    {"policy": "gavel-fifo_perf", "multi_gpu": True},
    {"policy": "max_min_fairness_perf"},
    {"policy": "max_min_fairness_packed", "multi_gpu": True},
    {"policy": "finish_time_fairness_perf"},
    {"policy": "max_min_fairness_perf", "mechanism": "gavel", "multi_gpu": True},
    {"policy": "finish_time_fairness_perf", "mechanism": "gavel"},
    {"policy": "min_total_duration_perf", "ideal": True},
)


def precompile() -> bool:
    """Compile every kernel with all types that it is called with; returns False if numba is not installed."""
    if not jit.install():
        return False
    if jit.is_ready():
        return True
    _print("compiling kernels (2 to 3 minutes, once per version)")
    with _names_printed():
        for number, run in enumerate(_RUNS, start=1):
            _print(f"  {number} of {len(_RUNS)}: kernels of {run['policy']}")
            simulate(
                Settings(
                    cluster={"v100": 16, "k80": 16},
                    workload="gavel",
                    jobs=30,
                    rate=400.0,
                    fixed_duration_s=1800.0,
                    **run,
                )
            )
        _place_job_with_class()
    jit.mark_ready()
    return True


def _place_job_with_class() -> None:
    """Place a job with a node class, which simulated jobs do not have."""
    engine = Engine(cluster=Cluster(nodes=(Node.of("n", {"v100": 1}),)), policy="fifo")
    jobs = JobBatch.of([Job(id="j", submitted=0.0, node_class="x")])
    for command in engine.handle(JobsSubmitted(at=0.0, jobs=jobs)):
        if isinstance(command, Decide):
            engine.handle(run_policy(command, 0.0))


@contextlib.contextmanager
def _names_printed() -> Iterator[None]:
    """Print the name of the kernel that is being compiled, at most every 2 s."""
    from numba.core import event

    class Names(event.Listener):
        printed = time.monotonic()

        def on_start(self, event: Any) -> None:
            kernel = event.data["dispatcher"].py_func
            if time.monotonic() - self.printed >= _PROGRESS_S and kernel.__module__.startswith("levada"):
                self.printed = time.monotonic()
                _print(f"    {kernel.__name__}")

        def on_end(self, event: Any) -> None:
            """Print nothing."""

    with event.install_listener("numba:compile", Names()):
        yield


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    precompile()
