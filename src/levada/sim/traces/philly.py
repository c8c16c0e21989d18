"""Philly's jobs as published by Pollux.

The columns are `timestamp,duration,num_gpus,gpu_time,cluster`, in any order. `cluster`, a virtual cluster of Philly,
becomes the queue. Workloads are unknown.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.calendar import FIRST_DAY, parse_time, to_seconds, to_times
from levada.sim.traces.sheet import format_number, parse_sheet, require
from levada.sim.traces.trace import Trace

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def parse(file: str, text: str) -> Trace:
    """Parse *text* and sort the jobs by arrival; raises BadInput with all faults."""
    sheet = parse_sheet(file, text)
    require(sheet, "timestamp", "duration", "num_gpus")
    trace = Trace.of(
        arrival_s=to_seconds(sheet.parsed("timestamp", parse_time, FIRST_DAY, "a time, e.g. 2017-10-03 08:15:00")),
        scale=sheet.ints("num_gpus"),
        duration_s=sheet.floats("duration"),
        texts={"queue": sheet.text("cluster")},
    )
    order = trace.order()
    sheet.select(order.tolist())
    return sheet.checked(trace.take(order), {"arrival_s": "timestamp", "scale": "num_gpus", "duration_s": "duration"})


def render(trace: Trace) -> str:
    """Render *trace*, starting at 2000-01-01; raises BadInput if a job has no duration."""
    unknown = np.isnan(trace.duration_s).nonzero()[0]
    if unknown.size:
        raise BadInput.one(f"job {unknown[0]} has no duration_s, which a Philly trace needs")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for at, duration, gpus, queue in zip(
        to_times(trace.arrival_s), trace.duration_s.tolist(), trace.scale.tolist(), trace.text("queue"), strict=True
    ):
        writer.writerow((at.isoformat(" "), format_number(duration), gpus, format_number(duration * gpus), queue))
    return out.getvalue()
