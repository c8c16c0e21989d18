"""Foreign use is counted by node, event by event, as a count from scratch would have it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from levada.core.cluster import Foreign, Node
from levada.core.foreign_use import ForeignUse
from levada.engine.foreign import recount
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world

_COLUMNS = ("foreign_cpu", "foreign_memory", "reserved_cpu", "foreign", "foreign_gpu_memory", "reserved")


@pytest.mark.parametrize("seed", range(20))
def test_counting_touched_nodes_equals_counting_all(seed: int) -> None:
    rng = random.Random(seed)
    system = FaultyWorld(nodes=tuple(Node.of(f"n{i}", {"v100": 4}, cpu=64000) for i in range(5)))
    inventory = state_of(system.engine).world.inventory
    for _ in range(60):
        name = f"p{rng.randrange(12)}"
        if rng.random() < 0.3:
            system.foreign_gone(name)
        elif rng.random() < 0.1:
            system.return_node(f"n{rng.randrange(5)}")
        else:
            node = rng.choice([None, "unknown", *system.nodes])
            devices = rng.choice([(), (), ("1", "3")])
            milli = rng.choice([0, 300, 1000, 3000])
            system.foreign(name, node=node, devices=devices, milli=milli, cpu=1000, serving=rng.random() < 0.3)
        counted = {column: getattr(inventory, column).copy() for column in _COLUMNS}
        recount(state_of(system.engine), set(range(5)))
        for column in _COLUMNS:
            np.testing.assert_array_equal(getattr(inventory, column), counted[column])


def test_foreign_use_moves_from_held_devices_to_released_ones() -> None:
    """The count per node matters: a pod on a full node uses what a job releases, not what another job still holds."""
    system = faulty_world(4)
    system.submit(min=2)
    system.submit(min=2)
    system.calm()
    system.foreign("pod", node="n0", milli=2000)
    system.submit(min=1)
    system.calm()
    inventory, held = state_of(system.engine).world.inventory, state_of(system.engine).world.held
    first, second = (set(held.devices_of(slot).tolist()) for slot in (0, 1))
    assert set(inventory.foreign.nonzero()[0].tolist()) == second
    system.finish(0)
    system.calm()
    assert set(inventory.foreign.nonzero()[0].tolist()) == first
    assert system.sizes() == {"j2": 2, "j3": 0}


def test_foreign_use_is_indexed_by_node() -> None:
    use = ForeignUse()
    for name, node in (("a", "n0"), ("b", "n1"), ("c", None), ("a", "n1")):
        use[name] = Foreign(id=name, node=node, serving=True)
    twin = use.copy()
    assert [pod.id for pod in use.on("n1")] == ["b", "a"]
    assert (use.on("n0"), [pod.id for pod in use.waiting()]) == ([], ["c"])
    assert use.remove("b") is not None
    assert use.remove("b") is None
    assert [pod.id for pod in use.on("n1")] == ["a"]
    assert [pod.id for pod in twin.on("n1")] == ["b", "a"]
