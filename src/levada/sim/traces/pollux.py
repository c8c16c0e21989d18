"""Workloads of Pollux and Sia: `name,time,application,num_replicas,batch_size`.

Their jobs are elastic: `num_replicas` is what a user would have asked for, and elastic policies ignore it. How long a
job takes follows from its application's profile (`levada.sim.applications`), so that steps and duration are unknown
here. A batch size that is empty, or no such column, means none in particular.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.sheet import demand, number, sheet_of
from levada.sim.traces.trace import Trace

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

#: The files name no largest size; this one is the cluster that they were made for.
LARGEST = 64


def parse(file: str, text: str) -> Trace:
    """The trace in *text*; raises BadInput with all faults."""
    sheet = sheet_of(file, text)
    demand(sheet, *COLUMNS[:-1])
    scale = sheet.ints("num_replicas")
    sheet.parsed("batch_size", lambda cell: cell and int(cell), "", "a whole number")
    trace = Trace.of(
        arrival_s=sheet.floats("time"),
        workload=sheet.text("application"),
        scale=scale,
        min_workers=np.minimum(scale, 1),
        max_workers=np.maximum(scale, LARGEST),
        texts={"name": sheet.text("name"), "batch_size": sheet.text("batch_size")},
    )
    return sheet.checked(trace, {"arrival_s": "time", "workload": "application", "scale": "num_replicas"})


def render(trace: Trace) -> str:
    """The lines of *trace*; raises BadInput where a job has no batch size."""
    sizes = trace.text("batch_size")
    if not all(sizes):
        raise BadInput.one(f"job {sizes.index('')} has no batch_size, which a Pollux trace needs")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = (name or f"job-{place}" for place, name in enumerate(trace.text("name")))
    times = map(number, trace.arrival_s.tolist())
    writer.writerows(zip(names, times, trace.workload, trace.scale.tolist(), sizes, strict=True))
    return out.getvalue()
