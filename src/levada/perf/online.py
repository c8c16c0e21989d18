"""Throughput model that starts with a prior and converges to observed rates."""

from typing import ClassVar, Self

import numpy as np

from levada.perf.beliefs import Beliefs
from levada.perf.estimator import Estimator
from levada.perf.index_map import NamesByNumber
from levada.perf.model import Bools, Floats, Ints, gpu_fraction
from levada.perf.samples import Observations
from levada.perf.tuning import RestartKind, Tuning


class Online(Beliefs):
    """Weighted geometric mean of a *prior* (e.g. profiles) and an `Estimator` of observed rates.

    With the confidences c of the estimator and q of the prior, the rate is prior^(1 - w) x observed^w with
    w = c / (c + (1 - c) q): the prior without observations, the mean of the observations after some time, or
    immediately if the prior knows nothing. If the rate of the prior is 0, only an observed run on that type changes it.

    Spreading and sharing change a rate by the factor of the prior. Restart costs are those of the prior until a restart
    is observed.
    """

    learns: ClassVar[bool] = True

    def __init__(self, prior: Beliefs, tuning: Tuning | None = None) -> None:
        self.prior = prior
        self.learned = Estimator(tuning)

    # Learning

    def attach(self, workloads: NamesByNumber, types: NamesByNumber) -> None:
        """Set the names of workload and GPU type numbers, for priors that use names."""
        self.prior.attach(workloads, types)

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """Set the workload of each job."""
        self.learned.bind(jobs, workloads)
        self.prior.bind(jobs, workloads)

    def unbind(self, jobs: Ints) -> None:
        """Remove jobs; what was learned about their workloads remains."""
        self.learned.unbind(jobs)
        self.prior.unbind(jobs)

    def observe(self, seen: Observations) -> None:
        """Learn from a batch of progress intervals."""
        self.learned.observe(seen)

    def observe_restart(self, workload: int, kind: RestartKind | str, seconds: float) -> None:
        """Learn the pause of a workload that started, was resized or stopped."""
        self.learned.observe_restart(workload, kind, seconds)

    def copy(self) -> Self:
        """An independent copy."""
        copy = object.__new__(type(self))
        copy.prior = self.prior.copy()
        copy.learned = self.learned.copy()
        return copy

    # Queries

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        """Steps per second of the whole job; 0 = cannot run on the type."""
        key = (np.array(job), np.array(gpu_type), np.array(workers))
        blended, whole = float(self.rates(*key)), float(self.prior.rates(*key))
        if whole > 0:
            return blended * (self.prior.rate(job, gpu_type, workers, spread, milli) / whole)
        return blended * gpu_fraction(milli)

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of whole jobs on few nodes; 0 = cannot run on the type."""
        return self._blend(jobs, gpu_types, sizes)[1]

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Confidence in [0, 1] that the estimator or the prior is right."""
        learned, prior = self.learned.confidence(jobs, gpu_types, sizes), self.prior.confidence(jobs, gpu_types, sizes)
        return 1.0 - (1.0 - learned) * (1.0 - prior)

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of both, in a last axis of length 2: the slowdown is that of the prior."""
        pairs = self.prior.pair_rates(a, b, gpu_types, sizes)
        changes = []
        for jobs in (a, b):
            prior_rate, blended = self._blend(jobs, gpu_types, sizes)
            changes.append(np.where(prior_rate > 0, blended / np.where(prior_rate > 0, prior_rate, 1.0), 1.0))
        return pairs * np.stack(np.broadcast_arrays(*changes), axis=-1)

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """Observed costs in seconds, or those of the prior if no restart was observed."""
        return self.learned.restart_costs_s(jobs, old, new, self.prior.restart_costs_s(jobs, old, new))

    def known(self, jobs: Ints) -> Bools:
        """Whether the prior or the estimator knows each job."""
        return np.asarray(self.prior.known(jobs) | self.learned.known(jobs))

    def _blend(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> tuple[Floats, Floats]:
        """Rates of the prior, and combined rates."""
        prior_rate = self.prior.rates(jobs, gpu_types, sizes)
        learned = self.learned
        observed, confidence = learned.rates(jobs, gpu_types, sizes), learned.confidence(jobs, gpu_types, sizes)
        prior_confidence = self.prior.confidence(jobs, gpu_types, sizes)
        both = confidence + (1.0 - confidence) * prior_confidence
        weight = np.where(both > 0, confidence / np.where(both > 0, both, 1.0), 0.0)
        runs = (prior_rate > 0) & (observed > 0)
        mixed = prior_rate * np.where(runs, observed / np.where(runs, prior_rate, 1.0), 1.0) ** weight
        # Rates transferred from other types have at most this confidence.
        has_run = (prior_confidence == 0) | (confidence > learned.tuning.borrowed_trust)
        only_observed = (prior_rate == 0) & (confidence > 0) & has_run
        return prior_rate, np.where(only_observed, observed, mixed)
