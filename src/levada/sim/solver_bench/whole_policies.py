"""Share policies without a linear program, called as by the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.types import Floats, Ints
from levada.perf import ProfileModel
from levada.policies.gavel.instance import Instance
from levada.sim.solver_bench.population import BenchJobs, Population
from levada.tables.cluster_state import ClusterState

#: GPUs of a node.
_NODE = 8


class PolicyBench:
    """A cluster state with jobs, and the policy under test."""

    def __init__(self, policy: Any, population: Population, jobs: BenchJobs, capacity: Floats, seed: int) -> None:
        """Build the input of the policy from columns."""
        nodes = []
        for name, gpus in zip(population.types, capacity.astype(int).tolist(), strict=True):
            sizes = [_NODE] * (gpus // _NODE) + ([gpus % _NODE] if gpus % _NODE else [])
            nodes += [Node.of(f"{name}-{index}", {name: size}) for index, size in enumerate(sizes)]
        self._world = ClusterState(Cluster(nodes=tuple(nodes)))
        self._workloads = population.profiles.workloads
        self._policy, self._state = policy, policy.initial(seed)
        self._model = ProfileModel(population.profiles)
        self._model.attach(self._world.workloads, self._world.inventory.types)
        self._now = float(jobs.elapsed_s.max())
        self._drawn = 0
        self._slots = self._add_jobs(jobs)
        self._instance = self._new_instance()

    @property
    def classes(self) -> int:
        """Number of jobs: such a policy has no classes."""
        return len(self._slots)

    def change(self, jobs: BenchJobs, rows: Ints, new: BenchJobs) -> None:
        """Update the state to *jobs*, of which those in *rows* are *new*."""
        self._world.remove_jobs(self._slots[rows])
        self._slots[rows] = self._add_jobs(new)
        self._instance = self._new_instance()

    def solve(self) -> float:
        """Compute the shares of all jobs and return the objective; nan if the policy has none."""
        shares, self._state = self._policy.shares(self._instance, self._model, self._state)
        return float(shares.objective)

    def _add_jobs(self, jobs: BenchJobs) -> Ints:
        count = len(jobs)
        batch = JobBatch(
            id=tuple(map(str, range(self._drawn, self._drawn + count))),
            columns={
                "submitted": self._now - jobs.elapsed_s,
                "min": jobs.scale,
                "max": jobs.scale,
                "desired": jobs.scale,
                "steps": jobs.steps_left,
                "weight": jobs.weight,
            },
            gpu_types=((),),
            workload=tuple(self._workloads[row] for row in jobs.workload.tolist()),
        )
        self._drawn += count
        slots = np.array(self._world.add_jobs(batch))
        table = self._world.table
        self._model.bind(table.number[slots], table.workload[slots])
        return slots

    def _new_instance(self) -> Instance:
        return Instance(self._world.snapshot(self._now), self._model)
