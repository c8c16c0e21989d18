"""Packed jobs: two jobs on the same devices."""

from __future__ import annotations

import random

import numpy as np
import pytest

from levada.core.assignment import DEVICE, MILLI
from levada.core.cluster import Node
from levada.perf.profiles import ProfileModel, Profiles
from levada.tables.invariants import check_state
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld
from tests.engine.random_walk import one_step

SIZES = np.array([1.0, 1.9, 3.6, 7.0])
#: Two workloads that lose 20 % of their speed when packed.
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


def measured(policy: str, *nodes: Node) -> FaultyWorld:
    system = FaultyWorld(policy=policy, nodes=nodes)
    state = state_of(system.engine)
    state.perf = ProfileModel(PROFILES, state.world.workloads, state.world.inventory.types)
    return system


def parts(system: FaultyWorld) -> dict[str, list[tuple[int, int]]]:
    """Devices and milli-GPUs held by each job."""
    world = state_of(system.engine).world
    held = {name: world.places(world.held, world.slot(name)) for name in system.sizes()}
    return {name: sorted(zip(rows[DEVICE].tolist(), rows[MILLI].tolist(), strict=True)) for name, rows in held.items()}


@pytest.mark.parametrize("policy", PACKING)
def test_packed_jobs_share_devices_and_separate_when_room_is_free(policy: str) -> None:
    system = measured(policy, Node.of("a", {"v100": 2}))
    for _ in range(4):
        system.submit(min=1, workload="w1", steps=1e6)
    system.calm()
    system.pass_time(400.0)
    system.calm()
    held = parts(system)
    assert all(len(devices) == 1 and devices[0][1] == 500 for devices in held.values()), "all four run, two per GPU"
    assert sorted(devices[0][0] for devices in held.values()) == [0, 0, 1, 1]
    system.finish(0)
    system.finish(1)
    for _ in range(3):
        system.calm()
        system.pass_time(400.0)
    system.calm()
    assert sorted(devices[0] for devices in parts(system).values()) == [(0, 1000), (1, 1000)], (
        "each job has its own GPU"
    )


@pytest.mark.parametrize("seed", range(6))
def test_packed_jobs_survive_lost_and_reordered_messages(seed: int) -> None:
    rng = random.Random(seed)
    policies = (*PACKING, "max_min_fairness_perf", "elastic-fifo", "dragon")
    system = measured(rng.choice(PACKING), *SMALL)
    for _ in range(250):
        one_step(system, rng, policies)
    system.settle()
    state = state_of(system.engine)
    assert not check_state(state.world, submitted=state.submitted, ended=state.ended)


@pytest.mark.parametrize("policy", PACKING)
def test_jobs_of_different_shapes_are_not_packed(policy: str) -> None:
    """Only workers of one whole GPU are packed; others run alone, and every decision is valid."""
    system = measured(policy, Node.of("a", {"v100": 4}))
    shapes = [{"milli": 2000}, {"min": 2, "max": 2}] * 4
    for shape in shapes:
        system.submit(workload="w1", steps=1e6, **shape)
    for _ in range(6):
        system.calm()
        world = state_of(system.engine).world
        assert not world.table.failures[world.table.order].any(), "no row of a decision was rejected"
        shared = {world.ids[int(world.table.number[slot])] for slot in world.held.rows[0].tolist()}
        assert shared <= {"j2", "j4", "j6", "j8"}
        system.pass_time(400.0)
