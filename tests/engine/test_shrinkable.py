"""Room for serving pods costs the fewest workers, like a naive search over all nodes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from levada.core.assignment import DEVICE, INDEX, NODE, SLOT
from levada.core.cluster import Node
from levada.engine.shrinkable import Surplus, spare_workers
from levada.engine.state import State
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld


def _searched(state: State, devices: int, free: list[int], short_cpu: list[int]) -> tuple[int, list[tuple[int, int]]]:
    """The node where the fewest workers must stop, and these workers: highest index of the youngest job first.

    Of several such nodes, the one where the lowest index is highest.
    """
    world, table = state.world, state.world.table
    best: tuple[int, list[tuple[int, int]]] = (-1, [])
    for node in range(len(free)):
        goes: list[tuple[int, int]] = []
        gpus, cores = free[node], -short_cpu[node]
        for slot in sorted(table.order.tolist(), key=lambda slot: -table.number[slot]):
            places = world.places(world.target, slot)
            here = places[:, (places[NODE] == node) & (places[INDEX] > 0)]
            spare = int(table.count[slot] - table.min[slot]) if table.step[slot] == 1 else 0
            for index in sorted(set(here[INDEX].tolist()), reverse=True)[: max(spare, 0)]:
                if gpus >= devices and cores >= 0:
                    break
                goes.append((slot, index))
                gpus += int((here[INDEX] == index).sum()) if table.milli[slot] else 0
                cores += int(table.cpu[slot])
        if gpus >= devices and cores >= 0 and goes and (best[0] < 0 or _cost(goes) < _cost(best[1])):
            best = (node, goes)
    return best


def _cost(goes: list[tuple[int, int]]) -> tuple[int, int]:
    return len(goes), -min(index for _, index in goes)


@pytest.mark.parametrize("seed", range(30))
def test_room_for_a_serving_pod_stops_the_fewest_workers(seed: int) -> None:
    rng = random.Random(seed)
    nodes = tuple(Node.of(f"n{i}", {"v100": rng.choice([2, 4, 8])}, cpu=16000) for i in range(4))
    system = FaultyWorld(nodes=nodes)
    shapes: list[dict[str, Any]] = [{"milli": 1000}, {"milli": 2000}, {"milli": 0, "cpu": 2000}, {"cpu": 1000}]
    for _ in range(rng.randint(1, 6)):
        low, step = rng.randint(1, 2), rng.choice([1, 1, 2])
        system.submit(min=low, max=low + step * rng.randint(0, 5), step=step, **rng.choice(shapes))
    system.calm()
    state = state_of(system.engine)
    inventory, target = state.world.inventory, state.world.target
    free = np.bincount(inventory.node_of[target.owner == -1], minlength=4)
    for devices in range(1, 6):
        # A node with enough free room is not searched.
        short_cpu = rng.choice([0, 4000]) - (inventory.cpu - target.cpu)
        short_cpu[free >= devices] = 10**9
        node, victims = Surplus(state.world, target, spare_workers(state)).cheapest(
            np.ones(len(inventory.node_of), bool),
            short_devices=devices - free,
            short_cpu=short_cpu,
            short_memory=np.zeros(4, np.int64),
        )
        expected = _searched(state, devices, free.tolist(), short_cpu.tolist())
        assert node == expected[0]
        assert set(zip(victims[SLOT].tolist(), victims[INDEX].tolist(), strict=True)) == set(expected[1])
        assert (inventory.node_of[victims[DEVICE][victims[DEVICE] >= 0]] == node).all()
