"""Workload generators: endless streams of jobs, deterministic for a seed.

`jobs` returns a stream by name; its first jobs make a trace: `Trace.of_jobs(islice(jobs(...), 100))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from levada.errors import BadInput, did_you_mean
from levada.sim.traces.trace import Rate, TraceJob

if TYPE_CHECKING:
    from levada.sim.workloads.spec import WorkloadSpec

#: Built-in generators.
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
    """Return the jobs of a built-in generator (see NAMES) or of a workload file; raises BadInput.

    *rate* is steps/s on the GPU type that durations refer to: the v100. *jobs_per_hour* None or 0: all at time 0. A
    workload file states everything itself, so the other options are rejected.
    """
    lam_s = 3600.0 / jobs_per_hour if jobs_per_hour else 0.0
    unsupported = {"priorities": priorities, "slos": slos, "fixed-duration": fixed_duration_s is not None}
    match name:
        case "gavel":
            from levada.sim.workloads.gavel import GavelJobs

            options = {"multi_gpu": multi_gpu, "priorities": priorities, "slos": slos}
            return iter(GavelJobs(seed, rate, lam_s=lam_s, fixed_duration_s=fixed_duration_s, **options))
        case "gavel-trace":
            from levada.sim.workloads.gavel import gavel_trace

            _reject(name, {**unsupported, "priorities": False, "fixed-duration": False})
            lengths = () if fixed_duration_s is None else (fixed_duration_s,)
            return gavel_trace(seed, rate, lam_s=lam_s, lengths_s=lengths, multi_gpu=multi_gpu, priorities=priorities)
        case "philly":
            from levada.sim.workloads.philly import philly

            _reject(name, unsupported)
            return philly(seed, rate, lam_s=lam_s, multi_gpu=multi_gpu)
        case _:
            spec = _read_spec(name)
            _reject(name, {**unsupported, "multi-gpu": multi_gpu, "rate": jobs_per_hour is not None})
            from levada.sim.workloads.from_spec import jobs_from_spec

            return jobs_from_spec(spec, seed, rate)


def _reject(name: str, options: dict[str, bool]) -> None:
    for option, is_set in options.items():
        if is_set:
            raise BadInput.one(f"--{option}: not supported by workload {name}")


def _read_spec(name: str) -> WorkloadSpec:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml", ".json") and not path.exists():
        otherwise = f"use {', '.join(NAMES)}, or a file (.yaml, .json)"
        raise BadInput.one(f"unknown workload {name!r}{did_you_mean(name, NAMES, otherwise)}")
    from levada.jobfile.read import read_bytes
    from levada.sim.traces.sheet import decode_text
    from levada.sim.workloads.spec import parse

    return parse(decode_text(read_bytes(name), name), name)
