"""What the state costs: a fork, memory at each size, and how many jobs the simulator gets through."""

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
from bench.floor import Floor
from bench.kernels import use_fastest
from bench.report import Printer, Record, measured
from levada.engine import Engine
from levada.perf import TableModel
from levada.sim import Simulation

SIZES = ((100, 1_000), (1_000, 10_000), (10_000, 100_000))
#: (jobs, GPUs) of a simulated run; the load is what the cluster can just do.
RUNS = ((500, 108), (2_000, 1_000))
POLICY = "elastic-fifo"


def run(printer: Printer, *, quick: bool) -> None:
    """Measures all of it under the fastest kernels."""
    kernels = use_fastest()
    warm_up(POLICY)
    printer.title("State: a fork, and memory of the process (RSS)")
    for jobs, gpus in SIZES:
        known: dict[str, Any] = {"bench": "state", "kernels": kernels, "jobs": jobs, "gpus": gpus}
        printer.add(measured(_forks(jobs, gpus, 5 if quick else 50), what="fork", unit="µs", **known))
        before, after = _in_a_new_process(jobs, gpus)
        note = f"{after - before:.0f} MiB of it by this engine"
        printer.add(Record(what="memory", unit="MiB", samples=1, p50=round(after, 1), note=note, **known))
    printer.title(f"Simulated jobs per CPU second, {POLICY}")
    for jobs, gpus in RUNS[:1] if quick else RUNS:
        printer.add(_simulated(jobs, gpus, kernels))


def _forks(jobs: int, gpus: int, times: int) -> list[float]:
    floor = Floor(POLICY, jobs, gpus)
    floor.fill()
    floor.step()
    seconds = []
    for _ in range(times):
        begin = process_time()
        floor.engine.fork()
        seconds.append(process_time() - begin)
    return seconds


def _in_a_new_process(jobs: int, gpus: int) -> tuple[float, float]:
    """MiB of a process before it has an engine, and with one at work."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_memory, jobs, gpus).result()


def _memory(jobs: int, gpus: int) -> tuple[float, float]:
    use_fastest()
    warm_up(POLICY)
    before = _resident_mib()
    floor = Floor(POLICY, jobs, gpus)
    floor.fill()
    floor.step()
    return before, _resident_mib()


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * getpagesize() / 2**20


def _simulated(jobs: int, gpus: int, kernels: str) -> Record:
    """One run of a simulated world, from the first arrival to the last end."""
    rng = np.random.default_rng(0)
    batch = load.jobs(jobs, rng, at=0.0, first=0)
    least = np.minimum(batch.columns["min"], 4)
    # One step is one second of a worker, so the GPU-seconds of a job are its steps times the GPUs of a worker.
    work = np.nan_to_num(batch.columns["steps"], nan=6e4)
    milli = np.minimum(batch.columns["milli"], 4000)
    gap = float((work * milli / 1000).sum()) / gpus / jobs / 0.9
    batch.columns["submitted"][:] = np.cumsum(rng.exponential(gap, jobs))  # the columns are ours alone
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
