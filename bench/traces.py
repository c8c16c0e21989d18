"""Simulations of Gavel's Philly trace compared with Gavel's simulator, with both mechanisms.

The trace (Poisson arrivals at 1.5 jobs per hour, multi-GPU, seed 0) is generated like Gavel's. Gavel's speeds, in jobs
per CPU second, were measured on it with 108 GPUs.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys

from bench.kernels import use_fastest
from bench.report import Printer, Record
from levada.cli.sim_watch import prepare
from levada.sim.run import simulate
from levada.sim.settings import Mechanism, Settings

GAVEL = {"gavel-fifo_perf": 115.0, "max_min_fairness_perf": 50.0, "finish_time_fairness_perf": 17.0}
#: Targets as multiples of Gavel's speed: geometric mean, and each policy by mechanism.
MEAN_TIMES, TIMES = 50.0, {"default": 0.0, "gavel": 10.0}
#: Limit of CPU seconds of a whole process, and its jobs.
PROCESS_S, PROCESS_JOBS = 2.0, 300
_CLUSTER = {"v100": 36, "p100": 36, "k80": 36}


def run(printer: Printer, *, quick: bool) -> None:
    """Measure every policy with both mechanisms, and whole processes."""
    kernels = use_fastest()
    printer.title("Gavel's Philly trace, 108 GPUs, per CPU second")
    for mechanism in ("default", "gavel"):
        ratios = []
        for policy, gavel in GAVEL.items():
            speed = _speed(policy, mechanism, 300 if quick else 600)
            ratios.append(speed / gavel)
            target = TIMES[mechanism] * gavel
            printer.add(
                Record(
                    bench="traces",
                    what=f"{policy}, {mechanism}",
                    kernels=kernels,
                    jobs=300 if quick else 600,
                    gpus=108,
                    samples=3,
                    unit="/s",
                    p50=round(speed, 1),
                    limit=target or None,
                    ok=speed >= target if target else None,
                    note=f"{speed / gavel:.1f} times Gavel's {gavel:.0f}/s",
                )
            )
        if mechanism == "default":
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            printer.add(
                Record(
                    bench="traces",
                    what="geometric mean, times Gavel",
                    gpus=108,
                    unit="",
                    p50=round(mean, 1),
                    limit=MEAN_TIMES,
                    ok=mean >= MEAN_TIMES,
                )
            )
    for policy in GAVEL:
        seconds = min(_process_s(policy) for _ in range(3))
        printer.add(
            Record(
                bench="traces",
                what=f"{policy}, whole process",
                jobs=PROCESS_JOBS,
                gpus=108,
                samples=3,
                unit="s",
                p50=round(seconds, 2),
                limit=PROCESS_S,
                ok=seconds <= PROCESS_S,
            )
        )


def _speed(policy: str, mechanism: Mechanism, jobs: int) -> float:
    """Return jobs per CPU second: the best of three runs, after a warm-up run."""
    settings = Settings(
        policy=policy,
        cluster=_CLUSTER,
        workload="gavel",
        jobs=jobs,
        rate=1.5,
        multi_gpu=True,
        mechanism=mechanism,
    )
    prepare(settings)
    simulate(settings)
    return jobs / min(simulate(settings).report.cpu_s for _ in range(3))


def _process_s(policy: str) -> float:
    """Return the CPU seconds of a `levada sim run` process."""
    cluster = ",".join(f"{name}={count}" for name, count in _CLUSTER.items())
    command = [sys.executable, "-m", "levada", "sim", "run", "--policy", policy, "--cluster", cluster]
    command += ["--workload", "gavel", "--jobs", str(PROCESS_JOBS), "--rate", "1.5", "--multi-gpu", "-o", "json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
