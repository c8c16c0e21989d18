"""`simulate`: run one simulation from its settings to its report."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from levada.core.job import Phase
from levada.errors import BadInput, LevadaError
from levada.sim import checkpoint
from levada.sim.arrivals import Arrivals
from levada.sim.build import policy_of, world_of
from levada.sim.completed import CompletedJobs
from levada.sim.metrics import Outcomes, RunFacts, SimReport, isolated_s, report
from levada.sim.metrics_detail import Detail, detail
from levada.sim.settings import Settings, check
from levada.sim.source import Source

#: Interval of checkpoints, in seconds of real time.
SAVE_EVERY_S = 60.0


class Interrupted(LevadaError):
    """The run was stopped before its end."""


class RunProgress(msgspec.Struct, frozen=True):
    """Progress of a run."""

    #: Measured jobs that ended, and their total; None if unknown.
    over: int
    of: int | None
    now_s: float
    #: All jobs, measured or not, that have arrived, and those that ended.
    arrived: int
    ended: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulation."""

    report: SimReport
    detail: Detail
    #: Per-job outcomes behind the report.
    jobs: Outcomes
    gpus: int
    #: Arrivals, ends, and the sum of jobs over all rounds.
    events: int
    #: Notes for the user about the jobs that were read.
    notes: tuple[str, ...] = ()


def simulate(settings: Settings, stop: Callable[[RunProgress], bool] = lambda progress: False) -> Result:
    """Run a simulation; raises BadInput for invalid settings, and Interrupted when *stop* returns True.

    An interrupted run saves its state to `settings.checkpoint`; the next run with the same settings resumes there.
    """
    check(settings)
    session = _Session(settings)
    session.run(stop)
    return session.result()


class _Session:
    """One run, from its settings to its result."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.source = Source(settings)
        chunks = self.source.chunks()
        first = next(chunks)
        self.total = self.source.total(first)
        chunks = chain([first], chunks)
        if self.total is not None and settings.window.start >= self.total:
            raise BadInput.one(f"--window {settings.window} is beyond the last of the {self.total} jobs")
        policy, options = policy_of(settings)
        #: Module of the policy: its classes may be in a checkpoint.
        self._own = type(policy).__module__
        saved = None
        if settings.checkpoint is not None:
            saved = checkpoint.load(settings.checkpoint, settings, self._own)
        self.cpu_s = self.wall_s = 0.0
        if saved is None:
            self.cluster = world_of(settings, self.source, Arrivals(chunks), policy, options)
        else:
            self.cluster, self.cpu_s, self.wall_s = saved
            self.cluster.arrivals.resume(chunks)
        self.log = _RoundsFile(settings.rounds, self.cluster.rounds) if settings.rounds is not None else None
        self._over = self._ended = 0
        self._window = settings.window.rows(self.total if self.total is not None else sys.maxsize)

    def run(self, stop: Callable[[RunProgress], bool]) -> None:
        """Run to the end, or until *stop* returns True."""
        cpu, wall = time.process_time() - self.cpu_s, time.monotonic() - self.wall_s
        saved = time.monotonic()
        path, of, cluster = self.settings.checkpoint, self._measured_jobs(), self.cluster

        def count_time() -> None:
            self.cpu_s, self.wall_s = time.process_time() - cpu, time.monotonic() - wall

        def done() -> bool:
            nonlocal saved
            if cluster.rejection is not None:
                # A server would fall back to FIFO; here the results would be reported under the policy's name.
                raise LevadaError(f"policy decision at {cluster.now:.0f} s was rejected: {cluster.rejection}")
            interrupted = stop(RunProgress(self._count_over(), of, cluster.now, cluster.arrivals.count, self._ended))
            if path is not None and (interrupted or time.monotonic() - saved > SAVE_EVERY_S):
                count_time()
                checkpoint.save(path, self.settings, (cluster, self.cpu_s, self.wall_s), self._own)
                saved = time.monotonic()
            if interrupted:
                raise Interrupted(f"interrupted at {cluster.now:.0f} s of simulated time")
            return self._over == of

        if self.log is not None:
            cluster.on_round = self.log.write
        try:
            cluster.run(done=done)
            count_time()
        finally:
            if self.log is not None:
                self.log.close()
        if path is not None:
            checkpoint.drop(path)

    def _measured_jobs(self) -> int | None:
        """Number of measured jobs; None if unknown."""
        stop = self._window.stop
        return None if stop == sys.maxsize else stop - self._window.start

    def _count_over(self) -> int:
        numbers = self.cluster.ended.number
        if len(numbers) > self._ended:
            first, last = self._window.start, self._window.stop
            for number in numbers[self._ended :]:
                self._over += first <= number < last
            self._ended = len(numbers)
        return self._over

    # --- the result ------------------------------------------------------------------------------------------------

    def result(self) -> Result:
        """Return the report and the data behind it."""
        settings, cluster = self.settings, self.cluster
        seen = cluster.arrivals.seen()
        rates = self.source.rates(seen.workload, seen.scale)
        gpus = np.array([settings.cluster[name] for name in self.source.types])
        ends = _ends(cluster.ended, len(seen))
        jobs = Outcomes.of(
            seen,
            **ends,
            isolated_s=isolated_s(
                arrival_s=seen.arrival_s,
                finished_s=ends["finished_s"],
                scale=seen.scale,
                steps=seen.steps,
                rates=rates,
                gpus=gpus,
                end_s=cluster.now,
            ),
        )
        run = self._run()
        completed = int(np.count_nonzero(~np.isnan(ends["finished_s"])))
        dropped = int(np.count_nonzero(ends["dropped"]))
        return Result(
            report=report(jobs, run, settings.window),
            detail=detail(jobs, run, settings.window),
            jobs=jobs,
            gpus=settings.gpus,
            events=run.job_rounds + len(seen) + completed + dropped,
            notes=tuple(self.source.notes),
        )

    def _run(self) -> RunFacts:
        settings = self.settings
        return RunFacts(
            **msgspec.structs.asdict(self.cluster.facts()),
            policy=settings.policy,
            gpus=dict(sorted(settings.cluster.items())),
            prices=settings.prices,
            cpu_s=self.cpu_s,
            wall_s=self.wall_s,
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


class _RoundsFile:
    """The file of `--rounds`; raises LevadaError if it cannot be written."""

    def __init__(self, path: str, rounds: int) -> None:
        """Open the file and keep its first *rounds* lines: those written before the checkpoint."""
        self._path = path
        try:
            lines = Path(path).read_bytes().splitlines(keepends=True)[:rounds] if rounds else []
            self._file = Path(path).open("wb")  # noqa: SIM115 - open for the whole run
        except OSError as error:
            raise BadInput.one(f"--rounds {path}: {error.strerror}") from None
        for line in lines:
            self.write(line)

    def write(self, line: bytes) -> None:
        """Append a round."""
        self._checked(lambda: self._file.write(line))

    def close(self) -> None:
        """Flush and close the file."""
        self._checked(self._file.close)

    def _checked(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            raise LevadaError(f"--rounds {self._path}: {error.strerror}") from None


def _ends(ended: CompletedJobs, count: int) -> dict[str, Any]:
    """Start and end times by job number, and whether the job was dropped."""
    started, finished, dropped = np.full(count, math.nan), np.full(count, math.nan), np.zeros(count, bool)
    number, first_started = np.array(ended.number, np.int64), np.array(ended.first_started)
    succeeded = np.array(ended.phase, np.int64) == Phase.SUCCEEDED
    finished[number[succeeded]] = np.array(ended.finished)[succeeded]
    dropped[number[~succeeded]] = True
    started[number] = np.where(np.isinf(first_started), math.nan, first_started)
    return {"started_s": started, "finished_s": finished, "dropped": dropped}
