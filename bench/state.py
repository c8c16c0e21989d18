"""Costs of the state: time of a fork, memory by size, and simulated jobs per second."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from resource import getpagesize
from time import process_time
from typing import Any

import numpy as np

from bench import load
from bench.decide import warm_up
from bench.engine_driver import EngineDriver
from bench.kernels import use_fastest
from bench.report import Printer, Record, measured
from levada.engine import Engine
from levada.perf import TableModel
from levada.sim import Simulation

SIZES = ((100, 1_000), (1_000, 10_000), (10_000, 100_000))
#: (jobs, GPUs) of a simulated run at 90 % load.
RUNS = ((500, 108), (2_000, 1_000))
POLICY = "elastic-fifo"


def run(printer: Printer, *, quick: bool) -> None:
    """Measure everything with the fastest kernels."""
    kernels = use_fastest()
    warm_up(POLICY)
    printer.title("State: fork, and memory of the process (RSS)")
    for jobs, gpus in SIZES:
        fields: dict[str, Any] = {"bench": "state", "kernels": kernels, "jobs": jobs, "gpus": gpus}
        printer.add(measured(_forks(jobs, gpus, 5 if quick else 50), what="fork", unit="µs", **fields))
        before, after = _memory_of_process(jobs, gpus)
        note = f"{after - before:.0f} MiB of this engine"
        printer.add(Record(what="memory", unit="MiB", samples=1, p50=round(after, 1), note=note, **fields))
    printer.title(f"Simulated jobs per CPU second, {POLICY}")
    for jobs, gpus in RUNS[:1] if quick else RUNS:
        printer.add(_simulated(jobs, gpus, kernels))


def _forks(jobs: int, gpus: int, times: int) -> list[float]:
    driver = EngineDriver(POLICY, jobs, gpus)
    driver.fill()
    driver.step()
    seconds = []
    for _ in range(times):
        begin = process_time()
        driver.engine.fork()
        seconds.append(process_time() - begin)
    return seconds


def _memory_of_process(jobs: int, gpus: int) -> tuple[float, float]:
    """Return the MiB of a new process before and after it runs an engine."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_memory, jobs, gpus).result()


def _memory(jobs: int, gpus: int) -> tuple[float, float]:
    use_fastest()
    warm_up(POLICY)
    before = _resident_mib()
    driver = EngineDriver(POLICY, jobs, gpus)
    driver.fill()
    driver.step()
    return before, _resident_mib()


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * getpagesize() / 2**20


def _simulated(jobs: int, gpus: int, kernels: str) -> Record:
    """Measure one simulation, from the first arrival to the last end."""
    rng = np.random.default_rng(0)
    batch = load.jobs(jobs, rng, at=0.0, first=0)
    least = np.minimum(batch.columns["min"], 4)
    # A step takes one second of one worker, so GPU-seconds are steps times GPUs per worker.
    work = np.nan_to_num(batch.columns["steps"], nan=6e4)
    milli = np.minimum(batch.columns["milli"], 4000)
    gap = float((work * milli / 1000).sum()) / gpus / jobs / 0.9
    batch.columns["submitted"][:] = np.cumsum(rng.exponential(gap, jobs))  # the columns are not shared
    columns = {**batch.columns, "min": least, "max": 4 * least, "desired": least, "steps": work, "milli": milli}
    world = Simulation(Engine(cluster=load.cluster(gpus), policy=POLICY), TableModel(()))
    world.submit(type(batch)(id=batch.id, columns=columns, workload=batch.workload))
    begin = process_time()
    world.run()
    seconds = process_time() - begin
    done = len(world.ended)
    note = f"{done} ended, {world.decisions:,} decisions, {1e6 * seconds / max(world.decisions, 1):,.0f} µs each"
    return Record(
        bench="state",
        what="simulated run",
        kernels=kernels,
        jobs=jobs,
        gpus=gpus,
        samples=1,
        unit="jobs/s",
        p50=round(jobs / seconds, 1),
        note=note,
    )
