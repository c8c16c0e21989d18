"""`levada bench sim`: how quick a simulation is."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

from levada.cli.output import columns, data, data_json
from levada.cli.sim_flags import Output, command

if TYPE_CHECKING:
    from levada.sim.settings import Settings


def add(group: typer.Typer) -> None:
    """Adds `sim` to the group `bench`."""
    group.command("sim")(command(bench))


def bench(settings: Settings, output: Output) -> None:
    """Time one simulation: CPU seconds, start-up apart."""
    with redirect_stdout(sys.stderr):
        figures = measure(settings)
    if output is Output.JSON:
        data_json(figures)
    else:
        data(columns(("METRIC", "VALUE"), [(name, _shown(value)) for name, value in figures.items()]))


def measure(settings: Settings) -> dict[str, Any]:
    """The figures of one run. `start_s` and `cpu_s` together are what the process has used."""
    from levada.cli.sim_watch import prepare, watched

    prepare(settings)
    result = watched(settings)
    used_s = time.process_time()
    report = result.report
    cpu_s = report.cpu_s
    return {
        "policy": report.policy,
        "jobs": report.jobs,
        "finished": report.finished,
        "gpus": result.gpus,
        "rounds": report.rounds,
        "decisions": report.decisions,
        "events": result.events,
        "start_s": round(used_s - cpu_s, 3),
        "cpu_s": round(cpu_s, 3),
        "events_per_s": round(result.events / cpu_s, 1) if cpu_s > 0 else None,
        "jobs_per_cpu_s": round(report.finished / cpu_s, 1) if cpu_s > 0 else None,
        "peak_rss_mb": round(report.peak_rss_mb, 1),
    }


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
