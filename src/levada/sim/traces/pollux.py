"""Traces of Pollux and Sia: `name,time,application,num_replicas,batch_size`.

The jobs are elastic: `num_replicas` is what a user would have requested, and elastic policies ignore it. The length of
a job follows from the profile of its application (`levada.sim.applications`), so steps and duration are unknown here.
The batch size is optional.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.sheet import format_number, parse_sheet, require
from levada.sim.traces.trace import Trace

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

#: The files state no maximum; this is the size of the cluster that they were made for.
LARGEST = 64


def parse(file: str, text: str) -> Trace:
    """Parse *text*; raises BadInput with all faults."""
    sheet = parse_sheet(file, text)
    require(sheet, *COLUMNS[:-1])
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
    """Render *trace*; raises BadInput if a job has no batch size."""
    sizes = trace.text("batch_size")
    if not all(sizes):
        raise BadInput.one(f"job {sizes.index('')} has no batch_size, which a Pollux trace needs")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = (name or f"job-{row}" for row, name in enumerate(trace.text("name")))
    times = map(format_number, trace.arrival_s.tolist())
    writer.writerows(zip(names, times, trace.workload, trace.scale.tolist(), sizes, strict=True))
    return out.getvalue()
