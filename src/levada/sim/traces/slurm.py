"""Slurm's accounting, as printed by `sacct --parsable2`.

The fields are `--format=JobID,JobName,User,Partition,Submit,ElapsedRaw,AllocTRES`. Columns may be in any order;
required are `Submit`, a duration (`ElapsedRaw` or `Elapsed`) and GPUs (`AllocTRES` or `ReqTRES`, or `AllocGRES` or
`ReqGRES` of older versions). Job steps, jobs that never ran, and jobs without GPUs are skipped.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.calendar import FIRST_DAY, parse_time, to_seconds, to_times
from levada.sim.traces.sheet import Sheet, parse_sheet, require
from levada.sim.traces.trace import Trace

_TRES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
#: The sockets of the GPUs in older versions: `gpu:4(S:0-1)`.
_SOCKETS = re.compile(r"\([^)]*\)")


class Gpus(NamedTuple):
    """GPUs of a job, and their type; "" if unknown."""

    number: int
    type: str


def parse(file: str, text: str) -> Trace:
    """Parse *text* and sort the jobs by submission; raises BadInput with all faults."""
    # sacct does not quote; a name may contain quotes.
    sheet = parse_sheet(file, text, "|", quotes=False)
    require(sheet, "JobID", "Submit")
    clock = next((name for name in ("ElapsedRaw", "Elapsed") if name in sheet.names), "")
    tres = [name for name in _TRES if name in sheet.names]
    if not clock or not tres:
        missing = "ElapsedRaw" if not clock else "AllocTRES"
        raise BadInput.one(f"{file}: has no column {missing}; add it to sacct --format")
    sheet.select(row for row, name in enumerate(sheet.text("JobID")) if "." not in name)
    used = [_gpu_column(sheet, name) for name in tres]
    gpus = [next((count for count in row if count.number), Gpus(0, "")) for row in zip(*used, strict=True)]
    lengths = np.array(sheet.parsed(clock, duration_s, np.nan, "a duration, e.g. 1-02:03:04 or seconds"), np.float64)

    ran = [row for row, count in enumerate(gpus) if count.number and lengths[row] > 0]
    sheet.select(ran)
    trace = Trace.of(
        arrival_s=to_seconds(sheet.parsed("Submit", parse_time, FIRST_DAY, "a time, e.g. 2026-03-01T08:15:00")),
        workload=sheet.text("JobName"),
        scale=[gpus[row].number for row in ran],
        duration_s=lengths[ran],
        gpu_types=[(gpus[row].type,) if gpus[row].type else () for row in ran],
        texts={"name": sheet.text("JobID"), "user": sheet.text("User"), "queue": sheet.text("Partition")},
    )
    order = trace.order()
    sheet.select(order.tolist())
    return sheet.checked(trace.take(order), {"arrival_s": "Submit", "duration_s": clock, "scale": tres[0]})


def render(trace: Trace) -> str:
    """Render *trace*, starting at 2000-01-01; raises BadInput if a job has no duration."""
    unknown = np.isnan(trace.duration_s).nonzero()[0]
    if unknown.size:
        raise BadInput.one(f"job {unknown[0]} has no duration_s, which a Slurm trace needs")
    lines = ["JobID|JobName|User|Partition|Submit|ElapsedRaw|ReqTRES"]
    names = (name or str(row + 1) for row, name in enumerate(trace.text("name")))
    for name, workload, user, queue, at, length, scale, types in zip(
        names,
        trace.workload,
        trace.text("user"),
        trace.text("queue"),
        to_times(trace.arrival_s),
        trace.duration_s.tolist(),
        trace.scale.tolist(),
        trace.gpu_types,
        strict=True,
    ):
        tres = f"gres/gpu={scale}" + (f",gres/gpu:{types[0]}={scale}" if types else "")
        cells = (name, workload, user, queue, at.isoformat(), str(max(round(length), 1)), tres)
        lines.append("|".join(cell.replace("|", "/").replace("\n", " ") for cell in cells))
    return "\n".join(lines) + "\n"


def duration_s(text: str) -> float:
    """Parse `1-02:03:04`, `02:03:04`, `03:04` or a number of seconds; raises ValueError."""
    if text.isascii() and text.isdigit():
        return float(text)
    match = _ELAPSED.fullmatch(text)
    if not match:
        raise ValueError
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def parse_gpus(text: str) -> Gpus:
    """Parse the GPUs of a resource list: `cpu=8,gres/gpu:a100=4`, `gpu:a100:4`; raises ValueError."""
    total = 0
    by_type: dict[str, int] = {}
    for item in _SOCKETS.sub("", text).split(","):
        name, _, amount = item.strip().removeprefix("gres/").partition("=")
        kind, *rest = name.split(":")
        if kind != "gpu":
            continue
        if not amount and rest:
            amount = rest.pop()  # older versions: gpu:a100:4
        if rest:
            by_type[rest[0]] = by_type.get(rest[0], 0) + int(amount or 1)
        else:
            total += int(amount or 1)
    # The list may contain both the sum over all types and the types.
    return Gpus(total or sum(by_type.values()), next(iter(by_type)) if len(by_type) == 1 else "")


def _gpu_column(sheet: Sheet, name: str) -> list[Gpus]:
    return sheet.parsed(name, parse_gpus, Gpus(1, ""), "a list of resources, e.g. cpu=8,gres/gpu=4")
