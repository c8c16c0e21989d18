"""Fill the cache of compiled kernels, so that no simulation and no server has to wait for the compiler.

Where the cache is complete, this takes seconds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from levada import jit
from levada.sim.run import simulate
from levada.sim.settings import Settings

#: The least time between two names.
_TELL_S = 2.0
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
    {"policy": "finish_time_fairness_perf", "mechanism": "gavel"},
    {"policy": "min_total_duration_perf", "ideal": True},
)


def precompile() -> bool:
    """Compile every kernel with all types that it is called with; False where numba is not installed."""
    if not jit.install():
        return False
    if jit.is_ready():
        return True
    _say("compiling kernels (two or three minutes, once for each version)")
    with _names():
        for number, run in enumerate(_RUNS, start=1):
            _say(f"  {number} of {len(_RUNS)}: what {run['policy']} needs")
            simulate(
                Settings(
                    cluster={"v100": 16, "k80": 16}, workload="gavel", jobs=30, rate=4.0, fixed_duration_s=1800.0, **run
                )
            )
    jit.mark_ready()
    return True


@contextlib.contextmanager
def _names() -> Iterator[None]:
    """While it is entered, kernels are named as they are compiled, now and then."""
    from numba.core import event

    class Names(event.Listener):
        told = time.monotonic()

        def on_start(self, event: Any) -> None:
            kernel = event.data["dispatcher"].py_func
            if time.monotonic() - self.told >= _TELL_S and kernel.__module__.startswith("levada"):
                self.told = time.monotonic()
                _say(f"    {kernel.__name__}")

        def on_end(self, event: Any) -> None:
            """Nothing: the next one is named."""

    with event.install_listener("numba:compile", Names()):
        yield


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    precompile()
