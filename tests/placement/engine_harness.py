"""An engine whose operations complete at once, for tests of placement."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.commands import Apply, Decide
from levada.core.plan import OpKind
from levada.engine import Engine, Options, run_policy
from tests.engine.engine_state import state_of


class EngineHarness:
    """Drives an engine whose operations complete at once."""

    def __init__(self, *gpus: int, **options: Any) -> None:
        self.nodes = tuple(Node.of(f"n{i}", {"v100": count}) for i, count in enumerate(gpus))
        self.engine = Engine(
            cluster=Cluster(nodes=self.nodes),
            policy="fifo",
            options=Options(min_run_s=0.0, cooldown_s=0.0, payback=0.0, **options),
        )
        self.engine.undo_faults = False
        self.now = 0.0
        self.ops: list[Any] = []

    def tell(self, make: Any, **fields: Any) -> None:
        self.now += 10.0
        waiting = [make(at=self.now, **fields)]
        while waiting:
            commands = self.engine.handle(*waiting)
            waiting = []
            for command in commands:
                if isinstance(command, Decide):
                    waiting.append(run_policy(command, self.now))
                elif isinstance(command, Apply):
                    plan = command.plan
                    self.ops += self.engine.ops(plan)
                    stops = plan.kind == OpKind.STOP
                    for event, which in ((ev.Released, stops), (ev.Running, ~stops)):
                        if which.any():
                            waiting.append(
                                event(at=self.now, number=plan.number[which], generation=plan.generation[which])
                            )
            if not waiting and state_of(self.engine).dirty:
                self.now += 1.0
                waiting = [ev.Tick(at=self.now)]

    def tell_later(self, number: int) -> None:
        """Finish a job; the engine decides with its next event."""
        self.engine.handle(ev.JobsFinished(at=self.now, number=np.array([number])))

    def submit(self, *jobs: Any) -> None:
        self.tell(ev.JobsSubmitted, jobs=JobBatch.of(jobs))

    def nodes_of(self, name: str) -> dict[str, int]:
        world = state_of(self.engine).world
        grant = world.grant(world.held, world.slot(name))
        workers: dict[str, int] = {}
        for place in grant.places:
            workers[place.node] = workers.get(place.node, 0) + 1
        return workers
