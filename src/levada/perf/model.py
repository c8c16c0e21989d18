"""The throughput model protocol, and values derived from it."""

from abc import abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ONE: Ints = np.array(1, np.int64)


class ThroughputModel(Protocol):
    """Rates and restart costs of jobs, as seen by policies. A subclass must define `rates`; the rest has defaults.

    Jobs are job numbers, GPU types their indices, sizes numbers of workers. Arrays are int64 and broadcast against each
    other like the arguments of a numpy ufunc. A size of 0 has rate 0.
    """

    @abstractmethod
    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of whole jobs on one node with whole GPUs; 0 = cannot run on the type."""

    def known(self, jobs: Ints) -> Bools:
        """True where the model has any information on the job's speed; by default everywhere."""
        return np.ones(np.shape(jobs), np.bool_)

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        """Steps per second of the whole job; 0 = cannot run on the type.

        *spread* is the number of nodes of the job, *milli* the 1/1000ths of a GPU per worker. By default spreading has
        no cost, and a fraction of a GPU gives that fraction of the rate.
        """
        return float(self.rates(np.array(job), np.array(gpu_type), np.array(workers))) * gpu_fraction(milli)

    def rates_by_type(self, jobs: Ints, sizes: Ints, types: int) -> Floats:
        """(jobs, types): `rates` of each job, with its size, on each of the first *types* types; in a new array."""
        rates = self.rates(jobs[:, None], np.arange(types)[None, :], sizes[:, None])
        return np.array(np.broadcast_to(rates, (len(jobs), types)), np.float64)

    def speedups(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Rates relative to one worker: 0 at size 0 and exactly 1 at size 1.

        If one worker has rate 0, the speed-up is linear. A model that stores speed-ups returns these: a quotient of two
        rates differs in the last bit, which would break ties.
        """
        sizes = np.maximum(np.asarray(sizes, np.int64), 0)
        alone = self.rates(jobs, gpu_types, _ONE)
        together = self.rates(jobs, gpu_types, sizes)
        runs = alone > 0
        return np.where(runs, together / np.where(runs, alone, 1.0), sizes.astype(np.float64))

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of *a* and of *b* when both run on the same devices, in a last axis of length 2.

        A pair without measurement has rates 0, so that no policy packs it; by default these are all pairs.
        """
        return np.zeros((*np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(gpu_types), np.shape(sizes)), 2))

    def restart_cost_s(self, job: int, old: int, new: int) -> float:
        """Seconds without progress when a job changes from *old* to *new* workers; 0 if they are equal.

        A move to other devices is a stop and a start: add both costs.
        """
        return float(self.restart_costs_s(np.array(job), np.array(old), np.array(new)))

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """`restart_cost_s` of many jobs at once; by default 0."""
        return np.zeros(np.broadcast_shapes(np.shape(jobs), np.shape(old), np.shape(new)))


def remaining_s(model: ThroughputModel, jobs: Ints, gpu_types: Ints, steps_left: Floats) -> Floats:
    """Time in seconds for the remaining steps with one worker; infinite if the job cannot run."""
    steps = np.maximum(np.asarray(steps_left, np.float64), 0.0)
    alone = model.rates(jobs, gpu_types, _ONE)
    idle = np.where(steps > 0, np.inf, steps)
    return np.where(alone > 0, steps / np.where(alone > 0, alone, 1.0), idle)


def gpu_fraction(milli: int) -> float:
    """The speed of a worker with part of a GPU, relative to a whole GPU; 1 from one GPU on.

    Workers with several GPUs, or without any, are measured as they are: no factor.
    """
    return min(milli, 1000) / 1000 if milli > 0 else 1.0
