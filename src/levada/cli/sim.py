"""`levada sim`: simulate policies on many jobs."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

from levada.cli import sim_compare, sim_plot, sim_sweep, sim_trace
from levada.cli.output import columns, data, data_json, message
from levada.cli.sim_flags import SimFormat, command

if TYPE_CHECKING:
    from levada.sim.run import Result
    from levada.sim.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the group `sim`."""
    group = typer.Typer(help="Simulate policies on traces and generated jobs.", rich_markup_mode=None)
    group.command("run")(command(run))
    sim_sweep.add(group)
    sim_compare.add(group)
    sim_plot.add(group)
    sim_trace.add(group)
    app.add_typer(group, name="sim")


def run(settings: Settings, output: SimFormat) -> None:
    """Run one simulation and print its metrics."""
    from levada.cli.sim_watch import prepare, run_watched

    # A user's policy may print; stdout carries only the result.
    with redirect_stdout(sys.stderr):
        prepare(settings)
        result = run_watched(settings)
    for note in result.notes:
        message(note)
    if output is SimFormat.JSON:
        data_json(as_json(result, settings))
    else:
        data(as_text(result, settings))


def as_json(result: Result, settings: Settings) -> dict[str, Any]:
    """Return the report, further metrics and the settings of the simulation."""
    import msgspec

    from levada.sim.sweep.run import cluster_text

    more = msgspec.to_builtins(result.detail)
    fields = ("queueing_s", "dropped", "deadlines", "moves", "resizes", "lease_extensions")
    return {
        **msgspec.to_builtins(result.report),
        **{name: more[name] for name in fields},
        "utilization_by_type": more["utilization"],
        "measured": _measured(result, settings),
        "events": result.events,
        "cluster": cluster_text(settings.cluster),
        "gpus": result.gpus,
        "trace": settings.trace,
        "workload": settings.workload,
        "rate": settings.rate,
        "asked_jobs": settings.jobs,
        "seed": settings.seed,
        "profiling": settings.profiling,
        "reference_models": settings.reference_models,
    }


def _measured(result: Result, settings: Settings) -> int:
    """Return the number of jobs in the measuring window."""
    rows = settings.window.rows(len(result.jobs))
    return int(rows.stop - rows.start)


def as_text(result: Result, settings: Settings) -> str:
    """Format the result as a table."""
    from levada.sim.sweep.run import cluster_text

    report, more = result.report, result.detail
    window = settings.window.rows(len(result.jobs))
    count = _measured(result, settings)
    measured = [] if count == report.jobs else [("measured", f"{count:,} (jobs {window.start} to {window.stop - 1})")]
    cost = f"${report.cost:,.2f}" if settings.prices or settings.prices_dir else f"{report.cost:,.2f} GPU-hours"
    rows = [
        ("policy", report.policy),
        ("cluster", cluster_text(settings.cluster)),
        ("jobs", f"{report.jobs:,}, {report.finished:,} finished, {more.dropped:,} dropped"),
        *measured,
        ("makespan", _time(report.makespan_s)),
        ("completion time", _spread(report.avg_jct_s, report.p50_jct_s, report.p90_jct_s, report.p99_jct_s)),
        ("queueing", _spread(*(getattr(more.queueing_s, name) for name in ("mean", "p50", "p90", "p99")))),
        ("utilization", f"{report.utilization:.1%}  ({_by_type(more.utilization)})"),
        ("finish-time fairness", _fairness(report.ftf)),
        ("cost", cost),
        ("missed deadlines", f"{report.slo_violations:,} of {more.deadlines:,}"),
        ("rounds, decisions", f"{report.rounds:,}, {report.decisions:,}"),
        ("preemptions, moves, resizes", f"{report.preemptions:,}, {more.moves:,}, {more.resizes:,}"),
        ("kept their GPUs", "-" if more.lease_extensions is None else f"{more.lease_extensions:.1%} of rounds"),
        ("run time", f"{report.cpu_s:.2f} s CPU, {report.wall_s:.2f} s wall, {report.peak_rss_mb:.0f} MiB"),
    ]
    return columns(("METRIC", "VALUE"), rows)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:.2f} h"


def _spread(*seconds: float | None) -> str:
    if seconds[0] is None:
        return "-"
    mean, p50, p90, p99 = map(_time, seconds)
    return f"mean {mean}, p50 {p50}, p90 {p90}, p99 {p99}"


def _by_type(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {part:.1%}" for name, part in parts.items())


def _fairness(ftf: Any) -> str:
    if ftf.mean is None:
        return "-"
    return f"mean {ftf.mean:.2f}, worst {ftf.worst:.2f}, {ftf.unfair:.1%} of jobs above 1.05"
