"""Two jobs on the same devices, where a policy packs them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from levada.core.cluster import Node
from levada.core.plane import DEVICE, MILLI
from levada.perf.profiles import ProfileModel, Profiles
from levada.tables.invariants import check_state
from tests.engine.chaos import Chaos
from tests.engine.inspect import state_of
from tests.engine.machine import one_step

SIZES = np.array([1.0, 1.9, 3.6, 7.0])
#: Two workloads that lose a fifth of their speed when they share.
PROFILES = Profiles(
    workloads=("w1", "w2"),
    types=("v100", "a100"),
    sizes=(1, 2, 4, 8),
    alone=np.ones((2, 2, 4)) * SIZES,
    together=np.full((2, 4, 2, 2), 0.8) * SIZES[None, :, None, None],
)
SMALL = (
    Node.of("a", {"v100": 2}),
    Node.of("b", {"v100": 2}, cpu=16000, memory=65536),
    Node.of("c", {"v100": 1, "a100": 1}),
)
PACKING = (
    "max_min_fairness_packed",
    "gandiva",
    "gavel-fifo_packed",
    "min_total_duration_packed",
    "finish_time_fairness_packed",
)


def measured(policy: str, *nodes: Node) -> Chaos:
    chaos = Chaos(policy=policy, nodes=nodes)
    state = state_of(chaos.engine)
    state.perf = ProfileModel(PROFILES, state.world.workloads, state.world.inventory.types)
    return chaos


def parts(chaos: Chaos) -> dict[str, list[tuple[int, int]]]:
    """What each job holds: devices, and how much of each."""
    world = state_of(chaos.engine).world
    held = {name: world.places(world.held, world.slot(name)) for name in chaos.sizes()}
    return {name: sorted(zip(rows[DEVICE].tolist(), rows[MILLI].tolist(), strict=True)) for name, rows in held.items()}


@pytest.mark.parametrize("policy", PACKING)
def test_jobs_that_do_well_together_share_devices_and_part_when_there_is_room(policy: str) -> None:
    chaos = measured(policy, Node.of("a", {"v100": 2}))
    for _ in range(4):
        chaos.submit(min=1, workload="w1", steps=1e6)
    chaos.calm()
    chaos.pass_time(400.0)
    chaos.calm()
    held = parts(chaos)
    assert all(len(mine) == 1 and mine[0][1] == 500 for mine in held.values()), "all four run, two to a GPU"
    assert sorted(mine[0][0] for mine in held.values()) == [0, 0, 1, 1]
    chaos.finish(0)
    chaos.finish(1)
    for _ in range(3):
        chaos.calm()
        chaos.pass_time(400.0)
    chaos.calm()
    assert sorted(mine[0] for mine in parts(chaos).values()) == [(0, 1000), (1, 1000)], "each has a GPU for itself"


@pytest.mark.parametrize("seed", range(6))
def test_sharing_survives_an_unreliable_world(seed: int) -> None:
    rng = random.Random(seed)
    policies = (*PACKING, "max_min_fairness_perf", "elastic-fifo", "dragon")
    chaos = measured(rng.choice(PACKING), *SMALL)
    for _ in range(250):
        one_step(chaos, rng, policies)
    chaos.settle()
    state = state_of(chaos.engine)
    assert not check_state(state.world, submitted=state.submitted, ended=state.ended)


@pytest.mark.parametrize("policy", PACKING)
def test_jobs_of_other_shapes_share_with_nobody(policy: str) -> None:
    """Only workers of one whole GPU each can: all others run alone, and no decision breaks a rule."""
    chaos = measured(policy, Node.of("a", {"v100": 4}))
    shapes = [{"milli": 2000}, {"min": 2, "max": 2}] * 4
    for shape in shapes:
        chaos.submit(workload="w1", steps=1e6, **shape)
    for _ in range(6):
        chaos.calm()
        world = state_of(chaos.engine).world
        assert not world.table.failures[world.table.order].any(), "no row of a decision was refused"
        shared = {world.ids[int(world.table.number[slot])] for slot in world.held.rows[0].tolist()}
        assert shared <= {"j2", "j4", "j6", "j8"}
        chaos.pass_time(400.0)
