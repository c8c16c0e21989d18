"""The jobs of a simulation: read or drawn, with steps to make, and checked against cluster and throughput table."""

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
from levada.policies.table import lookup
from levada.sim.applications import join
from levada.sim.arrivals import in_chunks
from levada.sim.catalogue import catalogue
from levada.sim.rows import raise_faults
from levada.sim.settings import Settings
from levada.sim.throughputs import read_throughputs
from levada.sim.throughputs_sia import read_iterations
from levada.sim.traces import Trace, TraceJob, find, read
from levada.sim.workloads import jobs as drawn_jobs

#: The GPU that durations are meant for.
REFERENCE_TYPE = "v100"
_LENGTH = (
    "give steps or duration_s in a CSV trace, or --throughputs FOLDER with validation-BATCH.csv of its application"
)


class Source:
    """Where a simulation's jobs and the speeds of their workloads come from."""

    def __init__(self, settings: Settings) -> None:
        """Reads the throughput table; raises BadInput where it does not know the types that drawn jobs shall run on."""
        self.settings = settings
        self.profiles = _profiles(settings)
        self.types = tuple(settings.cluster)
        #: What is to be said about the jobs, once they are read.
        self.notes: list[str] = []
        self._strange = [name for name in settings.cluster if name not in self.profiles.types]
        if self._strange and settings.trace is None:
            raise _unknown_types(self._strange, self.profiles)
        self._known = frozenset(self.profiles.workloads)
        self._names = Names()
        self._kinds = (*self.types, _reference(self.profiles))
        self._model = ProfileModel(self.profiles, self._names, self._kinds)
        self._by_kind: dict[tuple[str, int], float] = {}
        gpus = [settings.cluster[name] for name in self.types]
        self._gpus: Ints = np.array(gpus, np.int64)

    def chunks(self) -> Iterator[Trace]:
        """All jobs, some at a time; raises BadInput for those that cannot be simulated."""
        settings = self.settings
        if settings.trace is not None:
            trace = read(settings.trace)
            some = trace.take(slice(0, settings.jobs)) if settings.jobs is not None else trace
            joined = join(some, self.profiles, self.types, self._iterations)
            self.notes += filter(None, [joined.note])
            return iter([self._ready(self._measured(joined.trace), 0)])
        return self._drawn()

    def total(self, first: Trace) -> int | None:
        """How many jobs there will be, given the first chunk; None: as many as somebody asks for."""
        return len(first) if self.settings.trace is not None else self.settings.jobs

    def rates(self, workload: tuple[str, ...], scale: Ints) -> Floats:
        """Steps/s by job and GPU type of the cluster."""
        return self._rates(workload, scale)[:, :-1]

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _iterations(self) -> dict[str, dict[int, float]]:
        """What the throughput table's folder knows of how long trainings are."""
        place = None if self.settings.throughputs is None else find(self.settings.throughputs)
        return {} if place is None or not place.is_dir() else read_iterations(place)

    def _measured(self, trace: Trace) -> Trace:
        """*trace*, if the table knows the cluster's types or nobody asks it; raises BadInput.

        A duration needs no table. Nor do steps of a workload that it does not have, where the policy asks for no speed.
        """
        if not self._strange:
            return trace
        timed, record = ~np.isnan(trace.duration_s), lookup(self.settings.policy)
        listed = np.array([name in self._known for name in trace.workload], bool)
        indifferent = record is not None and "throughput" not in record.needs
        if not (timed | (~listed & indifferent)).all():
            raise _unknown_types(self._strange, self.profiles)
        self._known = frozenset(trace.workload)  # no name is a strange one then
        self.notes.append(
            f"{', '.join(self._strange)} is not in the throughput table: jobs take as long there as the trace says"
            + ("" if timed.all() else ", and a step one second of a GPU where it says none")
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
        place = 0
        for chunk in in_chunks(islice(stream, settings.jobs)):
            yield self._ready(chunk, place)
            place += len(chunk)

    def _ready(self, trace: Trace, first: int) -> Trace:
        """*trace* with steps and durations; raises BadInput where there are none, or a job can run nowhere."""
        filled = trace.filled(self.reference_rate)
        raise_faults([Fault(f"job {first + row}", text) for row, text in self._faults(trace, filled)])
        record = lookup(self.settings.policy)
        return filled if record is not None and record.shares else self._where_they_run(filled)

    def _where_they_run(self, trace: Trace) -> Trace:
        """*trace* with jobs that ask for no type on which they make no step: a policy without speeds would not know."""
        runs = self.rates(trace.workload, trace.min_workers) > 0
        if runs.all():
            return trace
        able = [dict(zip(self.types, row, strict=True)) for row in runs.tolist()]
        allowed = tuple(
            asked if all(good.values()) else tuple(name for name in asked or self.types if good.get(name, False))
            for asked, good in zip(trace.gpu_types, able, strict=True)
        )
        return msgspec.structs.replace(trace, gpu_types=allowed)

    def _faults(self, given: Trace, trace: Trace) -> Iterator[tuple[int, str]]:
        named = np.array([name == "" or name in self._known for name in trace.workload], bool)
        # Whoever gives a duration need not be in the table: the job takes that long on any type.
        strange = np.asarray(~named & np.isnan(given.duration_s))
        for row in strange.nonzero()[0].tolist():
            known = did_you_mean(trace.workload[row], self._known, "see --throughputs")
            yield row, f"its workload {trace.workload[row]!r} is not in the throughput table{known}"
        for row in np.asarray(~(trace.steps > 0) & ~strange).nonzero()[0].tolist():
            yield row, f"nobody knows how long it is: it has neither steps nor a duration above 0; {_LENGTH}"
        runs = self.rates(trace.workload, trace.min_workers) > 0
        for row, allowed in enumerate(trace.gpu_types):
            if allowed:
                runs[row] &= np.isin(self.types, allowed)
        fits = runs & (self._gpus >= trace.min_workers[:, None])
        for row in np.asarray(~fits.any(axis=1)).nonzero()[0].tolist():
            if not runs[row].any():
                yield row, f"it can run on no GPU type of the cluster ({', '.join(self.types)})"
            else:
                most = int(self._gpus[runs[row]].max())
                yield row, f"it needs {trace.min_workers[row]} GPUs of one type; the cluster has {most} that it can use"

    # --- speeds ----------------------------------------------------------------------------------------------------

    def _rates(self, workload: tuple[str, ...], scale: Ints) -> Floats:
        numbers = np.arange(len(workload))
        kinds = np.array([self._names.add(name) for name in workload], np.int64)
        self._model.bind(numbers, kinds)
        types = np.arange(len(self._kinds))
        return self._model.rates(numbers[:, None], types[None, :], np.asarray(scale)[:, None])

    def reference_rate(self, workload: str, scale: int) -> float:
        """Steps/s of a workload with so many GPUs of the type that durations are meant for."""
        key = (workload, scale)
        if key not in self._by_kind:
            self._by_kind[key] = float(self._rates((workload,), np.array([scale]))[0, -1])
        return self._by_kind[key]

    def rate_if_known(self, workload: str, scale: int) -> float:
        """The same; nan for a workload that the table does not have."""
        return self.reference_rate(workload, scale) if workload in self._known else math.nan


def _profiles(settings: Settings) -> Profiles:
    return catalogue() if settings.throughputs is None else read_throughputs(find(settings.throughputs))


def _unknown_types(strange: list[str], profiles: Profiles) -> BadInput:
    otherwise = f"it has {', '.join(profiles.types)}; --throughputs FILE brings others"
    hint = did_you_mean(strange[0], profiles.types, otherwise)
    return BadInput.one(f"--cluster: {', '.join(strange)} is not in the throughput table{hint}")


def _reference(profiles: Profiles) -> str:
    return REFERENCE_TYPE if REFERENCE_TYPE in profiles.types else max(profiles.types)


def _full_from_the_start(stream: Iterator[TraceJob], settings: Settings) -> Iterator[TraceJob]:
    """Jobs at time 0 until every type, by name, has as many as it has GPUs; then the stream goes on from 0."""
    for name in sorted(settings.cluster):
        asked = 0
        while asked < settings.cluster[name]:
            job = next(stream)
            asked += job.scale
            yield job._replace(arrival_s=0.0)
    later = next(stream)
    for job in chain([later], stream):
        yield job._replace(arrival_s=job.arrival_s - later.arrival_s)
