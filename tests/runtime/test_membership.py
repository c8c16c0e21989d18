"""State alignment of members: members are threads, the group is real."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from levada.runtime import checkpoint
from levada.runtime.checkpoint import SavedProgress
from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.membership import Membership
from levada.runtime.state import TrainingState
from levada.runtime.worker_env import read
from tests.runtime.supervisor import free_port


class Member:
    """One worker of a job with a model state."""

    def __init__(self, name: str, learned: str, checkpoints: Path | None = None) -> None:
        self.name, self.model = name, {"learned": learned}
        state = TrainingState()
        state.add({"model": self.model})
        place = read({"LEVADA_JOB": "toy", "LEVADA_GENERATION": name[1:].partition("-")[0]})
        self.world: World | None = None
        self._membership = Membership(
            place._replace(worker=name, checkpoints=checkpoints),
            state,
            Framework(),
            lambda: self.world,
            lambda: False,
        )

    def join(self, step: int) -> int:
        """Join the published world; return the step of the job."""
        return self._membership.join(SavedProgress(step=step)).step

    def learn(self, what: str) -> None:
        """Change the model state like a training step."""
        self.model["learned"] = what

    def leave(self) -> None:
        """Leave the group."""
        self._membership.leave()


def meet(generation: int, members: Sequence[Member], steps: Sequence[int]) -> list[int]:
    """All members join one world in this order of ranks, each with its own step; return the step that each gets."""
    names = tuple(member.name for member in members)
    world = World(generation, names, "127.0.0.1", free_port(), "key")
    for member in members:
        member.leave()
        member.world = world
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(Member.join, members, steps))


def learned(*members: Member) -> list[str]:
    return [member.model["learned"] for member in members]


@pytest.mark.parametrize("steps", [7, 0])
def test_a_new_rank_0_takes_the_state_of_a_trained_member(steps: int) -> None:
    """Even at step 0, since an earlier member may have changed its state."""
    old, new = Member("g1-0", "nothing"), Member("g2-0", "another start")
    meet(1, [old], [0])
    old.learn("much")
    assert meet(2, [new, old], [0, steps]) == [steps, steps]
    assert learned(old, new) == ["much", "much"]
    for member in (old, new):
        member.leave()


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_member_one_step_behind_takes_the_newer_state(behind: int) -> None:
    members = [Member(f"g1-{index}", "nothing") for index in range(3)]
    meet(1, members, [0, 0, 0])
    for index, member in enumerate(members):
        member.learn("of step 4" if index == behind else "of step 5")
    steps = [4 if index == behind else 5 for index in range(3)]
    assert meet(2, members, steps) == [5, 5, 5]
    assert learned(*members) == ["of step 5"] * 3
    for member in members:
        member.leave()


def test_all_members_follow_the_most_advanced_one() -> None:
    members = [Member(f"g1-{index}", "nothing") for index in range(3)]
    meet(1, members, [0, 0, 0])
    for index, member in enumerate(members):
        member.learn(f"of {index}")
    assert meet(2, members, [4, 4, 5]) == [5, 5, 5]
    assert learned(*members) == ["of 2"] * 3
    for member in members:
        member.leave()


def test_new_members_all_take_the_checkpoint_that_one_can_read(tmp_path: Path) -> None:
    """Only one machine can read a checkpoint folder that is not shared."""
    state = TrainingState()
    state.add({"model": {"learned": "of the checkpoint"}})
    checkpoint.save(tmp_path, 1, SavedProgress(step=9), state.dump())
    without, reads = Member("g2-0", "nothing"), Member("g2-1", "nothing", tmp_path)
    assert meet(2, [without, reads], [0, 0]) == [9, 9]
    assert learned(without, reads) == ["of the checkpoint"] * 2
    for member in (without, reads):
        member.leave()
