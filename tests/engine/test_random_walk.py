"""The engine with an unreliable backend: no sequence of steps violates an invariant."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.faulty_world import FaultyWorld
from tests.engine.random_walk import NODES, POLICIES, QUEUES, walk

ANY = st.integers(0, 7)


class FaultyWorldMachine(RuleBasedStateMachine):
    """`FaultyWorld` checks the invariants after every step."""

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.system = FaultyWorld(policy=policy, nodes=NODES[:2])

    @rule(
        low=st.integers(1, 3),
        more=st.integers(0, 3),
        milli=st.sampled_from([1000, 1000, 2000, 500, 0]),
        in_place=st.booleans(),
        retries=st.integers(0, 1),
        node_class=st.sampled_from(["", "x", "y"]),
    )
    def submit(self, low: int, more: int, milli: int, in_place: bool, retries: int, node_class: str) -> None:
        fields = {"resizes_in_place": in_place, "retries": retries, "node_class": node_class}
        self.system.submit(min=low, max=low + more, milli=milli, cpu=1000, steps=100.0, **fields)

    @precondition(lambda self: self.system.thoughts)
    @rule(which=ANY, fail=st.booleans())
    def think(self, which: int, fail: bool) -> None:
        self.system.think(which, fail=fail and which == 0)

    @precondition(lambda self: self.system.ops)
    @rule(which=ANY, fate=st.sampled_from(["done", "done", "done", "lost", "failed"]))
    def carry_out(self, which: int, fate: str) -> None:
        self.system.carry_out(which, lose=fate == "lost", fail=fate == "failed")

    @precondition(lambda self: self.system.reports)
    @rule(which=ANY, fate=st.sampled_from(["once", "once", "lost", "twice"]))
    def deliver(self, which: int, fate: str) -> None:
        self.system.deliver(which, lose=fate == "lost", twice=fate == "twice")

    @precondition(lambda self: self.system.active())
    @rule(which=ANY, verb=st.sampled_from(["cancel", "suspend", "resume"]))
    def users(self, which: int, verb: str) -> None:
        active = self.system.active()
        self.system.users(verb, active[which % len(active)])

    @precondition(lambda self: self.system.truth)
    @rule(which=ANY, what=st.sampled_from(["finish", "break", "worker"]), worker=ANY)
    def running_job(self, which: int, what: str, worker: int) -> None:
        running = sorted(self.system.truth)
        number = running[which % len(running)]
        if what == "finish":
            self.system.finish(number)
        elif what == "break":
            self.system.break_job(number)
        else:
            self.system.break_worker(number, worker)

    @rule(name=st.sampled_from([node.name for node in NODES[:2]]))
    def node(self, name: str) -> None:
        if name in self.system.lost_nodes:
            self.system.return_node(name)
        else:
            self.system.lose_node(name)

    @rule(name=st.sampled_from([node.name for node in NODES[:2]]), left=st.integers(0, 3), back=st.booleans())
    def devices(self, name: str, left: int, back: bool) -> None:
        self.system.change_node(name, left)
        if back:
            self.system.return_node(name)

    @rule(name=st.sampled_from([node.name for node in NODES[:2]]), cordoned=st.booleans())
    def cordon(self, name: str, cordoned: bool) -> None:
        self.system.cordon(name, cordoned)

    @rule(node=st.sampled_from([None, "a", "b"]), milli=st.sampled_from([500, 1000, 3000]), gone=st.booleans())
    def foreign(self, node: str | None, milli: int, gone: bool) -> None:
        if gone:
            self.system.foreign_gone("f")
        else:
            self.system.foreign("f", node=node, milli=milli, serving=True)

    @rule(policy=st.sampled_from(POLICIES))
    def policy(self, policy: str) -> None:
        self.system.switch_policy(policy)

    @rule(queues=st.sampled_from(QUEUES))
    def queues(self, queues: tuple[object, ...]) -> None:
        self.system.set_queues(queues)  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.0, 1.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.system.pass_time(seconds)

    def teardown(self) -> None:
        if hasattr(self, "system"):
            self.system.settle()


FaultyWorldMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFaultyWorld = FaultyWorldMachine.TestCase


@pytest.mark.parametrize("seed", range(4))
def test_a_random_walk_breaks_no_invariant(seed: int) -> None:
    counts = walk(900, seed)
    assert counts["decisions"] > 50
    assert counts["ended"] > 10
