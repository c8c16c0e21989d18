"""Figures as files: SVG, PNG, or one HTML page that needs nothing else; and a report with everything in one page."""

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
td:first-child, th:first-child { text-align: left } tr { border-bottom: 1px solid #ddd }
figure { margin: 2rem 0 } svg { max-width: 100%; height: auto } figcaption { color: #444 }
"""


def suffix_of(path: str) -> str:
    """How the file is written, by its ending; raises BadInput."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput.one(f"--out {path}: the ending must be one of {', '.join(SUFFIXES)}")
    return suffix


def write(figure: Any, path: str, caption: str) -> None:
    """Writes a figure; raises BadInput where that cannot be."""
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
    """The figure as SVG; the same figure has the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "Levada"})
    return buffer.getvalue()


def write_report(runs: Runs, path: str) -> None:
    """One page with the comparison and every figure that these runs have something for."""
    if suffix_of(path) != ".html":
        raise BadInput.one(f"--out {path}: a report is one page: its ending must be .html")
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
                continue  # nobody finished there, or nobody knows
    for row in _with_timelines(runs):
        parts.append(_framed(gantt.by_job(gantt.of_run(runs, row)), CAPTIONS["gantt"]))
    _put(path, _page("Simulations compared", parts).encode())


CAPTIONS = {
    "jct": "Mean completion time by load; shades are 95 % intervals over seeds.",
    "makespan": "Time until all is done, by load; shades are 95 % intervals over seeds.",
    "utilization": "GPU time in use by load; shades are 95 % intervals over seeds.",
    "cdf": "How completion times are spread.",
    "ftf": "How finish-time fairness is spread: below 1 a job is faster than with its part of the cluster.",
    "runtime": "CPU time per decision by load.",
    "gantt": "Who ran when and where.",
}


def _with_timelines(runs: Runs) -> list[dict[str, Any]]:
    """One run of each policy whose timeline was kept: the first seed of the highest load that it could bear."""
    found: dict[str, dict[str, Any]] = {}
    for row in runs.rows:
        folder = runs.folders.get(row["input"])
        if folder is not None and (folder / TIMELINES).exists() and row["status"] == "finished":
            best = found.get(row["label"])
            if best is None or (row["load"] or 0, -row["seed"]) > (best["load"] or 0, -best["seed"]):
                found[row["label"]] = row
    return list(found.values())


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
    return f"<table>{''.join(lines)}</table>"


def _framed(figure: Any, caption: str) -> str:
    svg = as_svg(figure)
    # Inside a page SVG has no heading of its own.
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
        why = error.strerror if folder.is_dir() else f"there is no folder {folder}"
        raise BadInput.one(f"--out {path}: {why}") from None
