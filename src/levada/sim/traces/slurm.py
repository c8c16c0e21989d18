"""What Slurm remembers: `sacct --parsable2 --format=JobID,JobName,User,Partition,Submit,ElapsedRaw,AllocTRES,State`.

Any columns in any order, as long as the time of submission, a duration (`ElapsedRaw` or `Elapsed`) and GPUs
(`AllocTRES` or `ReqTRES`, or `AllocGRES` or `ReqGRES` of older versions) are among them. Left out are the steps of a
job, jobs that never ran, and jobs without GPUs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from levada.errors import BadInput
from levada.sim.traces.calendar import FIRST_DAY, moment, moments, seconds
from levada.sim.traces.sheet import Sheet, demand, sheet_of
from levada.sim.traces.trace import Trace

_TRES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
#: Where older versions say on which sockets the GPUs are: `gpu:4(S:0-1)`.
_SOCKETS = re.compile(r"\([^)]*\)")


class Gpus(NamedTuple):
    """GPUs of a job, and their type where Slurm knows it."""

    number: int
    type: str


def parse(file: str, text: str) -> Trace:
    """The trace in *text*, by submission; raises BadInput with all faults."""
    # A name may hold quotes, which mean nothing to sacct.
    sheet = sheet_of(file, text, "|", quotes=False)
    demand(sheet, "JobID", "Submit")
    clock = next((name for name in ("ElapsedRaw", "Elapsed") if name in sheet.names), "")
    tres = [name for name in _TRES if name in sheet.names]
    if not clock or not tres:
        missing = "ElapsedRaw" if not clock else "AllocTRES"
        raise BadInput.one(f"{file}: has no column {missing}; ask sacct for it with --format")
    sheet.keep(row for row, name in enumerate(sheet.text("JobID")) if "." not in name)
    used = [_gpus_of(sheet, name) for name in tres]
    gpus = [next((each for each in row if each.number), Gpus(0, "")) for row in zip(*used, strict=True)]
    lasts = np.array(sheet.parsed(clock, duration_s, np.nan, "a duration, e.g. 1-02:03:04 or seconds"), np.float64)

    ran = [row for row, each in enumerate(gpus) if each.number and lasts[row] > 0]
    sheet.keep(ran)
    trace = Trace.of(
        arrival_s=seconds(sheet.parsed("Submit", moment, FIRST_DAY, "a time, e.g. 2026-03-01T08:15:00")),
        workload=sheet.text("JobName"),
        scale=[gpus[row].number for row in ran],
        duration_s=lasts[ran],
        gpu_types=[(gpus[row].type,) if gpus[row].type else () for row in ran],
        texts={"name": sheet.text("JobID"), "user": sheet.text("User"), "queue": sheet.text("Partition")},
    )
    order = trace.order()
    sheet.keep(order.tolist())
    return sheet.checked(trace.take(order), {"arrival_s": "Submit", "duration_s": clock, "scale": tres[0]})


def render(trace: Trace) -> str:
    """The lines of *trace*, from the first second of 2000 on; raises BadInput where a job has no duration."""
    unknown = np.isnan(trace.duration_s).nonzero()[0]
    if unknown.size:
        raise BadInput.one(f"job {unknown[0]} has no duration_s, which sacct always knows")
    lines = ["JobID|JobName|User|Partition|Submit|ElapsedRaw|ReqTRES"]
    names = (name or str(place + 1) for place, name in enumerate(trace.text("name")))
    for name, workload, user, queue, at, lasts, scale, types in zip(
        names,
        trace.workload,
        trace.text("user"),
        trace.text("queue"),
        moments(trace.arrival_s),
        trace.duration_s.tolist(),
        trace.scale.tolist(),
        trace.gpu_types,
        strict=True,
    ):
        tres = f"gres/gpu={scale}" + (f",gres/gpu:{types[0]}={scale}" if types else "")
        cells = (name, workload, user, queue, at.isoformat(), str(max(round(lasts), 1)), tres)
        lines.append("|".join(cell.replace("|", "/").replace("\n", " ") for cell in cells))
    return "\n".join(lines) + "\n"


def duration_s(text: str) -> float:
    """Seconds of `1-02:03:04`, `02:03:04`, `03:04` or a plain number of seconds; raises ValueError."""
    if text.isascii() and text.isdigit():
        return float(text)
    found = _ELAPSED.fullmatch(text)
    if not found:
        raise ValueError
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def gpus_of(text: str) -> Gpus:
    """GPUs in a list of resources: `cpu=8,gres/gpu:a100=4`, `gpu:a100:4`; raises ValueError."""
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
    # A sum over all types stands beside the types.
    return Gpus(total or sum(by_type.values()), next(iter(by_type)) if len(by_type) == 1 else "")


def _gpus_of(sheet: Sheet, name: str) -> list[Gpus]:
    return sheet.parsed(name, gpus_of, Gpus(1, ""), "a list of resources, e.g. cpu=8,gres/gpu=4")
