"""Share policies that solve no linear program, or one with inputs of its own: asked as the engine asks them."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.types import Floats, Ints
from levada.perf import ProfileModel
from levada.policies.gavel.instance import Instance
from levada.sim.solving.crowd import Crowd, Jobs
from levada.tables.world import World

#: GPUs of a node.
_NODE = 8


class Asked:
    """A world of jobs, and the policy that is asked about it."""

    def __init__(self, policy: Any, crowd: Crowd, jobs: Jobs, capacity: Floats, seed: int) -> None:
        """From columns to what the policy is given."""
        nodes = []
        for name, gpus in zip(crowd.types, capacity.astype(int).tolist(), strict=True):
            sizes = [_NODE] * (gpus // _NODE) + ([gpus % _NODE] if gpus % _NODE else [])
            nodes += [Node.of(f"{name}-{place}", {name: size}) for place, size in enumerate(sizes)]
        self._world = World(Cluster(nodes=tuple(nodes)))
        self._workloads = crowd.profiles.workloads
        self._policy, self._state = policy, policy.initial(seed)
        self._model = ProfileModel(crowd.profiles)
        self._model.attach(self._world.workloads, self._world.inventory.types)
        self._now = float(jobs.elapsed_s.max())
        self._drawn = 0
        self._slots = self._enter(jobs)
        self._instance = self._look()

    @property
    def classes(self) -> int:
        """Such a policy looks at each job."""
        return len(self._slots)

    def change(self, jobs: Jobs, rows: Ints, new: Jobs) -> None:
        """*jobs* are there now; those in *rows* are *new*."""
        self._world.remove_jobs(self._slots[rows])
        self._slots[rows] = self._enter(new)
        self._instance = self._look()

    def solve(self) -> float:
        """Shares of all jobs; the policy's objective, nan where it has none."""
        shares, self._state = self._policy.shares(self._instance, self._model, self._state)
        return float(shares.objective)

    def _enter(self, jobs: Jobs) -> Ints:
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

    def _look(self) -> Instance:
        return Instance(self._world.snapshot(self._now), self._model)
