"""Choose compiled or interpreted kernels by the expected number of jobs."""

from __future__ import annotations

from levada import jit
from levada.sim.settings import Settings
from levada.sim.traces import find

#: Typical length of a line of a trace.
_LINE_BYTES = 150


def choose_kernels(settings: Settings) -> None:
    """Interpret or compile kernels in this process, depending on the number of jobs."""
    jit.choose(expected_jobs(settings))


def expected_jobs(settings: Settings) -> int | None:
    """Estimate the number of jobs; None if unknown."""
    if settings.jobs is not None:
        return settings.jobs
    if settings.trace is None:
        return None
    path = find(settings.trace)
    return path.stat().st_size // _LINE_BYTES if path.is_file() else None
