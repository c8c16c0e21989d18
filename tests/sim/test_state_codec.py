"""States of simulations as data: nothing is lost or shared otherwise, and what is read calls nothing."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from levada.core.names import Names
from levada.core.queue import Queue
from levada.errors import BadInput, LevadaError
from levada.policies.protocol import Needs
from levada.policies.registry import names
from levada.sim.pace import Pace
from levada.sim.run import Interrupted, simulate
from levada.sim.settings import Settings
from levada.sim.state_codec import dumps, loads
from tests.sim.test_run import facts, settings

POLICIES = names()


def again(value: Any) -> Any:
    return loads(dumps(value))


def test_values_come_back_as_they_were() -> None:
    generator = np.random.default_rng(7)
    generator.random(3)
    count = itertools.count(5)
    values = {
        "plain": [None, True, 1, -(2**63), 2**200, 0.1, -0.0, math.inf, "ü", b"\x00"],
        "containers": ((1, (2,)), {3, 4}, frozenset({5}), deque([6], 7), range(2, 9, 3), slice(1, None)),
        ("a", 1): {"inner": {}},
        "names": Names(["b", "a"]),
        "struct": Queue(name="q", limit={"a100": 4}),
        "flags": Needs.REMAINING | Needs.PROGRESS,
        "scalar": np.float64(0.1),
        "generator": generator,
        "count": count,
    }
    got = again(values)
    assert {key: got[key] for key in list(values)[:7]} == {key: values[key] for key in list(values)[:7]}
    assert math.copysign(1, got["plain"][6]) == -1
    assert type(got["names"]) is Names
    assert got["names"].find("a") == 1
    assert type(got["scalar"]) is np.float64
    assert got["generator"].random(4).tolist() == generator.random(4).tolist()
    assert next(got["count"]) == 5
    assert next(count) == 5


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["?", "i2", "i8", "f8", "<U3"])
def test_arrays_come_back_with_their_layout(order: Any, dtype: str) -> None:
    array = np.asarray(np.arange(6).reshape(2, 3).astype(dtype), order=order)
    fixed = array.copy(order)
    fixed.flags.writeable = False
    for each, empty in ((array, array[:0]), (fixed, fixed[:0])):
        got, none = again([each, empty])
        assert (got == each).all()
        assert (got.dtype, got.flags.c_contiguous, got.flags.writeable) == (
            each.dtype,
            each.flags.c_contiguous,
            each.flags.writeable,
        )
        assert none.shape == empty.shape


def test_what_is_shared_stays_shared() -> None:
    array, pace = np.arange(3), Pace()
    ring: list[Any] = [array, pace]
    ring.append(ring)
    pace.ring = ring  # type: ignore[attr-defined]
    got = again((ring, array, pace))
    assert got[0][2] is got[0]
    assert got[0][0] is got[1]
    assert got[0][1] is got[2]
    assert got[2].ring is got[0]


# --------------------------------------------------------------------------------------------------------- no program


class Evil:
    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


@pytest.mark.parametrize(
    "node",
    [
        ["object", "os:system", []],
        ["object", "subprocess:Popen", []],
        ["object", "pathlib:Path", []],
        ["object", "levada.live.loop:Loop", []],
        ["object", "levada.sim.run:_Log", []],
        ["object", "levada.policies.table:Iterable", []],
        ["object", "levada.core.queue:Queue.__class__", []],
        ["object", "levada.plugins:find_policy", []],
        ["object", "levada.policies.table:lookup", []],
        ["struct", "levada.sim.pace:Pace", []],
        ["enum", "levada.sim.pace:Pace", 1],
        ["named", "levada.sim.pace:Pace", []],
        ["array", "|O", [1], "C", True, b"\x00" * 8],
        ["array", "<i8", [1 << 40], "C", True, b"\x00" * 8],
        ["scalar", "|O", b"\x00" * 8],
        ["call", "os:system", "true"],
        ["tuple", [[0]]],
    ],
    ids=str,
)
def test_data_that_means_anything_else_is_refused(node: list[Any]) -> None:
    with pytest.raises((LevadaError, ValueError, TypeError, RecursionError)):
        loads(msgspec.msgpack.encode(([0], [node])))


def test_what_is_no_state_is_refused_when_it_is_written() -> None:
    class Own(dict[str, int]):
        pass

    for value in (Own(), lambda: 0, Path("/"), open, Pace, object(), np.array([object()]), Evil(Path("/"))):
        with pytest.raises(LevadaError, match="has no place in the state of a simulation"):
            dumps(value)


def stopped(given: Settings) -> None:
    asked = 0

    def stop(_progress: object) -> bool:
        nonlocal asked
        asked += 1
        return asked == 9

    with pytest.raises(Interrupted):
        simulate(given, stop)


def test_a_checkpoint_that_is_a_pickle_is_refused_and_not_read(tmp_path: Path) -> None:
    state, made = tmp_path / "state", tmp_path / "made"
    given = settings(checkpoint=str(state))
    stopped(given)
    mark, digest = b"levada simulation 2\n", state.read_bytes()[len(b"levada simulation 2\n") :][:32]
    for content in (b"levada simulation\n" + digest, mark + digest):
        state.write_bytes(content + pickle.dumps(Evil(made)))
        with pytest.raises(BadInput, match="delete it"):
            simulate(given)
    assert not made.exists()


def test_a_state_cannot_bring_another_policy(tmp_path: Path) -> None:
    """A policy may be a file of Python, so that its name in a state would be a program."""
    from levada.plugins import find_policy

    with pytest.raises(LevadaError, match="keeps its policy"):
        again(find_policy)(f"{tmp_path}/mine.py:Mine", {})


# ---------------------------------------------------------------------------------------------------------- all of it


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_under_each_policy_goes_on_to_the_same_result(policy: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"policy": policy, "jobs": 8, "rate": 6.0}
    whole = simulate(settings(**fields))
    given = settings(**fields, checkpoint=str(tmp_path / "state"))
    stopped(given)
    assert facts(simulate(given)) == facts(whole)


def test_a_policy_of_the_users_own_keeps_its_state(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    fields: dict[str, Any] = {"policy": f"{own}:Counting", "jobs": 8, "rate": 6.0}
    whole = simulate(settings(**fields))
    given = settings(**fields, checkpoint=str(tmp_path / "state"))
    stopped(given)
    assert facts(simulate(given)) == facts(whole)


OWN = """
from dataclasses import dataclass, field

from levada.policies.fifo import Fifo


@dataclass
class Memory:
    of_fifo: object
    decided: list[float] = field(default_factory=list)


class Counting(Fifo):
    name = "counting"

    def initial(self, seed):
        return Memory(super().initial(seed))

    def decide(self, snapshot, perf, state):
        decision, after = super().decide(snapshot, perf, state.of_fifo)
        assert isinstance(state, Memory)
        return decision, Memory(after, [*state.decided, snapshot.now])
"""
