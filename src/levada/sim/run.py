"""`simulate`: from settings to a report. Everything that `levada sim run` can be told ends here."""

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
from levada.sim.ended import Ended
from levada.sim.metrics import Outcomes, Report, Run, report
from levada.sim.metrics_detail import Detail, detail
from levada.sim.metrics_fairness import isolated_s
from levada.sim.settings import Settings, check
from levada.sim.source import Source

#: A run that keeps a checkpoint writes it so often, in seconds of real time.
SAVE_EVERY_S = 60.0


class Interrupted(LevadaError):
    """Somebody asked for the run to stop before its end."""


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    #: Measured jobs that are over, and all of them; None while nobody can tell.
    over: int
    of: int | None
    now_s: float
    #: All jobs, measured or not, that have come so far, and those that are over.
    arrived: int
    ended: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    report: Report
    detail: Detail
    #: What the report was made from, job by job.
    jobs: Outcomes
    gpus: int
    #: Jobs in all rounds, each once in each, arrivals and ends.
    events: int
    #: What is to be said about the jobs that were read.
    notes: tuple[str, ...] = ()


def simulate(settings: Settings, stop: Callable[[Progress], bool] = lambda progress: False) -> Result:
    """Runs a simulation; raises BadInput for settings that make none, and Interrupted when *stop* says so.

    A run that is stopped leaves its state where `settings.checkpoint` says, and the next one goes on there.
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
            raise BadInput.one(f"--window {settings.window} holds none of the {self.total} jobs")
        policy, options = policy_of(settings)
        #: Classes of the user's own policy may be in a checkpoint.
        self._own = type(policy).__module__
        saved = None
        if settings.checkpoint is not None:
            saved = checkpoint.load(settings.checkpoint, settings, self._own)
        self.cpu_s = self.wall_s = 0.0
        if saved is None:
            self.cluster = world_of(settings, self.source, Arrivals(chunks), policy, options)
        else:
            self.cluster, self.cpu_s, self.wall_s = saved
            self.cluster.arrivals.go_on_with(chunks)
        self.log = _Log(settings.rounds, self.cluster.rounds) if settings.rounds is not None else None
        self._over = self._ended = 0
        self._window = settings.window.rows(self.total if self.total is not None else sys.maxsize)

    def run(self, stop: Callable[[Progress], bool]) -> None:
        """To the end, or until somebody wants to stop."""
        cpu, wall = time.process_time() - self.cpu_s, time.monotonic() - self.wall_s
        saved = time.monotonic()
        path, of, cluster = self.settings.checkpoint, self._of(), self.cluster

        def count_time() -> None:
            self.cpu_s, self.wall_s = time.process_time() - cpu, time.monotonic() - wall

        def done() -> bool:
            nonlocal saved
            if cluster.rejection is not None:
                # Live, plain FIFO would take over; here its figures would stand under the policy's name.
                raise LevadaError(f"the policy's decision at {cluster.now:.0f} s was refused: {cluster.rejection}")
            interrupted = stop(Progress(self._count_over(), of, cluster.now, cluster.arrivals.count, self._ended))
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

    def _of(self) -> int | None:
        """How many jobs are measured."""
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
        """The report and what stands behind it."""
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

    def _run(self) -> Run:
        settings = self.settings
        return Run(
            **msgspec.structs.asdict(self.cluster.facts()),
            policy=settings.policy,
            gpus=dict(sorted(settings.cluster.items())),
            prices=settings.prices,
            cpu_s=self.cpu_s,
            wall_s=self.wall_s,
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


class _Log:
    """The file for rounds; raises LevadaError where it does not take what is written."""

    def __init__(self, path: str, told: int) -> None:
        """With those rounds that were told before its state was saved, and none after."""
        self._path = path
        try:
            kept = Path(path).read_bytes().splitlines(keepends=True)[:told] if told else []
            self._file = Path(path).open("wb")  # noqa: SIM115 - as long as the run
        except OSError as error:
            raise BadInput.one(f"--rounds {path}: {error.strerror}") from None
        for line in kept:
            self.write(line)

    def write(self, line: bytes) -> None:
        """One more round."""
        self._checked(lambda: self._file.write(line))

    def close(self) -> None:
        """No more."""
        self._checked(self._file.close)

    def _checked(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            raise LevadaError(f"--rounds {self._path}: {error.strerror}") from None


def _ends(ended: Ended, count: int) -> dict[str, Any]:
    """When jobs began and ended, by their place."""
    started, finished, dropped = np.full(count, math.nan), np.full(count, math.nan), np.zeros(count, bool)
    number, began = np.array(ended.number, np.int64), np.array(ended.first_started)
    good = np.array(ended.phase, np.int64) == Phase.SUCCEEDED
    finished[number[good]] = np.array(ended.finished)[good]
    dropped[number[~good]] = True
    started[number] = np.where(np.isinf(began), math.nan, began)
    return {"started_s": started, "finished_s": finished, "dropped": dropped}
