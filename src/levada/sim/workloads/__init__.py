"""Workloads: jobs drawn from a seed, one after the other, for as long as somebody asks.

`jobs` gives them by name; the first so many make a trace: `Trace.of_jobs(islice(jobs(...), 100))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from levada.errors import BadInput, did_you_mean
from levada.sim.traces.trace import Rate, TraceJob

if TYPE_CHECKING:
    from levada.sim.workloads.spec import Spec

#: The generators that need no file.
NAMES = ("gavel", "gavel-trace", "philly")

__all__ = ["NAMES", "jobs"]


def jobs(
    name: str,
    *,
    seed: int,
    rate: Rate,
    jobs_per_hour: float | None = None,
    multi_gpu: bool = False,
    priorities: bool = False,
    slos: bool = False,
    fixed_duration_s: float | None = None,
) -> Iterator[TraceJob]:
    """The jobs of a generator (see NAMES), or of the user's own workload in a file; raises BadInput.

    *rate* is steps/s on the GPU that durations are meant for: the v100. *jobs_per_hour* None or 0: all at time 0. A
    file says everything itself, so that the other options are refused.
    """
    lam_s = 3600.0 / jobs_per_hour if jobs_per_hour else 0.0
    odd = {"priorities": priorities, "slos": slos, "fixed-duration": fixed_duration_s is not None}
    match name:
        case "gavel":
            from levada.sim.workloads.gavel import GavelJobs

            options = {"multi_gpu": multi_gpu, "priorities": priorities, "slos": slos}
            return iter(GavelJobs(seed, rate, lam_s=lam_s, fixed_duration_s=fixed_duration_s, **options))
        case "gavel-trace":
            from levada.sim.workloads.gavel import gavel_trace

            _refuse(name, {**odd, "priorities": False, "fixed-duration": False})
            lengths = () if fixed_duration_s is None else (fixed_duration_s,)
            return gavel_trace(seed, rate, lam_s=lam_s, lengths_s=lengths, multi_gpu=multi_gpu, priorities=priorities)
        case "philly":
            from levada.sim.workloads.philly import philly

            _refuse(name, odd)
            return philly(seed, rate, lam_s=lam_s, multi_gpu=multi_gpu)
        case _:
            spec = _spec(name)
            _refuse(name, {**odd, "multi-gpu": multi_gpu, "rate": jobs_per_hour is not None})
            from levada.sim.workloads.drawn import drawn

            return drawn(spec, seed, rate)


def _refuse(name: str, options: dict[str, bool]) -> None:
    for option, is_given in options.items():
        if is_given:
            raise BadInput.one(f"--{option} has no meaning for the workload {name}")


def _spec(name: str) -> Spec:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml", ".json") and not path.exists():
        otherwise = f"there are {', '.join(NAMES)}, or name a file (.yaml, .json)"
        raise BadInput.one(f"unknown workload {name!r}{did_you_mean(name, NAMES, otherwise)}")
    from levada.jobfile.read import read_bytes
    from levada.sim.traces.sheet import text_of
    from levada.sim.workloads.spec import parse

    return parse(text_of(read_bytes(name), name), name)
