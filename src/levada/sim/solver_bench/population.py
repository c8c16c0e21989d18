"""Draw jobs for solver benchmarks, and replace some of them."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.errors import BadInput
from levada.perf import ProfileModel, Profiles

#: GPUs of a job, and the percentage of jobs with that number.
SCALES, PERCENT = (1, 2, 4, 8), (70, 10, 15, 5)
#: Weight of heavy jobs, and their percentage.
HEAVY, HEAVY_PERCENT = 5.0, 20
#: Hours left and hours since submission, log-uniform.
LEFT_H, ELAPSED_H = (0.5, 168.0), (0.1, 168.0)

_HOUR_S = 3600.0


class BenchJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of drawn jobs."""

    #: Row of the throughput table.
    workload: Ints
    scale: Ints
    weight: Floats
    #: Steps/s of the whole job, by GPU type.
    rate: Floats
    steps_left: Floats
    elapsed_s: Floats

    def __len__(self) -> int:
        return len(self.workload)


class Population:
    """Draws jobs from a throughput table, for its last *types* GPU types by name."""

    def __init__(self, profiles: Profiles, types: int, seed: int) -> None:
        if not 1 <= types <= len(profiles.types):
            raise BadInput.one(f"--types must be from 1 to {len(profiles.types)}: {', '.join(profiles.types)}")
        self.profiles = profiles
        self.types = tuple(sorted(profiles.types, reverse=True)[:types])
        # One job per workload, to look up rates.
        count = len(profiles.workloads)
        self.model = ProfileModel(profiles, profiles.workloads, self.types)
        self.model.bind(np.arange(count), np.arange(count))
        self._rng = np.random.default_rng([seed, types])
        kinds = np.arange(types)
        workloads = np.arange(count)
        self._rate = {
            scale: self.model.rates(workloads[:, None], kinds[None, :], np.full((count, 1), scale)) for scale in SCALES
        }
        self._runs = {scale: np.flatnonzero(rate.any(axis=1)) for scale, rate in self._rate.items()}

    def draw(self, count: int) -> BenchJobs:
        """Draw *count* jobs."""
        rng = self._rng
        scale = rng.choice(SCALES, count, p=np.array(PERCENT) / 100.0)
        workload, rate = np.empty(count, np.int64), np.empty((count, len(self.types)))
        for size in SCALES:
            rows = np.flatnonzero(scale == size)
            if len(rows) and not len(self._runs[size]):
                raise BadInput.one(f"no workload of the throughput table runs with {size} GPUs")
            workload[rows] = rng.choice(self._runs[size], len(rows)) if len(rows) else 0
            rate[rows] = self._rate[size][workload[rows]]
        left_s = _log_uniform(rng, LEFT_H, count)
        return BenchJobs(
            workload=workload,
            scale=scale,
            weight=np.where(rng.random(count) < HEAVY_PERCENT / 100.0, HEAVY, 1.0),
            rate=rate,
            steps_left=left_s * rate.max(axis=1),
            elapsed_s=_log_uniform(rng, ELAPSED_H, count),
        )

    def draw_leaving(self, count: int) -> Ints:
        """Draw the rows of the jobs that leave: 2 %, at least one."""
        return np.sort(self._rng.choice(count, max(1, count // 50), replace=False))


def replace_jobs(jobs: BenchJobs, rows: Ints, new: BenchJobs) -> BenchJobs:
    """Return *jobs* with *new* ones in these rows."""
    columns = {}
    for name in jobs.__struct_fields__:
        column = getattr(jobs, name).copy()
        column[rows] = getattr(new, name)
        columns[name] = column
    return BenchJobs(**columns)


def capacity_of(jobs: BenchJobs, types: int, *, load: float, gpus: int | None) -> Floats:
    """Return GPUs by type, equal for all: *gpus* in total, or the requested GPUs divided by *load*."""
    total = float(jobs.scale.sum()) / load if gpus is None else gpus
    return np.full(types, max(1.0, round(total / types)), np.float64)


def _log_uniform(rng: np.random.Generator, hours: tuple[float, float], count: int) -> Floats:
    low, high = hours
    return np.exp(rng.uniform(np.log(low), np.log(high), count)) * _HOUR_S
