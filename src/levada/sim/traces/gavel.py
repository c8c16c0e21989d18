"""Tab-separated traces: Gavel's formats, and Shockwave's.

Gavel's are its traces, its older format, and its lists of generated jobs. A layout states the columns and their order.
No SLO is a negative number, in lists of generated jobs `None`; steps are whole numbers except in those lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.errors import BadInput
from levada.sim.traces.sheet import Sheet, data_lines, format_number
from levada.sim.traces.trace import Trace


class LineLayout(msgspec.Struct, frozen=True):
    """The columns of a format: name in the format, and column of `Trace`."""

    format: str
    columns: Mapping[str, str]
    #: The first line names the columns.
    header: bool = False

    def column(self, of: str) -> str:
        """Return the format's name of a column of `Trace`; "" if it has none."""
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

GAVEL = LineLayout("gavel", {**_START, "priority_weight": "weight", "SLO": "slo", "arrival_time": "arrival_s"})
#: Without weights and SLOs: Gavel's `msr` traces.
GAVEL_OLD = LineLayout(
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
GAVEL_JOBS = LineLayout(
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
SHOCKWAVE = LineLayout(
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


def detect(file: str, text: str) -> LineLayout:
    """Return the layout of most lines; raises BadInput if no line fits one."""
    lines = [line.split("\t") for _, line in data_lines(text)]
    known = Counter(len(cells) for cells in lines if len(cells) in (7, 10, 12))
    if not known:
        widths = "Gavel's have 10 (older ones and lists of generated jobs 7), Shockwave's 12"
        raise BadInput.one(f"{file}: no line has the columns of a tab-separated trace: {widths}")
    width = known.most_common(1)[0][0]
    if width != 7:
        return GAVEL if width == 10 else SHOCKWAVE
    # Generated jobs have their steps where the older traces have a command.
    second = next(cells[1] for cells in lines if len(cells) == 7)
    return GAVEL_JOBS if _is_number(second) else GAVEL_OLD


def parse(layout: LineLayout, file: str, text: str) -> Trace:
    """Parse *text*; raises BadInput with all faults."""
    sheet = Sheet(file, tuple(layout.columns))
    for line, content in data_lines(text):
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
        # A negative number means none.
        slo=np.where(slo < 0, np.nan, slo),
        texts=texts,
    )
    return sheet.checked(trace, {column: name for name, column in layout.columns.items()})


def render(layout: LineLayout, trace: Trace) -> str:
    """Render *trace* in this layout; raises BadInput if a job lacks a required value."""
    required = [name for name in ("steps", "duration_s") if layout.column(name)]
    for name in required:
        unknown = np.isnan(getattr(trace, name)).nonzero()[0]
        if unknown.size:
            raise BadInput.one(f"job {unknown[0]} has no {name}, which a {layout.format} trace needs")
    for row, name in enumerate(trace.workload):
        if name.startswith("#"):
            raise BadInput.one(f"job {row}: workload {name!r} begins with #, so readers would skip the line")
    cells = {column: _cells(layout, trace, column) for column in layout.columns.values()}
    lines = ["\t".join(row) for row in zip(*cells.values(), strict=True)]
    if layout.header:
        lines.insert(0, "#" + "\t".join(layout.columns))
    return "".join(line + "\n" for line in lines)


def _cells(layout: LineLayout, trace: Trace, column: str) -> list[str]:
    exact = layout is GAVEL_JOBS
    match column:
        case "workload":
            return [_one_cell(text) for text in trace.workload]
        case "scale":
            return list(map(str, trace.scale.tolist()))
        case "steps" if not exact:
            # Like Gavel: without the fraction, at least 1.
            return [str(max(int(steps), 1)) for steps in trace.steps.tolist()]
        case "slo":
            none = "None" if exact else "-1.000000"
            return [none if np.isnan(slo) else format_number(slo) for slo in trace.slo.tolist()]
        case "needs_data_dir":
            return [flag or "0" for flag in trace.text(column)]
        case "mode":
            return [mode or "static" for mode in trace.text(column)]
        case _ if column in _TEXTS:
            return [_one_cell(text) for text in trace.text(column)]
        case _:
            values: list[float] = getattr(trace, column).tolist()
            return [repr(value) if exact else format_number(value) for value in values]


def _one_cell(text: str) -> str:
    """Return *text* with tabs and line breaks replaced by spaces."""
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
    int(cell)  # rejects 1e3 and 1.0, which Gavel cannot read
    return value


def _flag(cell: str) -> str:
    if cell not in ("0", "1"):
        raise ValueError
    return cell
