"""How many jobs a simulation has, as far as its settings tell, and which kernels it runs on."""

from __future__ import annotations

from levada import jit
from levada.sim.settings import Settings
from levada.sim.traces import find

#: A line of a trace has about so many bytes.
_LINE_BYTES = 150


def choose_kernels(settings: Settings) -> None:
    """Let the process interpret or compile kernels, by the number of jobs."""
    jit.choose(expected_jobs(settings))


def expected_jobs(settings: Settings) -> int | None:
    """How many jobs there will be, at a guess; None where nothing tells."""
    if settings.jobs is not None:
        return settings.jobs
    if settings.trace is None:
        return None
    path = find(settings.trace)
    return path.stat().st_size // _LINE_BYTES if path.is_file() else None
