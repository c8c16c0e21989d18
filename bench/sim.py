"""Whole simulations compared with Gavel's simulator: jobs and job-rounds per CPU second.

Jobs are generated like Gavel's, at about the rate that the cluster can sustain. A job-round is a job that runs for a
round; skipped rounds without changes count, too, because Gavel simulates them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.kernels import use_fastest
from bench.report import Printer, Record
from levada.cli.sim_watch import prepare
from levada.sim.run import Result, simulate
from levada.sim.settings import Settings

POLICY = "max_min_fairness_perf"


class Size(NamedTuple):
    """A run, Gavel's speed at that size, and the target as multiples of it."""

    gpus: tuple[int, int, int]
    jobs: int
    few: int
    #: The best of this many runs counts, because a short one may still load modules.
    runs: int
    jobs_per_hour: float
    gavel_jobs: float
    gavel_job_rounds: float
    times: tuple[float, float]


SIZES = (
    Size((36, 36, 36), 500, 500, 3, 5.6, 40.0, 9_600.0, (50.0, 50.0)),
    Size((334, 333, 333), 10_000, 2_000, 1, 52.0, 70.0, 12_200.0, (100.0, 100.0)),
)
#: The large run, and its limits: CPU seconds and MB.
LARGE_GPUS, LARGE_JOBS, LARGE_JOBS_PER_HOUR = (3_334, 3_333, 3_333), 100_000, 520.0
LARGE_S, LARGE_MB = 60.0, 2_000.0


def run(printer: Printer, *, quick: bool) -> None:
    """Measure the usual sizes."""
    kernels = use_fastest()
    printer.title(f"Whole simulations, {POLICY}, per CPU second")
    for size in SIZES:
        jobs = size.few if quick else size.jobs
        results = [_simulated(size.gpus, jobs, size.jobs_per_hour) for _ in range(size.runs)]
        result = min(results, key=lambda result: result.report.cpu_s)
        fields = {**_fields(kernels, jobs, size.gpus), "samples": size.runs}
        seconds = result.report.cpu_s
        job_rounds = result.events - jobs - result.report.finished
        for what, done, gavel, times in (
            ("jobs", jobs, size.gavel_jobs, size.times[0]),
            ("job-rounds", job_rounds, size.gavel_job_rounds, size.times[1]),
        ):
            speed, target = done / seconds, times * gavel
            note = f"{speed / gavel:,.1f} times Gavel's {gavel:,.0f}/s{_missed(speed / target)}"
            printer.add(
                Record(
                    what=f"{what} simulated",
                    unit="/s",
                    p50=round(speed, 1),
                    limit=target,
                    ok=speed >= target,
                    note=note,
                    **fields,
                )
            )


def run_large(printer: Printer) -> None:
    """Measure the large run, which takes minutes; its memory is that of this process."""
    kernels = use_fastest()
    printer.title(f"A large simulation, {POLICY}")
    report = _simulated(LARGE_GPUS, LARGE_JOBS, LARGE_JOBS_PER_HOUR).report
    for what, unit, value, limit in (
        ("CPU time", "s", report.cpu_s, LARGE_S),
        ("peak memory", "MB", report.peak_rss_mb, LARGE_MB),
    ):
        note = f"{LARGE_JOBS / report.cpu_s:,.0f} jobs/s" if unit == "s" else ""
        printer.add(
            Record(
                what=what,
                unit=unit,
                p50=round(value, 1),
                limit=limit,
                ok=value <= limit,
                note=note + _missed(limit / value),
                **_fields(kernels, LARGE_JOBS, LARGE_GPUS),
            )
        )


def _fields(kernels: str, jobs: int, gpus: tuple[int, int, int]) -> dict[str, Any]:
    return {"bench": "sim", "kernels": kernels, "jobs": jobs, "gpus": sum(gpus), "samples": 1}


def _missed(reached: float) -> str:
    """Return the note on a missed target, of which the fraction *reached* was reached."""
    return "" if reached >= 1 else f"; target missed by {1 - reached:.0%} (needs {1 / reached:.1f} times the speed)"


def _simulated(gpus: tuple[int, int, int], jobs: int, jobs_per_hour: float) -> Result:
    """Simulate once, after `prepare` has loaded the kernels."""
    settings = Settings(
        policy=POLICY,
        cluster=dict(zip(("v100", "p100", "k80"), gpus, strict=True)),
        workload="gavel",
        jobs=jobs,
        rate=jobs_per_hour,
    )
    prepare(settings)
    return simulate(settings)
