"""Which kernels a simulation runs on: decided by its settings alone, so that a run is the same wherever it happens."""

from __future__ import annotations

from levada.kernels import switch
from levada.sim.settings import Settings
from levada.sim.traces import find

#: From so many jobs, or so long a trace, on it pays to load compiled kernels, which takes half a second.
LARGE_JOBS, LARGE_BYTES = 300, 100_000


def choose_kernels(settings: Settings) -> None:
    """Compiled ones for a large simulation, where they are installed, and numpy for a small one."""
    if is_large(settings):
        switch.use_fastest()
    else:
        switch.use("numpy")


def is_large(settings: Settings) -> bool:
    """Whether it has many jobs, or nobody knows how many."""
    if settings.jobs is not None:
        return settings.jobs >= LARGE_JOBS
    if settings.trace is None:
        return True
    path = find(settings.trace)
    return path.is_file() and path.stat().st_size > LARGE_BYTES
