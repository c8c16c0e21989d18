"""One run of a sweep: its row of figures, table of jobs, and timeline."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from levada.sim.kernel_choice import choose_kernels
from levada.sim.metrics import Outcomes
from levada.sim.round_timeline import intervals, read_rounds
from levada.sim.run import Result, simulate
from levada.sim.settings import Settings
from levada.sim.sweep.plan import Task, arrives_over_time
from levada.sim.sweep.saturation import Saturated, SaturationCheck

FINISHED, SATURATED = "finished", "saturated"


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run."""

    #: Values by column of `runs.parquet`.
    row: dict[str, Any]
    #: Columns; empty if the run saturated.
    jobs: dict[str, Any]
    timeline: dict[str, Any]


def run_one(task: Task) -> RunOutcome:
    """Run to the end or until the queue saturates; raises what `simulate` raises."""
    settings = task.settings
    choose_kernels(settings)
    stop = SaturationCheck(settings.gpus) if task.judged and arrives_over_time(settings) else lambda progress: False
    with tempfile.TemporaryDirectory() as folder:
        if task.timeline and not settings.ideal:
            settings = msgspec.structs.replace(settings, rounds=str(Path(folder, "rounds")))
        try:
            result = simulate(settings, stop)
        except Saturated as error:
            progress = error.progress
            figures = {"jobs": progress.arrived, "finished": progress.ended, "makespan_s": progress.now_s}
            return RunOutcome(row=_row(task, SATURATED, figures), jobs={}, timeline={})
        timeline = _timeline(task.key, settings, result)
    return RunOutcome(
        row=_row(task, FINISHED, _figures(result)),
        jobs=_jobs(task.key, result.jobs, settings),
        timeline=timeline,
    )


#: Figures in `runs.parquet` by type; null if the run saturated, except jobs, finished and makespan_s.
_FIGURES: dict[str, type] = {
    "jobs": int, "finished": int, "makespan_s": float, "avg_jct_s": float, "p50_jct_s": float, "p90_jct_s": float,
    "p99_jct_s": float, "queueing_s": float, "utilization": float, "ftf_mean": float, "ftf_worst": float,
    "ftf_unfair": float, "cost": float, "slo_violations": int, "dropped": int, "rounds": int, "decisions": int,
    "preemptions": int, "resizes": int, "moves": int, "lease_extensions": float, "events": int, "cpu_s": float,
    "wall_s": float,
}  # fmt: skip

#: All columns of `runs.parquet`, in order.
RUN_COLUMNS: dict[str, type] = {
    "run": str, "status": str, "policy": str, "cluster": str, "gpus": int, "rate": float, "asked_jobs": int,
    "seed": int, "profiling": float, "reference_models": int, **_FIGURES,
}  # fmt: skip


def cluster_text(cluster: Any) -> str:
    """Return GPUs by type in the syntax of `--cluster`, sorted by name."""
    return ",".join(f"{name}={count}" for name, count in sorted(cluster.items()))


def _row(task: Task, status: str, figures: dict[str, Any]) -> dict[str, Any]:
    settings = task.settings
    axes = {
        "run": task.key,
        "status": status,
        "policy": settings.policy,
        "cluster": cluster_text(settings.cluster),
        "gpus": settings.gpus,
        "rate": settings.rate,
        "asked_jobs": settings.jobs,
        "seed": settings.seed,
        "profiling": settings.profiling,
        "reference_models": settings.reference_models,
    }
    return axes | {name: figures.get(name) for name in _FIGURES}


def _figures(result: Result) -> dict[str, Any]:
    report, more = result.report, result.detail
    plain = {name: getattr(report, name) for name in report.__struct_fields__ if name in _FIGURES}
    return plain | {
        "ftf_mean": report.ftf.mean,
        "ftf_worst": report.ftf.worst,
        "ftf_unfair": report.ftf.unfair,
        "queueing_s": more.queueing_s.mean,
        "dropped": more.dropped,
        "resizes": more.resizes,
        "moves": more.moves,
        "lease_extensions": more.lease_extensions,
        "events": result.events,
    }


def _jobs(key: str, jobs: Outcomes, settings: Settings) -> dict[str, Any]:
    count = len(jobs)
    rows = settings.window.rows(count)
    measured = np.zeros(count, bool)
    measured[rows] = True
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(jobs.isolated_s > 0, jobs.jct_s / jobs.isolated_s, np.nan)
    return {
        "run": [key] * count,
        "job": np.arange(count),
        "measured": measured,
        "workload": list(jobs.workload),
        "scale": jobs.scale,
        "weight": jobs.weight,
        "arrival_s": jobs.arrival_s,
        "started_s": jobs.started_s,
        "finished_s": jobs.finished_s,
        "dropped": jobs.dropped,
        "jct_s": jobs.jct_s,
        "isolated_s": jobs.isolated_s,
        "ftf": ratio,
        "deadline_s": np.where(np.isinf(jobs.deadline_s), np.nan, jobs.deadline_s),
    }


def _timeline(key: str, settings: Settings, result: Result) -> dict[str, Any]:
    if settings.rounds is None:
        return {}
    ends = result.jobs.finished_s
    bars = intervals(read_rounds(settings.rounds), dict(enumerate(ends.tolist())), result.report.makespan_s)
    return {
        "run": [key] * len(bars),
        "job": [bar.job for bar in bars],
        "begin_s": [bar.begin_s for bar in bars],
        "end_s": [bar.end_s for bar in bars],
        "gpu_type": [bar.gpu_type for bar in bars],
        "devices": [list(bar.devices) for bar in bars],
    }
