"""Snapshots of an engine: every policy's state comes back, and bytes that would call something else do not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.commands import Decide
from levada.core.job import Job
from levada.engine import Engine, answer
from levada.live.snapshot import freeze, thaw
from levada.plugins import find_policy
from levada.policies.table import POLICIES
from levada.sim import pickled


def at_work(policy: str) -> Engine:
    """An engine whose policy has decided about some jobs."""
    nodes = tuple(Node.of(f"n{index}", {"v100": 2, "k80": 2}) for index in range(3))
    engine = Engine(cluster=Cluster(nodes=nodes), policy=policy, make_policy=find_policy, seed=1)
    jobs = [
        Job(id=f"j{index}", user="ab"[index % 2], submitted=0.0, min=1, max=1 + index % 3, steps=100.0)
        for index in range(6)
    ]
    for event in (ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(jobs)), ev.Tick(at=1000.0)):
        for command in engine.handle(event):
            if isinstance(command, Decide):
                engine.handle(answer(command, at=1001.0))
    return engine


@pytest.mark.parametrize("policy", [record.name for record in POLICIES])
def test_every_policy_comes_back_from_a_snapshot(policy: str) -> None:
    engine = at_work(policy)
    again = thaw(freeze(engine))
    jobs = [f"j{index}" for index in range(6)]
    assert [again.explain(job) for job in jobs] == [engine.explain(job) for job in jobs]
    changed = ev.PolicyChanged(at=2000.0, name="fifo", options={})
    told, expected = again.handle(changed), engine.handle(changed)
    assert [type(command) for command in told] == [type(command) for command in expected]


def calling(module: str, name: str, *arguments: Any) -> bytes:
    """Bytes that call a function when they are read."""

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode()

    given = b"(" + b"".join(map(text, arguments)) + b"t"
    return b"\x80\x04" + text(module) + text(name) + b"\x93" + given + b"R."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("levada.cli.up", "os.system"),
        ("levada.live.snapshot", "Path.touch"),
        ("levada.policies.table", "Record.__class__"),
        ("levada.plugins", "find_policy"),
        ("levada.sim.pickled", "pickle.loads"),
        ("numpy._core._methods", "pickle.loads"),
        ("numpy._core._methods", "os"),
        ("numpy.testing", "runstring"),
        ("functools", "partial"),
        ("os", "system"),
        ("builtins", "eval"),
    ],
)
def test_bytes_that_would_call_something_else_are_refused(tmp_path: Path, module: str, name: str) -> None:
    made = tmp_path / "made"
    with pytest.raises(pickle.UnpicklingError, match="no place in a state"):
        pickled.loads(calling(module, name, f"touch {made}"))
    assert not made.exists()


def test_a_class_that_a_module_only_imports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="no place"):
        pickled.loads(calling("levada.policies.table", "Iterable", str(tmp_path)))
