"""Overhead of `levada.runtime` per training step, compared with a bare loop."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import levada.runtime
from bench.report import Printer, Record
from bench.timing import quantile

#: Steps per block, and number of blocks; each block is one sample.
BLOCK, BLOCKS, FEW_BLOCKS = 1_000, 2_000, 200
#: Limit of the median in microseconds per step.
LIMIT_US = 2.0


def run(printer: Printer, *, quick: bool) -> None:
    """Measure steps that report to a supervisor's folder, and a bare loop."""
    printer.title("Runtime: wall time per step")
    blocks = FEW_BLOCKS if quick else BLOCKS
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "jobs", "job", "workers", "g0-0")
        folder.mkdir(parents=True)
        os.environ["LEVADA_STATE_DIR"] = str(folder)
        world = '{"generation": 0, "members": ["g0-0"], "master": {"address": "127.0.0.1", "port": 1}}'
        (folder.parent.parent / "world.json").write_text(world)
        job = levada.runtime.init()
        _add(printer, "bare loop", _blocks(iter(range(BLOCK * blocks + 1)), blocks))
        _add(printer, "steps(total)", _blocks(job.steps(job.step + BLOCK * blocks + 1), blocks), limit=LIMIT_US)
        _add(printer, "steps(items)", _blocks(job.steps(range(BLOCK * blocks + 1)), blocks), limit=LIMIT_US)
        _add(printer, "with job.guard()", _blocks(_guarded(job, BLOCK * blocks + 1), blocks), limit=LIMIT_US)
        job.complete()
        del os.environ["LEVADA_STATE_DIR"]


def _guarded(job: levada.runtime.Job, count: int) -> Iterator[int]:
    for step in job.steps(job.step + count):
        with job.guard():
            pass
        yield step


def _blocks(steps: Iterator[int], blocks: int) -> list[float]:
    """Return seconds per step of each block."""
    next(steps)
    samples = []
    for _ in range(blocks):
        begin = perf_counter()
        for _ in range(BLOCK):
            next(steps)
        samples.append((perf_counter() - begin) / BLOCK)
    return samples


def _add(printer: Printer, what: str, samples: list[float], limit: float | None = None) -> None:
    micros = [sample * 1e6 for sample in samples]
    median = quantile(micros, 0.5)
    printer.add(
        Record(
            bench="runtime",
            what=what,
            samples=len(micros),
            unit="µs",
            p50=round(median, 3),
            p99=round(quantile(micros, 0.99), 3),
            limit=limit,
            ok=None if limit is None else median <= limit,
            note="" if limit is None else "limit of the median",
        )
    )
