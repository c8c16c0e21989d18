"""`levada sim compare`: compare policies by load, with confidence intervals."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.output import bold, colour, data, data_json, line_width

if TYPE_CHECKING:
    from levada.report.data import Runs
    from levada.report.table import ComparisonRow


class CompareFormat(StrEnum):
    """Output formats of a comparison."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


PRINTED = Annotated[CompareFormat, typer.Option("--output", "-o", help="Output format.")]
METRIC = Annotated[
    list[str] | None,
    typer.Option("--metric", help="Column of runs.parquet, e.g. avg_jct_s; repeatable."),
]


def add(group: typer.Typer) -> None:
    """Add `compare` to the group `sim`."""
    group.command("compare")(compare)


def compare(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Sweep folders, or output files of `sim run -o json`.")
    ],
    metric: METRIC = None,
    output: PRINTED = CompareFormat.TABLE,
) -> None:
    """Compare policies by load.

    Values are means over seeds with 95 % confidence intervals; the best policy at each load is marked.
    """
    from levada.report.data import read

    show(read(inputs), metric, output)


def show(runs: Runs, metrics: Sequence[str] | None, output: CompareFormat) -> None:
    """Print the comparison of *runs*; JSON and CSV have all metrics unless some are named."""
    from levada.report.table import METRICS, USUAL
    from levada.report.table import compare as rows_of

    everything = output in (CompareFormat.JSON, CompareFormat.CSV)
    names = tuple(metrics) if metrics else tuple(METRICS) if everything else USUAL
    rows = rows_of(runs, names)
    match output:
        case CompareFormat.JSON:
            import msgspec

            data_json(msgspec.to_builtins(rows))
        case CompareFormat.CSV:
            data(_csv(rows, names))
        case CompareFormat.MD:
            data(_markdown(rows, names, runs.load_unit))
        case CompareFormat.TABLE:
            data(_table(rows, names, runs.load_unit))


def _cells(
    rows: list[ComparisonRow], names: Sequence[str], load_unit: str
) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Return the header, and per row (text, is best) of each cell, without uninformative columns."""
    from levada.report.table import METRICS, cell, heading

    header = ["policy", "cluster", load_unit, "runs", *(heading(METRICS[name]) for name in names)]
    table = [
        [
            (row.policy, False),
            (row.cluster or "-", False),
            ("-" if row.load is None else f"{row.load:g}", False),
            (f"{row.runs}, {row.saturated} saturated" if row.saturated else str(row.runs), False),
            *((cell(METRICS[name], figure), figure.best) for name, figure in row.figures.items()),
        ]
        for row in rows
    ]
    constant = [i for i in (1, 2) if len({line[i][0] for line in table}) == 1 and table[0][i][0] == "-"]
    if len({row.cluster for row in rows}) == 1 and 1 not in constant:
        constant.append(1)
    keep = [i for i in range(len(header)) if i not in constant]
    return [header[i] for i in keep], [[line[i] for i in keep] for line in table]


def _table(rows: list[ComparisonRow], names: Sequence[str], load_unit: str) -> str:
    from levada.report.table import LEAST_RUNS, too_few_runs

    header, table = _cells(rows, names, load_unit)
    has_bold = colour(sys.stdout)
    # Without bold text, a star marks the best.
    marked = [[text if has_bold or not best else f"{text} *" for text, best in line] for line in table]
    widths = [max(len(header[i]), *(len(line[i]) for line in marked)) for i in range(len(header))]
    fits = _fitting_columns(widths, len(header) - len(names) + 1)
    dropped = [_upper(name) for name in header[fits:]]
    widths = widths[:fits]
    lines = [bold("  ".join(_upper(name).ljust(width) for name, width in zip(header, widths, strict=False)).rstrip())]
    loads = [row.load for row in rows]
    for place, (texts, line) in enumerate(zip(marked, table, strict=True)):
        if place and (loads[place] != loads[place - 1] or rows[place].cluster != rows[place - 1].cluster):
            lines.append("")
        padded = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        shown = [bold(text) if best else text for text, (_, best) in zip(padded, line, strict=False)]
        lines.append("  ".join(shown).rstrip())
    notes = []
    if any(best for line in table for _, best in line):
        meaning = "best at its load: its 95 % confidence interval overlaps no other"
        notes.append(f"{bold('bold')}: {meaning}" if has_bold else f"* {meaning}")
    if too_few_runs(rows):
        notes.append(f"no best is marked: a policy has fewer than {LEAST_RUNS} runs; add seeds")
    if dropped:
        notes.append(f"columns dropped, terminal too narrow: {', '.join(dropped)}; `-o md` prints all")
    return "\n".join([*lines, "", *notes] if notes else lines)


def _fitting_columns(widths: list[int], least: int) -> int:
    """Return how many columns fit on a line of the terminal; at least *least*."""
    room = line_width()
    count = len(widths)
    while room is not None and count > least and sum(widths[:count]) + 2 * (count - 1) > room:
        count -= 1
    return count


def _upper(heading: str) -> str:
    """Convert a heading to upper case, except its unit."""
    title, bracket, unit = heading.partition(" (")
    return title.upper() + bracket + unit


def _markdown(rows: list[ComparisonRow], names: Sequence[str], load_unit: str) -> str:
    header, table = _cells(rows, names, load_unit)
    lines = [header, ["---"] * len(header)]
    lines += [[f"**{text}**" if best else text for text, best in line] for line in table]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _csv(rows: list[ComparisonRow], names: Sequence[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["policy", "cluster", "load", "runs", "saturated", *(f"{n}{end}" for n in names for end in ("", "_plus_minus"))]
    )
    for row in rows:
        cells: list[Any] = [row.policy, row.cluster, row.load, row.runs, row.saturated]
        for figure in row.figures.values():
            cells += [figure.mean, figure.plus_minus]
        writer.writerow(["" if cell is None else cell for cell in cells])
    return out.getvalue().rstrip("\n")
