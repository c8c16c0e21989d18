"""Gandiva lets only jobs share devices whose workers have one whole GPU each."""

from __future__ import annotations

from levada.core.cluster import Node
from tests.engine.chaos import Chaos


def test_jobs_of_other_shapes_run_alone() -> None:
    chaos = Chaos(policy="gandiva", nodes=(Node.of("a", {"v100": 4}),))
    shapes = [{"milli": 2000}, {"min": 2, "max": 2}, {"milli": 2000}, {"min": 2, "max": 2}, {"milli": 500}, {}, {}]
    for shape in shapes:
        chaos.submit(workload="w1", steps=1e6, **shape)
    for _ in range(6):
        chaos.calm()
        chaos.pass_time(400.0)
    assert chaos.engine.state.rejections == 0, chaos.engine.state.last_rejection
    assert chaos.sizes(), "somebody runs"
