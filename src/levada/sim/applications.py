"""Jobs that name an application and the batch size of the whole job, as those of Pollux and Sia do.

Each is joined to the profile of its application at a batch size per GPU, and gets the steps that its training takes:
the samples that were needed at its whole batch size, over the samples of a step, which is one batch of one GPU. How
many samples a batch size needs, profile folders tell (`validation-<batch>.csv`); between two batch sizes that were
tried it lies on the line in the logarithm of the batch size, and beyond them it stays what it was.
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
from levada.sim.rows import raise_faults
from levada.sim.traces import Trace

#: Iterations by batch size of the whole job, by application.
Iterations = Mapping[str, Mapping[int, float]]

_NAME = re.compile(r"(.+) \(batch size ([0-9]+)\)")


class Joined(NamedTuple):
    """A trace, and what is to be said about it; empty where nothing is."""

    trace: Trace
    note: str


def join(trace: Trace, profiles: Profiles, types: Collection[str], iterations: Callable[[], Iterations]) -> Joined:
    """*trace* with workloads of *profiles* for jobs that only name an application; others stay as they are.

    Of an application's batch sizes those count that were measured on the most of *types*. *iterations* is asked where
    there are such jobs.
    """
    known, batches = set(profiles.workloads), _batches(profiles, types)
    rows = [row for row, name in enumerate(trace.workload) if name not in known and name in batches]
    rows = [row for row in rows if np.isnan(trace.duration_s[row])]
    if not rows:
        return Joined(trace, "")
    workload, steps, needed = list(trace.workload), trace.steps.copy(), iterations()
    sizes, other = _sizes(trace, rows), 0
    for row in rows:
        name, workers = workload[row], int(trace.scale[row])
        tried, measured = needed.get(name, {}), batches[name]
        whole = sizes[row] or min(tried, default=min(measured) * workers)
        batch = nearest(measured, whole / workers)
        other += batch * workers != sizes[row]
        workload[row] = f"{name} (batch size {batch})"
        if np.isnan(steps[row]):
            steps[row] = samples(tried, whole) / batch
    told = f"{other} of {len(trace)} jobs have no batch size that was measured, and take the nearest" if other else ""
    return Joined(msgspec.structs.replace(trace, workload=tuple(workload), steps=steps), told)


def nearest(batches: Collection[int], wanted: float) -> int:
    """The batch size that is nearest by ratio, the smaller one of two."""
    return min(batches, key=lambda batch: (max(batch / wanted, wanted / batch), batch))


def samples(iterations: Mapping[int, float], batch: float) -> float:
    """How many samples a training with this batch size for the whole job takes; nan where nobody knows."""
    if not iterations:
        return nan
    tried = sorted(iterations)
    return float(np.interp(log(batch), [log(each) for each in tried], [each * iterations[each] for each in tried]))


def _sizes(trace: Trace, rows: list[int]) -> dict[int, int]:
    """The batch sizes of the whole jobs in *rows*, 0 where none is given; raises BadInput."""
    texts = trace.text("batch_size")
    good = {
        row: not texts[row] or (texts[row].isascii() and texts[row].isdigit() and int(texts[row]) > 0) for row in rows
    }
    raise_faults(
        [Fault(f"job {row}", "its batch_size must be a whole number above 0") for row in rows if not good[row]]
    )
    return {row: int(texts[row] or 0) for row in rows}


def _batches(profiles: Profiles, types: Collection[str]) -> dict[str, list[int]]:
    """By application the batch sizes per GPU that run on the most of *types*."""
    columns = [place for place, name in enumerate(profiles.types) if name in types]
    runs = (profiles.alone[:, columns] > 0).any(axis=2).sum(axis=1).tolist()
    found: dict[str, dict[int, int]] = {}
    for name, count in zip(profiles.workloads, runs, strict=True):
        if match := _NAME.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = count
    return {name: [batch for batch, count in of.items() if count == max(of.values())] for name, of in found.items()}
