"""`levada bench sim`: speed of a simulation."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

from levada.cli.output import columns, data, data_json
from levada.cli.sim_flags import SimFormat, command

if TYPE_CHECKING:
    from levada.sim.settings import Settings


def add(group: typer.Typer) -> None:
    """Add `sim` to the group `bench`."""
    group.command("sim")(command(bench))


def bench(settings: Settings, output: SimFormat) -> None:
    """Measure the CPU time of one simulation.

    Start-up is measured separately.
    """
    with redirect_stdout(sys.stderr):
        results = measure(settings)
    if output is SimFormat.JSON:
        data_json(results)
    else:
        data(columns(("METRIC", "VALUE"), [(name, _shown(value)) for name, value in results.items()]))


def measure(settings: Settings) -> dict[str, Any]:
    """Run the simulation; `start_s` plus `cpu_s` is the CPU time of the process."""
    from levada.cli.sim_watch import prepare, run_watched

    prepare(settings)
    result = run_watched(settings)
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
