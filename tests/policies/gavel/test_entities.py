"""Entities share the cluster by weight, with and without space sharing."""

from __future__ import annotations

from typing import Any

import pytest

from levada.allocate.decide import decide
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.job import Job
from levada.engine import Engine
from levada.perf import JobSpeed, PairSpeed, TableModel
from levada.sim import Simulation

PACKED = "max_min_fairness_water_filling_packed"
V100 = 1  #: the number of the first GPU type


def allocated(policy: str) -> dict[str, float]:
    """The relative speed of each job if `big` (weight 3) uses this policy."""
    alone, together = 10.0, {("a", "b"): 6.0, ("c", "d"): 8.0}
    answer = decide(
        {
            "policy": PACKED,
            "cluster": {"gpus": {"v100": 2}},
            "jobs": [
                {"id": name, "entity": entity, "throughput": {"v100": alone}}
                for name, entity in (("a", "small"), ("b", "big"), ("c", "big"), ("d", "big"))
            ],
            "pairs": [{"jobs": list(pair), "throughput": {"v100": [rate, rate]}} for pair, rate in together.items()],
            "entities": {"small": {"weight": 1}, "big": {"weight": 3, "policy": policy}},
        }
    )
    assert "alarm" not in answer
    reached = {name: answer["shares"][name].get("v100", 0.0) for name in "abcd"}
    for (a, b), rate in together.items():
        for name in (a, b):
            reached[name] += answer["shares"].get(f"{a}+{b}", {}).get("v100", 0.0) * rate / alone
    return reached


def test_entities_share_by_weight_where_jobs_run_together() -> None:
    """Equal weights: a and b run 5/6 of the time together and 1/6 alone."""
    assert allocated("fairness") == pytest.approx(dict.fromkeys("abcd", 2 / 3))


def test_an_entity_that_serves_its_jobs_in_turn_lets_them_run_together_only_after_their_turn() -> None:
    """b is first and takes all its time; c shares the rest with a, d gets nothing."""
    assert allocated("fifo") == pytest.approx({"a": 0.5, "b": 1.0, "c": 0.5, "d": 0.0})


@pytest.mark.parametrize("policy", ["fairness", "fifo"])
def test_entities_share_by_weight_in_a_simulation(policy: str) -> None:
    names = [f"{user}{i}" for i in range(6) for user in "ba"]
    jobs = [Job(id=name, entity=name[0], submitted=0.0, min=1, max=1, steps=20_000.0) for name in names]
    speeds = [JobSpeed(job=i, throughput={V100: 1.0}) for i in range(len(jobs))]
    pairs = [PairSpeed(a=a, b=b, throughput={V100: (0.7, 0.7)}) for b in range(len(jobs)) for a in range(b)]
    entities: dict[str, Any] = {"a": {"weight": 3.0, "policy": policy}, "b": {"weight": 1.0, "policy": policy}}
    cluster = Cluster(nodes=(Node.of("n", {"v100": 3}, cpu=64_000),))
    world = Simulation(
        Engine(cluster=cluster, policy=PACKED, policy_options={"entities": entities, "round_s": 600.0}),
        TableModel(speeds, pairs),
    )
    world.submit(JobBatch.of(jobs))
    world.run()
    ends = dict(zip(world.ended.id, world.ended.finished, strict=True))
    mean = {user: sum(end for name, end in ends.items() if name[0] == user) / 6 for user in "ab"}
    assert len(ends) == len(jobs)
    assert mean["a"] < mean["b"]
