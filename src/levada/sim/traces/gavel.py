"""Traces of lines with tabs: Gavel's own, its older one, its generated jobs, and Shockwave's.

They differ in which columns they have and in what order; a layout says both. In Gavel's a negative SLO is none, in the
lists of generated jobs it is `None`; steps are whole numbers but in those lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.errors import BadInput
from levada.sim.traces.sheet import Sheet, number, rows_of
from levada.sim.traces.trace import Trace


class Layout(msgspec.Struct, frozen=True):
    """The columns of a format: the name in the format, and the column of a trace."""

    format: str
    columns: Mapping[str, str]
    #: A first line with the names.
    header: bool = False

    def column(self, of: str) -> str:
        """What the format calls a column of a trace; empty if it has none."""
        return next((name for name, column in self.columns.items() if column == of), "")


_START = {
    "job_type": "workload",
    "command": "command",
    "working_directory": "working_directory",
    "num_steps_arg": "steps_argument",
    "needs_data_dir": "needs_data_dir",
    "total_steps": "steps",
    "scale_factor": "scale",
}

GAVEL = Layout("gavel", {**_START, "priority_weight": "weight", "SLO": "slo", "arrival_time": "arrival_s"})
#: Before Gavel knew weights and SLOs: its `msr` traces.
GAVEL_OLD = Layout(
    "gavel-old",
    {
        "job_type": "workload",
        "command": "command",
        "num_steps_arg": "steps_argument",
        "needs_data_dir": "needs_data_dir",
        "total_steps": "steps",
        "arrival_time": "arrival_s",
        "scale_factor": "scale",
    },
)
GAVEL_JOBS = Layout(
    "gavel-jobs",
    {
        "job_type": "workload",
        "total_steps": "steps",
        "scale_factor": "scale",
        "priority_weight": "weight",
        "SLO": "slo",
        "duration_s_on_v100": "duration_s",
        "arrival_s": "arrival_s",
    },
    header=True,
)
SHOCKWAVE = Layout(
    "shockwave",
    {
        **_START,
        "mode": "mode",
        "priority_weight": "weight",
        "SLO": "slo",
        "duration": "duration_s",
        "arrival_time": "arrival_s",
    },
)
LAYOUTS = (GAVEL, GAVEL_OLD, GAVEL_JOBS, SHOCKWAVE)

_TEXTS = ("command", "working_directory", "steps_argument", "mode")


def detect(file: str, text: str) -> Layout:
    """Which layout most lines have; raises BadInput where none has it."""
    lines = [line.split("\t") for _, line in rows_of(text)]
    known = Counter(len(cells) for cells in lines if len(cells) in (7, 10, 12))
    if not known:
        widths = "Gavel's have 10 (older ones and lists of generated jobs 7), Shockwave's 12"
        raise BadInput.one(f"{file}: no line has as many columns as a trace with tabs: {widths}")
    width = known.most_common(1)[0][0]
    if width != 7:
        return GAVEL if width == 10 else SHOCKWAVE
    # Generated jobs have their steps where the older traces have a command.
    second = next(cells[1] for cells in lines if len(cells) == 7)
    return GAVEL_JOBS if _is_number(second) else GAVEL_OLD


def parse(layout: Layout, file: str, text: str) -> Trace:
    """The trace in *text*; raises BadInput with all faults."""
    sheet = Sheet(file, tuple(layout.columns))
    for line, content in rows_of(text):
        sheet.add(line, content.split("\t"))

    def floats(column: str, otherwise: float) -> Floats:
        name = layout.column(column)
        if name:
            return sheet.floats(name, unknown=("None",) if layout is GAVEL_JOBS and column == "slo" else ())
        return np.full(len(sheet.lines), otherwise)

    steps = layout.column("steps")
    slo = floats("slo", np.nan)
    texts = {column: sheet.text(layout.column(column)) for column in _TEXTS if layout.column(column)}
    if layout.column("needs_data_dir"):
        flags = sheet.parsed("needs_data_dir", _flag, "0", "0 or 1")
        texts["needs_data_dir"] = tuple(flags)
    trace = Trace.of(
        arrival_s=floats("arrival_s", 0.0),
        workload=sheet.text("job_type"),
        scale=sheet.ints("scale_factor"),
        steps=sheet.floats(steps) if layout is GAVEL_JOBS else sheet.parsed(steps, _whole, np.nan, "a whole number"),
        duration_s=floats("duration_s", np.nan),
        weight=floats("weight", 1.0),
        # A negative one is none.
        slo=np.where(slo < 0, np.nan, slo),
        texts=texts,
    )
    return sheet.checked(trace, {column: name for name, column in layout.columns.items()})


def render(layout: Layout, trace: Trace) -> str:
    """The lines of *trace* in that layout; raises BadInput where a job lacks what the format demands."""
    demanded = [name for name in ("steps", "duration_s") if layout.column(name)]
    for name in demanded:
        unknown = np.isnan(getattr(trace, name)).nonzero()[0]
        if unknown.size:
            raise BadInput.one(f"job {unknown[0]} has no {name}, which a {layout.format} trace needs")
    for place, name in enumerate(trace.workload):
        if name.startswith("#"):
            raise BadInput.one(f"job {place}: the line of a workload that begins with # would be skipped by readers")
    cells = {column: _cells(layout, trace, column) for column in layout.columns.values()}
    lines = ["\t".join(row) for row in zip(*cells.values(), strict=True)]
    if layout.header:
        lines.insert(0, "#" + "\t".join(layout.columns))
    return "".join(line + "\n" for line in lines)


def _cells(layout: Layout, trace: Trace, column: str) -> list[str]:
    exact = layout is GAVEL_JOBS
    match column:
        case "workload":
            return [_one_cell(text) for text in trace.workload]
        case "scale":
            return list(map(str, trace.scale.tolist()))
        case "steps" if not exact:
            # As Gavel writes what it generated: without the fraction, and never nothing.
            return [str(max(int(steps), 1)) for steps in trace.steps.tolist()]
        case "slo":
            none = "None" if exact else "-1.000000"
            return [none if np.isnan(slo) else number(slo) for slo in trace.slo.tolist()]
        case "needs_data_dir":
            return [flag or "0" for flag in trace.text(column)]
        case "mode":
            return [mode or "static" for mode in trace.text(column)]
        case _ if column in _TEXTS:
            return [_one_cell(text) for text in trace.text(column)]
        case _:
            values: list[float] = getattr(trace, column).tolist()
            return [repr(value) if exact else number(value) for value in values]


def _one_cell(text: str) -> str:
    """*text* without what would end a cell or a line."""
    return " ".join(text.split()) if any(character in text for character in "\t\n\r") else text


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _whole(cell: str) -> float:
    value = float(cell)
    if not value.is_integer():
        raise ValueError
    int(cell)  # neither 1e3 nor 1.0, which Gavel would not read
    return value


def _flag(cell: str) -> str:
    if cell not in ("0", "1"):
        raise ValueError
    return cell
