"""Write figures as SVG, PNG or self-contained HTML, and whole reports as HTML."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from levada.errors import BadInput
from levada.report import figures, gantt
from levada.report.data import TIMELINES, Runs
from levada.report.table import METRICS, USUAL, cell, compare, heading

SUFFIXES = (".svg", ".png", ".html")

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem; text-align: right }
td { white-space: nowrap } .wide { overflow-x: auto }
td:first-child, th:first-child { text-align: left } tr { border-bottom: 1px solid #ddd }
figure { margin: 2rem 0 } svg { max-width: 100%; height: auto } figcaption { color: #444 }
"""


def suffix_of(path: str) -> str:
    """The file type by suffix; raises BadInput if it is not supported."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput.one(f"--out {path}: the suffix must be one of {', '.join(SUFFIXES)}")
    return suffix


def write(figure: Any, path: str, caption: str) -> None:
    """Write a figure; raises BadInput if the file cannot be written."""
    suffix = suffix_of(path)
    if suffix == ".png":
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=160)
        _put(path, buffer.getvalue())
    elif suffix == ".svg":
        _put(path, as_svg(figure).encode())
    else:
        _put(path, _page(caption, [_framed(figure, caption)]).encode())


def as_svg(figure: Any) -> str:
    """The figure as SVG; equal figures give equal text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "Levada"})
    return buffer.getvalue()


def write_report(runs: Runs, path: str) -> None:
    """Write one page with the comparison and every figure that these runs allow."""
    if suffix_of(path) != ".html":
        raise BadInput.one(f"--out {path}: the suffix of a report must be .html")
    loads = {row["load"] for row in runs.rows}
    parts = ["<h2>Comparison</h2>", _table(runs)]
    if len(loads - {None}) > 1:
        parts.append(_framed(figures.against_load(runs, "avg_jct_s"), CAPTIONS["jct"]))
        parts.append(_framed(figures.against_load(runs, "utilization"), CAPTIONS["utilization"]))
        if runs.load_unit == "jobs":
            parts.append(_framed(figures.against_load(runs, "makespan_s"), CAPTIONS["makespan"]))
        parts.append(_framed(figures.runtime(runs), CAPTIONS["runtime"]))
    for cluster in sorted({row["cluster"] for row in runs.rows}):
        for kind, draw in (("cdf", figures.completion_times), ("ftf", figures.fairness)):
            try:
                parts.append(_framed(draw(runs, None, cluster), CAPTIONS[kind]))
            except BadInput:
                continue  # no run finished there, or the values are unknown
    for row in _with_timelines(runs):
        parts.append(_framed(gantt.by_job(gantt.of_run(runs, row)), CAPTIONS["gantt"]))
    _put(path, _page("Simulations compared", parts).encode())


CAPTIONS = {
    "jct": "Mean completion time by load; shades are 95 % intervals over seeds.",
    "makespan": "Time until all jobs are done, by load; shades are 95 % intervals over seeds.",
    "utilization": "Fraction of GPU time in use, by load; shades are 95 % intervals over seeds.",
    "cdf": "Distribution of completion times.",
    "ftf": "Distribution of finish-time fairness: below 1 a job is faster than with its part of the cluster.",
    "runtime": "CPU time per decision, by load.",
    "gantt": "Timeline of jobs and GPU types.",
}


def _with_timelines(runs: Runs) -> list[dict[str, Any]]:
    """One run per policy with a timeline: first seed, highest load that finished."""
    by_label: dict[str, dict[str, Any]] = {}
    for row in runs.rows:
        folder = runs.folders.get(row["input"])
        if folder is not None and (folder / TIMELINES).exists() and row["status"] == "finished":
            best = by_label.get(row["label"])
            if best is None or (row["load"] or 0, -row["seed"]) > (best["load"] or 0, -best["seed"]):
                by_label[row["label"]] = row
    return list(by_label.values())


def _table(runs: Runs) -> str:
    rows = compare(runs, USUAL)
    header = ["policy", "cluster", runs.load_unit, "runs", *(heading(METRICS[name]) for name in USUAL)]
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in header) + "</tr>"]
    for row in rows:
        load = "-" if row.load is None else f"{row.load:g}"
        count = f"{row.runs}, {row.saturated} saturated" if row.saturated else str(row.runs)
        cells = [escape(text) for text in (row.policy, row.cluster, load, count)]
        for name, figure in row.figures.items():
            text = escape(cell(METRICS[name], figure))
            cells.append(f"<b>{text}</b>" if figure.best else text)
        lines.append("<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _framed(figure: Any, caption: str) -> str:
    svg = as_svg(figure)
    # Embedded SVG has no XML prolog.
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"


def _page(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _put(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        folder = Path(path).parent
        why = error.strerror if folder.is_dir() else f"no such folder: {folder}"
        raise BadInput.one(f"--out {path}: {why}") from None
