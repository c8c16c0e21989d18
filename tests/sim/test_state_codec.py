"""Simulation states as data: values and shared references survive, and decoding runs no code."""

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
from levada.sim.progress import JobProgress
from levada.sim.run import Interrupted, simulate
from levada.sim.settings import Settings
from levada.sim.state_codec import dumps, loads
from tests.sim.test_run import facts, settings

POLICIES = names()


def round_trip(value: Any) -> Any:
    return loads(dumps(value))


def test_values_survive_a_round_trip() -> None:
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
    got = round_trip(values)
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
def test_arrays_keep_their_layout(order: Any, dtype: str) -> None:
    array = np.asarray(np.arange(6).reshape(2, 3).astype(dtype), order=order)
    fixed = array.copy(order)
    fixed.flags.writeable = False
    for original, empty in ((array, array[:0]), (fixed, fixed[:0])):
        got, none = round_trip([original, empty])
        assert (got == original).all()
        assert (got.dtype, got.flags.c_contiguous, got.flags.writeable) == (
            original.dtype,
            original.flags.c_contiguous,
            original.flags.writeable,
        )
        assert none.shape == empty.shape


def test_shared_references_stay_shared() -> None:
    array, progress = np.arange(3), JobProgress()
    ring: list[Any] = [array, progress]
    ring.append(ring)
    progress.ring = ring  # type: ignore[attr-defined]
    got = round_trip((ring, array, progress))
    assert got[0][2] is got[0]
    assert got[0][0] is got[1]
    assert got[0][1] is got[2]
    assert got[2].ring is got[0]


# --------------------------------------------------------------------------------------------------------- no code


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "node",
    [
        ["object", "os:system", []],
        ["object", "subprocess:Popen", []],
        ["object", "pathlib:Path", []],
        ["object", "levada.live.loop:Loop", []],
        ["object", "levada.sim.run:_RoundsFile", []],
        ["object", "levada.policies.registry:Iterable", []],
        ["object", "levada.core.queue:Queue.__class__", []],
        ["object", "levada.plugins:find_policy", []],
        ["object", "levada.policies.registry:lookup", []],
        ["struct", "levada.sim.progress:JobProgress", []],
        ["enum", "levada.sim.progress:JobProgress", 1],
        ["named", "levada.sim.progress:JobProgress", []],
        ["array", "|O", [1], "C", True, b"\x00" * 8],
        ["array", "<i8", [1 << 40], "C", True, b"\x00" * 8],
        ["scalar", "|O", b"\x00" * 8],
        ["call", "os:system", "true"],
        ["tuple", [[0]]],
    ],
    ids=str,
)
def test_other_data_is_rejected(node: list[Any]) -> None:
    with pytest.raises((LevadaError, ValueError, TypeError, RecursionError)):
        loads(msgspec.msgpack.encode(([0], [node])))


def test_other_objects_cannot_be_encoded() -> None:
    class Own(dict[str, int]):
        pass

    for value in (Own(), lambda: 0, Path("/"), open, JobProgress, object(), np.array([object()]), Evil(Path("/"))):
        with pytest.raises(LevadaError, match="is not allowed in a simulation checkpoint"):
            dumps(value)


def run_until_interrupted(asked: Settings) -> None:
    calls = 0

    def stop(_progress: object) -> bool:
        nonlocal calls
        calls += 1
        return calls == 9

    with pytest.raises(Interrupted):
        simulate(asked, stop)


def test_a_pickle_is_rejected_unread(tmp_path: Path) -> None:
    state, touched = tmp_path / "state", tmp_path / "touched"
    asked = settings(checkpoint=str(state))
    run_until_interrupted(asked)
    mark, digest = b"levada simulation 2\n", state.read_bytes()[len(b"levada simulation 2\n") :][:32]
    for content in (b"levada simulation\n" + digest, mark + digest):
        state.write_bytes(content + pickle.dumps(Evil(touched)))
        with pytest.raises(BadInput, match="delete it"):
            simulate(asked)
    assert not touched.exists()


def test_a_state_cannot_name_another_policy(tmp_path: Path) -> None:
    """A policy can be a Python file, so a name in a state would be code."""
    from levada.plugins import find_policy

    with pytest.raises(LevadaError, match="cannot change its policy"):
        round_trip(find_policy)(f"{tmp_path}/mine.py:Mine", {})


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_under_each_policy_resumes_to_the_same_result(policy: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"policy": policy, "jobs": 8, "rate": 6.0}
    whole = simulate(settings(**fields))
    asked = settings(**fields, checkpoint=str(tmp_path / "state"))
    run_until_interrupted(asked)
    assert facts(simulate(asked)) == facts(whole)


def test_a_user_policy_keeps_its_state(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    fields: dict[str, Any] = {"policy": f"{own}:Counting", "jobs": 8, "rate": 6.0}
    whole = simulate(settings(**fields))
    asked = settings(**fields, checkpoint=str(tmp_path / "state"))
    run_until_interrupted(asked)
    assert facts(simulate(asked)) == facts(whole)


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
