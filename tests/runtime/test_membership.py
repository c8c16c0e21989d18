"""Whose state everybody goes on with: members are threads here, what they meet over is real."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from levada.runtime import checkpoint
from levada.runtime.checkpoint import Progress
from levada.runtime.framework import Framework
from levada.runtime.membership import Membership
from levada.runtime.place import read
from levada.runtime.state import State
from levada.runtime.world import World
from tests.runtime.supervisor import free_port


class Member:
    """One worker of a job, and what it has learned."""

    def __init__(self, name: str, learned: str, checkpoints: Path | None = None) -> None:
        self.name, self.model = name, {"learned": learned}
        state = State()
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
        """Enters the world it has heard of; how many steps the job has done then."""
        return self._membership.join(Progress(step=step)).step

    def learn(self, what: str) -> None:
        """As training does."""
        self.model["learned"] = what

    def leave(self) -> None:
        """Leaves its group."""
        self._membership.leave()


def meet(generation: int, members: Sequence[Member], steps: Sequence[int]) -> list[int]:
    """All enter one world, in this order of ranks and with so many steps done; what each is told that there are."""
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
def test_a_newcomer_at_rank_0_takes_the_state_of_who_has_trained(steps: int) -> None:
    """Even where nobody has done a step: whoever was there first may have changed something."""
    old, new = Member("g1-0", "nothing"), Member("g2-0", "another start")
    meet(1, [old], [0])
    old.learn("much")
    assert meet(2, [new, old], [0, steps]) == [steps, steps]
    assert learned(old, new) == ["much", "much"]
    for member in (old, new):
        member.leave()


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_whoever_is_a_step_behind_takes_the_state_of_who_is_not(behind: int) -> None:
    members = [Member(f"g1-{index}", "nothing") for index in range(3)]
    meet(1, members, [0, 0, 0])
    for index, member in enumerate(members):
        member.learn("of step 4" if index == behind else "of step 5")
    steps = [4 if index == behind else 5 for index in range(3)]
    assert meet(2, members, steps) == [5, 5, 5]
    assert learned(*members) == ["of step 5"] * 3
    for member in members:
        member.leave()


def test_one_who_is_ahead_alone_is_followed_by_all_whatever_its_rank() -> None:
    members = [Member(f"g1-{index}", "nothing") for index in range(3)]
    meet(1, members, [0, 0, 0])
    for index, member in enumerate(members):
        member.learn(f"of {index}")
    assert meet(2, members, [4, 4, 5]) == [5, 5, 5]
    assert learned(*members) == ["of 2"] * 3
    for member in members:
        member.leave()


def test_all_that_start_anew_take_the_checkpoint_whoever_can_read_it(tmp_path: Path) -> None:
    """A folder that is not shared is there for one machine only."""
    state = State()
    state.add({"model": {"learned": "of the checkpoint"}})
    checkpoint.save(tmp_path, 1, Progress(step=9), state.dump())
    without, reads = Member("g2-0", "nothing"), Member("g2-1", "nothing", tmp_path)
    assert meet(2, [without, reads], [0, 0]) == [9, 9]
    assert learned(without, reads) == ["of the checkpoint"] * 2
    for member in (without, reads):
        member.leave()
