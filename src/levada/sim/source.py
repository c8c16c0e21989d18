"""Jobs of a simulation, read or generated, checked against the cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice

import msgspec
import numpy as np

from levada.core.names import Names
from levada.core.types import Floats, Ints
from levada.errors import BadInput, Fault, did_you_mean
from levada.perf import ProfileModel, Profiles
from levada.policies.registry import lookup
from levada.sim.applications import join
from levada.sim.arrivals import in_chunks
from levada.sim.catalogue import catalogue
from levada.sim.settings import Settings
from levada.sim.text_rows import raise_faults
from levada.sim.throughputs import read_throughputs
from levada.sim.throughputs_sia import read_iterations
from levada.sim.traces import Trace, TraceJob, find, read
from levada.sim.workloads import jobs as drawn_jobs

#: The GPU type that durations refer to.
REFERENCE_TYPE = "v100"
_LENGTH_HINT = (
    "add steps or duration_s to a CSV trace, or use --throughputs FOLDER with validation-BATCH.csv of its application"
)


class Source:
    """Provides the jobs of a simulation and the speeds of their workloads."""

    def __init__(self, settings: Settings) -> None:
        """Read the throughput table; raises BadInput if it lacks a GPU type that generated jobs must run on."""
        self.settings = settings
        self.profiles = _profiles(settings)
        self.types = tuple(settings.cluster)
        #: Notes for the user about the jobs, complete after they are read.
        self.notes: list[str] = []
        self._unknown_types = [name for name in settings.cluster if name not in self.profiles.types]
        if self._unknown_types and settings.trace is None:
            raise _unknown_types(self._unknown_types, self.profiles)
        self._known = frozenset(self.profiles.workloads)
        self._names = Names()
        self._kinds = (*self.types, _reference(self.profiles))
        self._model = ProfileModel(self.profiles, self._names, self._kinds)
        self._by_kind: dict[tuple[str, int], float] = {}
        gpus = [settings.cluster[name] for name in self.types]
        self._gpus: Ints = np.array(gpus, np.int64)

    def chunks(self) -> Iterator[Trace]:
        """Return all jobs in chunks; raises BadInput for jobs that cannot be simulated."""
        settings = self.settings
        if settings.trace is not None:
            trace = read(settings.trace)
            if settings.jobs is not None:
                trace = trace.take(slice(0, settings.jobs))
            joined = join(trace, self.profiles, self.types, self._iterations)
            self.notes += filter(None, [joined.note])
            return iter([self._ready(self._measured(joined.trace), 0)])
        return self._drawn()

    def total(self, first: Trace) -> int | None:
        """Total number of jobs, given the first chunk; None: unlimited."""
        return len(first) if self.settings.trace is not None else self.settings.jobs

    def rates(self, workload: tuple[str, ...], scale: Ints) -> Floats:
        """Return steps/s by job and GPU type of the cluster."""
        return self._rates(workload, scale)[:, :-1]

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _iterations(self) -> dict[str, dict[int, float]]:
        """Iterations of a whole training, from the folder of the throughput table."""
        place = None if self.settings.throughputs is None else find(self.settings.throughputs)
        return {} if place is None or not place.is_dir() else read_iterations(place)

    def _measured(self, trace: Trace) -> Trace:
        """Return *trace* if the table has the cluster's types or is not needed; raises BadInput.

        Jobs with a duration need no table, nor do unknown workloads under a policy that needs no throughputs.
        """
        if not self._unknown_types:
            return trace
        timed, record = ~np.isnan(trace.duration_s), lookup(self.settings.policy)
        listed = np.array([name in self._known for name in trace.workload], bool)
        needs_no_rates = record is not None and "throughput" not in record.needs
        if not (timed | (~listed & needs_no_rates)).all():
            raise _unknown_types(self._unknown_types, self.profiles)
        self._known = frozenset(trace.workload)  # then no workload is unknown
        self.notes.append(
            f"{', '.join(self._unknown_types)} is not in the throughput table: using the durations of the trace"
            + ("" if timed.all() else "; jobs without one take 1 GPU-second per step")
        )
        names = ("" if in_table else name for name, in_table in zip(trace.workload, listed, strict=True))
        return msgspec.structs.replace(trace, workload=tuple(names))

    def _drawn(self) -> Iterator[Trace]:
        settings = self.settings
        stream = drawn_jobs(
            settings.workload or "",
            seed=settings.seed,
            rate=self.reference_rate,
            jobs_per_hour=settings.rate,
            multi_gpu=settings.multi_gpu,
            priorities=settings.priorities,
            slos=settings.slos,
            fixed_duration_s=settings.fixed_duration_s,
        )
        if settings.steady_state:
            stream = _full_from_the_start(stream, settings)
        first = 0
        for chunk in in_chunks(islice(stream, settings.jobs)):
            yield self._ready(chunk, first)
            first += len(chunk)

    def _ready(self, trace: Trace, first: int) -> Trace:
        """Fill in steps and durations; raises BadInput if both are missing or a job can run nowhere."""
        filled = trace.filled(self.reference_rate)
        raise_faults([Fault(f"job {first + row}", text) for row, text in self._faults(trace, filled)])
        record = lookup(self.settings.policy)
        return filled if record is not None and record.shares else self._on_usable_types(filled)

    def _on_usable_types(self, trace: Trace) -> Trace:
        """Exclude GPU types on which a job makes no steps: policies without throughputs do not know that."""
        runs = self.rates(trace.workload, trace.min_workers) > 0
        if runs.all():
            return trace
        usable = [dict(zip(self.types, row, strict=True)) for row in runs.tolist()]
        allowed = tuple(
            types if all(can_run.values()) else tuple(name for name in types or self.types if can_run.get(name, False))
            for types, can_run in zip(trace.gpu_types, usable, strict=True)
        )
        return msgspec.structs.replace(trace, gpu_types=allowed)

    def _faults(self, original: Trace, trace: Trace) -> Iterator[tuple[int, str]]:
        named = np.array([name == "" or name in self._known for name in trace.workload], bool)
        # A job with a duration need not be in the table: it takes that long on any type.
        unknown = np.asarray(~named & np.isnan(original.duration_s))
        for row in unknown.nonzero()[0].tolist():
            known = did_you_mean(trace.workload[row], self._known, "see --throughputs")
            yield row, f"workload {trace.workload[row]!r} is not in the throughput table{known}"
        for row in np.asarray(~(trace.steps > 0) & ~unknown).nonzero()[0].tolist():
            yield row, f"unknown length: it has neither steps nor a duration above 0; {_LENGTH_HINT}"
        runs = self.rates(trace.workload, trace.min_workers) > 0
        for row, allowed in enumerate(trace.gpu_types):
            if allowed:
                runs[row] &= np.isin(self.types, allowed)
        fits = runs & (self._gpus >= trace.min_workers[:, None])
        for row in np.asarray(~fits.any(axis=1)).nonzero()[0].tolist():
            if not runs[row].any():
                yield row, f"cannot run on any GPU type of the cluster ({', '.join(self.types)})"
            else:
                most = int(self._gpus[runs[row]].max())
                yield row, f"needs {trace.min_workers[row]} GPUs of one type; the cluster has {most} that it can use"

    # --- speeds ----------------------------------------------------------------------------------------------------

    def _rates(self, workload: tuple[str, ...], scale: Ints) -> Floats:
        numbers = np.arange(len(workload))
        kinds = np.array([self._names.add(name) for name in workload], np.int64)
        self._model.bind(numbers, kinds)
        types = np.arange(len(self._kinds))
        return self._model.rates(numbers[:, None], types[None, :], np.asarray(scale)[:, None])

    def reference_rate(self, workload: str, scale: int) -> float:
        """Return steps/s of a workload with *scale* GPUs of the type that durations refer to."""
        key = (workload, scale)
        if key not in self._by_kind:
            self._by_kind[key] = float(self._rates((workload,), np.array([scale]))[0, -1])
        return self._by_kind[key]

    def rate_if_known(self, workload: str, scale: int) -> float:
        """Like `reference_rate`; nan for a workload that is not in the table."""
        return self.reference_rate(workload, scale) if workload in self._known else math.nan


def _profiles(settings: Settings) -> Profiles:
    return catalogue() if settings.throughputs is None else read_throughputs(find(settings.throughputs))


def _unknown_types(unknown: list[str], profiles: Profiles) -> BadInput:
    otherwise = f"it has {', '.join(profiles.types)}; use --throughputs FILE for others"
    hint = did_you_mean(unknown[0], profiles.types, otherwise)
    return BadInput.one(f"--cluster: {', '.join(unknown)} is not in the throughput table{hint}")


def _reference(profiles: Profiles) -> str:
    return REFERENCE_TYPE if REFERENCE_TYPE in profiles.types else max(profiles.types)


def _full_from_the_start(stream: Iterator[TraceJob], settings: Settings) -> Iterator[TraceJob]:
    """Yield jobs at time 0 until each type, by name, is full; then the stream continues, shifted to begin at 0."""
    for name in sorted(settings.cluster):
        gpus = 0
        while gpus < settings.cluster[name]:
            job = next(stream)
            gpus += job.scale
            yield job._replace(arrival_s=0.0)
    later = next(stream)
    for job in chain([later], stream):
        yield job._replace(arrival_s=job.arrival_s - later.arrival_s)
