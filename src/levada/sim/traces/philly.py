"""Philly's jobs as Pollux published them: `timestamp,duration,num_gpus,gpu_time,cluster`, in any order.

`cluster` is a virtual cluster of Philly's, our queue. What was trained is not known.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.calendar import FIRST_DAY, moment, moments, seconds
from levada.sim.traces.sheet import demand, number, sheet_of
from levada.sim.traces.trace import Trace

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def parse(file: str, text: str) -> Trace:
    """The trace in *text*, by arrival; raises BadInput with all faults."""
    sheet = sheet_of(file, text)
    demand(sheet, "timestamp", "duration", "num_gpus")
    trace = Trace.of(
        arrival_s=seconds(sheet.parsed("timestamp", moment, FIRST_DAY, "a time, e.g. 2017-10-03 08:15:00")),
        scale=sheet.ints("num_gpus"),
        duration_s=sheet.floats("duration"),
        texts={"queue": sheet.text("cluster")},
    )
    order = trace.order()
    sheet.keep(order.tolist())
    return sheet.checked(trace.take(order), {"arrival_s": "timestamp", "scale": "num_gpus", "duration_s": "duration"})


def render(trace: Trace) -> str:
    """The lines of *trace*, from the first second of 2000 on; raises BadInput where a job has no duration."""
    unknown = np.isnan(trace.duration_s).nonzero()[0]
    if unknown.size:
        raise BadInput.one(f"job {unknown[0]} has no duration_s, which a Philly trace needs")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for at, duration, gpus, queue in zip(
        moments(trace.arrival_s), trace.duration_s.tolist(), trace.scale.tolist(), trace.text("queue"), strict=True
    ):
        writer.writerow((at.isoformat(" "), number(duration), gpus, number(duration * gpus), queue))
    return out.getvalue()
