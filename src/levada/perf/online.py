"""Beliefs that begin with a prior and move to what is seen."""

from typing import ClassVar, Self

import numpy as np

from levada.perf.beliefs import Beliefs
from levada.perf.estimator import Estimator
from levada.perf.growing import NameList
from levada.perf.model import Bools, Floats, Ints, gpu_fraction
from levada.perf.samples import Observations
from levada.perf.tuning import RestartKind, Tuning


class Online(Beliefs):
    """Beliefs between a *prior* (profiles, a completion) and an `Estimator` of what was seen.

    With c the estimator's confidence in its answer and q the prior's in its own, the rate is prior^(1 - w) x seen^w
    with w = c / (c + (1 - c) q): the prior where nothing was seen, the average of what was seen after a while, and at
    once where the prior knows nothing. That a job cannot run somewhere, as the prior may say, gives way only to seeing
    it run there.

    Spreading and sharing change a rate by the factor that the prior says; restarts are the prior's until one was seen.
    """

    learns: ClassVar[bool] = True

    def __init__(self, prior: Beliefs, tuning: Tuning | None = None) -> None:
        self.prior = prior
        self.learned = Estimator(tuning)

    # Learning

    def attach(self, workloads: NameList, types: NameList) -> None:
        """From now on numbers mean what these lists say, for priors that go by names."""
        self.prior.attach(workloads, types)

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """From now on each job runs at its workload's speed."""
        self.learned.bind(jobs, workloads)
        self.prior.bind(jobs, workloads)

    def unbind(self, jobs: Ints) -> None:
        """The jobs are no longer known; what their workloads taught stays."""
        self.learned.unbind(jobs)
        self.prior.unbind(jobs)

    def observe(self, seen: Observations) -> None:
        """Learns from a batch of intervals."""
        self.learned.observe(seen)

    def observe_restart(self, workload: int, kind: RestartKind | str, seconds: float) -> None:
        """Learns how long a workload made no progress while it started, was resized or stopped."""
        self.learned.observe_restart(workload, kind, seconds)

    def copy(self) -> Self:
        """A model that knows the same and learns on its own."""
        twin = object.__new__(type(self))
        twin.prior = self.prior.copy()
        twin.learned = self.learned.copy()
        return twin

    # Asking

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        """Steps per second of the whole job; 0 = cannot run there."""
        where = (np.array(job), np.array(gpu_type), np.array(workers))
        blended, whole = float(self.rates(*where)), float(self.prior.rates(*where))
        if whole > 0:
            return blended * (self.prior.rate(job, gpu_type, workers, spread, milli) / whole)
        return blended * gpu_fraction(milli)

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of whole jobs on few nodes; 0 = cannot run there."""
        return self._blend(jobs, gpu_types, sizes)[1]

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """How well the rates are known, in [0, 1]: that one of the two is right."""
        seen, told = self.learned.confidence(jobs, gpu_types, sizes), self.prior.confidence(jobs, gpu_types, sizes)
        return 1.0 - (1.0 - seen) * (1.0 - told)

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of both, in a last axis of length 2: the prior says which part of its speed each keeps."""
        pairs = self.prior.pair_rates(a, b, gpu_types, sizes)
        changes = []
        for jobs in (a, b):
            told, blended = self._blend(jobs, gpu_types, sizes)
            changes.append(np.where(told > 0, blended / np.where(told > 0, told, 1.0), 1.0))
        return pairs * np.stack(np.broadcast_arrays(*changes), axis=-1)

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """Seconds as they were seen, and as the prior has them where no restart was."""
        return self.learned.restart_costs_s(jobs, old, new, self.prior.restart_costs_s(jobs, old, new))

    def known(self, jobs: Ints) -> Bools:
        """True where either of the two knows the job."""
        return np.asarray(self.prior.known(jobs) | self.learned.known(jobs))

    def _blend(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> tuple[Floats, Floats]:
        """Rates as the prior has them, and as they are believed to be."""
        told = self.prior.rates(jobs, gpu_types, sizes)
        learned = self.learned
        seen, sure = learned.rates(jobs, gpu_types, sizes), learned.confidence(jobs, gpu_types, sizes)
        prior = self.prior.confidence(jobs, gpu_types, sizes)
        both = sure + (1.0 - sure) * prior
        weight = np.where(both > 0, sure / np.where(both > 0, both, 1.0), 0.0)
        runs = (told > 0) & (seen > 0)
        mixed = told * np.where(runs, seen / np.where(runs, told, 1.0), 1.0) ** weight
        # What the estimator only carries over from other types is never surer than this.
        ran_there = (prior == 0) | (sure > learned.tuning.borrowed_trust)
        only_seen = (told == 0) & (sure > 0) & ran_there
        return told, np.where(only_seen, seen, mixed)
