"""Profiles of jobs with an application and a global batch size (Pollux, Sia).

Each job is joined to the profile of its application at a batch size per GPU. Its steps are the samples that training
needs at its global batch size, divided by the samples of a step (one batch of one GPU). Profile folders state the
samples by batch size (`validation-<batch>.csv`); between two measured batch sizes they are interpolated linearly in the
logarithm of the batch size, and beyond them they are constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from math import log, nan
from typing import NamedTuple

import msgspec
import numpy as np

from levada.errors import Fault
from levada.perf import Profiles
from levada.sim.text_rows import raise_faults
from levada.sim.traces import Trace

#: Iterations by global batch size, by application.
Iterations = Mapping[str, Mapping[int, float]]

_NAME = re.compile(r"(.+) \(batch size ([0-9]+)\)")


class Joined(NamedTuple):
    """A trace, and a note for the user; empty if there is none."""

    trace: Trace
    note: str


def join(trace: Trace, profiles: Profiles, types: Collection[str], iterations: Callable[[], Iterations]) -> Joined:
    """Return *trace* with workloads of *profiles* for jobs that name only an application; others are unchanged.

    Of an application's batch sizes only those measured on the most of *types* are used. *iterations* is called only if
    there are such jobs.
    """
    known, batches = set(profiles.workloads), _batches(profiles, types)
    rows = [row for row, name in enumerate(trace.workload) if name not in known and name in batches]
    rows = [row for row in rows if np.isnan(trace.duration_s[row])]
    if not rows:
        return Joined(trace, "")
    workload, steps, needed = list(trace.workload), trace.steps.copy(), iterations()
    sizes, approximated = _global_batch_sizes(trace, rows), 0
    for row in rows:
        name, workers = workload[row], int(trace.scale[row])
        tried, measured = needed.get(name, {}), batches[name]
        global_batch = sizes[row] or min(tried, default=min(measured) * workers)
        batch = nearest(measured, global_batch / workers)
        approximated += batch * workers != sizes[row]
        workload[row] = f"{name} (batch size {batch})"
        if np.isnan(steps[row]):
            steps[row] = samples(tried, global_batch) / batch
    note = f"{approximated} of {len(trace)} jobs have an unmeasured batch size; using the nearest measured one"
    return Joined(msgspec.structs.replace(trace, workload=tuple(workload), steps=steps), note if approximated else "")


def nearest(batches: Collection[int], wanted: float) -> int:
    """Return the batch size that is nearest by ratio; the smaller one on a tie."""
    return min(batches, key=lambda batch: (max(batch / wanted, wanted / batch), batch))


def samples(iterations: Mapping[int, float], batch: float) -> float:
    """Samples that training takes at this global batch size; nan if unknown."""
    if not iterations:
        return nan
    tried = sorted(iterations)
    return float(np.interp(log(batch), [log(size) for size in tried], [size * iterations[size] for size in tried]))


def _global_batch_sizes(trace: Trace, rows: list[int]) -> dict[int, int]:
    """Global batch sizes of the jobs in *rows*, 0 if not given; raises BadInput."""
    texts = trace.text("batch_size")
    good = {
        row: not texts[row] or (texts[row].isascii() and texts[row].isdigit() and int(texts[row]) > 0) for row in rows
    }
    raise_faults([Fault(f"job {row}", "batch_size must be a whole number above 0") for row in rows if not good[row]])
    return {row: int(texts[row] or 0) for row in rows}


def _batches(profiles: Profiles, types: Collection[str]) -> dict[str, list[int]]:
    """By application, the batch sizes per GPU that run on the most of *types*."""
    columns = [column for column, name in enumerate(profiles.types) if name in types]
    runs = (profiles.alone[:, columns] > 0).any(axis=2).sum(axis=1).tolist()
    type_counts: dict[str, dict[int, int]] = {}
    for name, count in zip(profiles.workloads, runs, strict=True):
        if match := _NAME.fullmatch(name):
            type_counts.setdefault(match[1], {})[int(match[2])] = count
    return {
        name: [batch for batch, count in counts.items() if count == max(counts.values())]
        for name, counts in type_counts.items()
    }
