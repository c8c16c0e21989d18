"""Rounds: received time follows shares, in turns that are not too short."""

from __future__ import annotations

from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from levada.core.cluster import Cluster, Node
from levada.engine import Engine, Options
from levada.perf.model import ThroughputModel
from levada.policies import registry
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.rounds import Rounds
from tests.engine.faulty_world import FaultyWorld

ROUND_S = 360.0


class Couples(ShareDefaults):
    """The first two jobs share a GPU half of the time, the next two the other half."""

    name: ClassVar[str] = "couples"
    packs: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Half of the time for each couple, once all have come."""
        alone, half = np.zeros((len(instance), 2)), np.array([[0.0, 0.5], [0.0, 0.5]])
        if len(instance) < 4:
            return Shares(share=alone), None
        return Shares(share=alone, pairs=np.array([[0, 1], [2, 3]]), pair_share=half), None


def on_one_gpu(policy: Any, jobs: int) -> FaultyWorld:
    """A world with *jobs* jobs that want the same GPU."""
    nodes = (Node.of("n", {"v100": 1}),)
    system = FaultyWorld(nodes=nodes)
    system.engine = Engine(
        cluster=Cluster(nodes=nodes),
        policy="it",
        make_policy=lambda name, options: policy,
        options=Options(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0),
    )
    for _ in range(jobs):
        system.submit(steps=1e9)
    system.calm()
    return system


def turns(system: FaultyWorld, rounds: int, *, new_shares: bool = False) -> list[tuple[str, ...]]:
    """The running jobs of each of the next rounds; *new_shares*: new in each round."""
    result = []
    for number in range(rounds):
        if new_shares:
            system.users("update", 0, weight=1.0 + number / 1000)
        system.pass_time(ROUND_S)
        system.calm()
        result.append(tuple(name for name, size in system.sizes().items() if size))
    return result


def test_who_runs_goes_on_until_another_is_owed_a_whole_round_more() -> None:
    seen = turns(on_one_gpu(registry.make("max_min_fairness", {}), 2), 40)
    lengths = [len(list(same)) for _, same in groupby(seen)]
    assert len(lengths) >= 10, "they take turns"
    assert min(lengths[1:-1]) >= 2, "no job is stopped after one round"
    assert abs(seen.count(("j1",)) - 20) <= 2


def test_couples_that_take_turns_are_owed_their_time_whatever_shares_are_new() -> None:
    seen = turns(on_one_gpu(Rounds(Couples()), 4), 24, new_shares=True)
    assert set(seen) == {("j1", "j2"), ("j3", "j4")}
    assert abs(seen.count(("j1", "j2")) - 12) <= 2


def test_who_has_most_left_still_gets_the_time_that_is_sure() -> None:
    """Half of what is fair, while the other has the rest."""
    system = on_one_gpu(registry.make("max_min_fairness_perf", {}), 1)
    system.submit(steps=1e5)
    system.calm()
    seen = turns(system, 160)
    assert set(seen) == {("j1",), ("j2",)}
    assert abs(seen.count(("j1",)) - 40) <= 6
