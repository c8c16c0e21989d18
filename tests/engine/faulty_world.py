"""An unreliable backend for the engine: commands and reports are lost, repeated, delayed and reordered.

`FaultyWorld` knows what running runs where; the engine knows only the reports. After every step it checks that no device
is overcommitted, that the engine knows of everything that runs, and the invariants of the state.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.assignment import DEVICE, NODE, SLOT
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.commands import Apply, BindPods, Command, Decide, Faulted, JobsEnded, StopStray, Wake
from levada.core.job import Job, Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.plan import OpKind
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.engine import Engine, Options, run_policy
from levada.tables.invariants import check_state
from levada.tables.placement_rows import whole_devices
from tests.engine.engine_state import state_of

Place = tuple[str, str]

#: Reasons for which a job may stay pending in `settle`, also as a dependency of another job.
EXCUSES = (
    *(Code.TOO_LARGE, Code.UNKNOWN_TYPE, Code.SET_ASIDE, Code.QUEUE_LIMIT, Code.USER_LIMIT),
    *(Code.DEPENDENCY, Code.DEPENDENCY_FAILED),
)


class InvariantViolated(AssertionError):
    """An invariant is violated; the text has the last events."""


class FaultyWorld:
    """The engine, the running processes, and the messages between them."""

    def __init__(self, policy: str = "elastic-fifo", nodes: tuple[Node, ...] = (), **options: Any) -> None:
        settings = {"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0, "op_timeout_s": 60.0, **options}
        self.nodes = {node.name: node for node in nodes}
        self.engine = Engine(cluster=Cluster(nodes=nodes), policy=policy, options=Options(**settings))
        self.engine.undo_faults = False  # an engine fault fails the test
        self.now = 0.0
        self.history: list[str] = []
        #: Running jobs by number: generation, and places by worker index.
        self.truth: dict[int, tuple[int, dict[int, tuple[Place, ...]]]] = {}
        #: Operations that have not reached the backend, and reports that have not reached the engine.
        self.ops: list[Any] = []
        #: Milli-GPUs per device of each running job.
        self.part: dict[int, int] = {}
        self.reports: list[ev.Event] = []
        self.thoughts: list[Decide] = []
        self.lost_nodes: set[str] = set()
        #: Remaining devices of a node that lost some.
        self.changed: dict[str, set[str]] = {}
        self.ended: list[int] = []
        #: Final phases of ended jobs.
        self.phases: dict[int, int] = {}
        self.generations: dict[int, int] = {}
        self.over: set[int] = set()
        self.wake = math.inf
        #: The backend is unreachable: operations and reports wait.
        self.away = False
        #: The classes of nodes have changed: jobs may still be where they could not start now.
        self.reopened = False
        self.jobs_made = 0
        self.decisions = 0

    # --- messages of the engine -------------------------------------------------------------------------------------

    def tell(self, *events: ev.Event) -> None:
        """Send events to the engine, collect its commands, and check all invariants."""
        self.history += [type(event).__name__ for event in events]
        self._collect(self.engine.handle(*events))
        self._require(self.wake > self.now, f"wake time {self.wake} is not after now, {self.now}")
        self.check()

    def _collect(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Apply):
                self._require(not self.away, "an operation is issued while the backend is unreachable")
                ops = self.engine.ops(command.plan)
                self.history += [
                    f"{OpKind.name(op.kind)} {op.job} g{op.generation} {op.adds} -{op.drops}" for op in ops
                ]
                self.ops += ops
            elif isinstance(command, Decide):
                self.thoughts.append(command.detached())
            elif isinstance(command, JobsEnded):
                repeated = set(command.number.tolist()) & set(self.ended)
                self._require(not repeated, f"jobs {repeated} ended twice")
                self.ended += command.number.tolist()
                self.phases.update(zip(command.number.tolist(), command.phase.tolist(), strict=True))
            elif isinstance(command, Wake):
                self.wake = command.at
            elif isinstance(command, StopStray):
                for number in command.number:
                    self.truth.pop(number, None)
            elif isinstance(command, Faulted):
                raise self._violation(command.traceback)
            else:
                assert isinstance(command, BindPods)

    # --- requests of users ------------------------------------------------------------------------------------------

    def submit(self, **fields: Any) -> None:
        self.jobs_made += 1
        fields.setdefault("max", fields.get("min", 1))
        job = Job(id=f"j{self.jobs_made}", submitted=self.now, **fields)
        self.tell(ev.JobsSubmitted(at=self.now, jobs=JobBatch.of([job])))

    def active(self) -> list[int]:
        table = state_of(self.engine).world.table
        return sorted(int(number) for number in table.number[table.order])

    def users(self, what: str, number: int, **fields: Any) -> None:
        numbers = np.array([number])
        if what == "update":
            self.tell(ev.JobsUpdated(at=self.now, updates=(ev.JobUpdate(number=number, **fields),)))
        else:
            kinds = {"cancel": ev.JobsCancelled, "suspend": ev.JobsSuspended, "resume": ev.JobsResumed}
            self.tell(kinds[what](at=self.now, number=numbers))

    # --- backend and policy -----------------------------------------------------------------------------------------

    def think(self, which: int = 0, *, fail: bool = False, spoil: Any = None) -> None:
        """Run the policy for a pending question; *fail* and *spoil* replace its decision."""
        command = self.thoughts.pop(which % len(self.thoughts))
        self.decisions += 1
        if fail:
            self.tell(ev.DecideFailed(at=self.now, revision=command.revision, why="it broke"))
            return
        decided = run_policy(command, self.now)
        if isinstance(decided, ev.DecideFailed):
            raise InvariantViolated(f"the policy failed: {decided.why}")
        self.tell(spoil(decided) if spoil is not None else decided)

    def carry_out(self, which: int = 0, *, lose: bool = False, fail: bool = False) -> None:
        """Execute an operation, lose it, or let it fail."""
        op = self.ops.pop(which % len(self.ops))
        if lose:
            self.history.append(f"lost: {OpKind.name(op.kind)} {op.job} g{op.generation}")
            return
        names = {"number": np.array([op.number]), "generation": np.array([op.generation])}
        if op.number in self.over:
            # A finished job is never started again; the backend repeats its end.
            self.reports.append(ev.JobsFinished(at=self.now, **names))
            return
        if op.generation < self.generations.get(op.number, 0):
            return  # the backend rejects an older generation
        self.generations[op.number] = op.generation
        if fail:
            if op.kind != OpKind.STOP:
                self.reports.append(ev.OperationFailed(at=self.now, **names))
            return
        if op.kind == OpKind.STOP:
            self.truth.pop(op.number, None)
            self.reports.append(ev.Released(at=self.now, **names))
            return
        if self._names_gone(op):
            self.reports.append(ev.OperationFailed(at=self.now, **names))
            return
        workers = {
            place.index if place.group == "worker" else -1 - place.index: tuple((place.node, d) for d in place.devices)
            for place in op.grant.places
        }
        self.truth[op.number] = (op.generation, workers)
        self.part[op.number] = max(place.milli for place in op.grant.places)
        self._check_devices()
        self.reports += [ev.Released(at=self.now, **names), ev.Running(at=self.now, **names)]

    def _names_gone(self, op: Any) -> bool:
        return any(self._is_gone(place.node, place.devices) for place in op.grant.places)

    def _is_gone(self, node: str, devices: tuple[str, ...]) -> bool:
        return node in self.lost_nodes or not set(devices) <= self.changed.get(node, set(devices))

    def deliver(self, which: int = 0, *, lose: bool = False, twice: bool = False) -> None:
        """Deliver a report, lose it, or deliver it twice."""
        report = self.reports.pop(which % len(self.reports))
        if lose:
            self.history.append(f"lost: {type(report).__name__}")
            return
        if twice:
            self.reports.append(report)
        self.tell(self._now(report))

    def _now(self, event: Any) -> ev.Event:
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        return type(event)(**{**fields, "at": self.now})

    def finish(self, number: int) -> None:
        """A running job finishes."""
        generation, _ = self.truth.pop(number)
        self.over.add(number)
        self.tell(ev.JobsFinished(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def save(self, number: int) -> None:
        """A running job saves a checkpoint."""
        generation = np.array([self.truth[number][0]])
        self.tell(ev.CheckpointSaved(at=self.now, number=np.array([number]), generation=generation))

    def break_job(self, number: int) -> None:
        """A running job fails."""
        generation, _ = self.truth.pop(number)
        self.tell(ev.JobsFailed(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def leave(self, number: int) -> None:
        """A running job exits voluntarily with a checkpoint."""
        generation, _ = self.truth.pop(number)
        self.tell(ev.JobsLeft(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def break_worker(self, number: int, which: int) -> None:
        """One worker of a running job is lost, and its devices are free."""
        generation, workers = self.truth[number]
        index = sorted(workers)[which % len(workers)]
        left = {i: places for i, places in workers.items() if i != index}
        if left:
            self.truth[number] = (generation, left)
        else:
            self.truth.pop(number)
        running = sum(i >= 0 for i in left)
        self.tell(
            ev.WorkersFailed(
                at=self.now,
                number=np.array([number]),
                generation=np.array([generation]),
                running=np.array([running]),
                index=np.array([index]),
            )
        )

    def lose_node(self, name: str) -> None:
        """Lose a node and all workers on it."""
        self.lost_nodes.add(name)
        for number, (generation, workers) in list(self.truth.items()):
            left = {i: places for i, places in workers.items() if all(node != name for node, _ in places)}
            if left and len(left) < len(workers):
                self.truth[number] = (generation, left)
            elif not left:
                self.truth.pop(number)
        self.tell(ev.NodesLost(at=self.now, names=(name,)))

    def return_node(self, name: str) -> None:
        self.lost_nodes.discard(name)
        self.changed.pop(name, None)
        self.tell(ev.NodesAdded(at=self.now, nodes=(self.nodes[name],)))

    def change_node(self, name: str, devices: int) -> None:
        """Reduce a node to its first devices; workers on the others are lost."""
        whole = self.nodes[name]
        left = whole.devices[:devices]
        remaining = {device.id for device in left}
        for number, (generation, workers) in list(self.truth.items()):
            alive = {i: p for i, p in workers.items() if all(node != name or device in remaining for node, device in p)}
            if alive:
                self.truth[number] = (generation, alive)
            else:
                self.truth.pop(number)
        self.changed[name] = remaining
        self.lost_nodes.discard(name)
        self.tell(ev.NodesChanged(at=self.now, nodes=(msgspec.structs.replace(whole, devices=left),)))

    def paused(self, number: int, seconds: float) -> None:
        """A running job reports the pause of a resize."""
        fields = {"number": np.array([number]), "generation": np.array([self.truth[number][0]])}
        self.tell(ev.Paused(at=self.now, seconds=np.array([seconds]), **fields))

    def cordon(self, name: str, cordoned: bool) -> None:
        self.tell(ev.NodesCordoned(at=self.now, names=(name,), cordoned=cordoned))

    def reopen(self, name: str, *classes: str) -> None:
        """A node is open to these classes, and no others, from now on."""
        self.reopened = True
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], open_to=classes)
        self.tell(ev.NodesChanged(at=self.now, nodes=(self.nodes[name],)))

    def drain(self, name: str, force: bool = False) -> None:
        self.tell(ev.NodesDrained(at=self.now, names=(name,), force=force))

    def set_away(self, away: bool) -> None:
        self.away = away
        self.tell(ev.BackendAway(at=self.now) if away else ev.BackendBack(at=self.now))

    def remove_node(self, name: str) -> None:
        self.tell(ev.NodesRemoved(at=self.now, names=(name,)))

    def foreign(self, name: str, **fields: Any) -> None:
        self.tell(ev.ForeignAppeared(at=self.now, foreign=(Foreign(id=name, **fields),)))

    def foreign_gone(self, name: str) -> None:
        self.tell(ev.ForeignGone(at=self.now, ids=(name,)))

    def switch_policy(self, name: str) -> None:
        self.tell(ev.PolicyChanged(at=self.now, name=name))

    def set_queues(self, queues: tuple[Queue, ...]) -> None:
        self.tell(ev.QueuesChanged(at=self.now, queues=queues))

    def observe(self) -> None:
        """The backend reports all running jobs."""
        numbers = sorted(self.truth)
        self.tell(
            ev.Observed(
                at=self.now,
                number=np.array(numbers, np.int64),
                generation=np.array([self.truth[n][0] for n in numbers], np.int64),
                running=np.array([sum(i >= 0 for i in self.truth[n][1]) for n in numbers], np.int64),
            )
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.wake <= self.now:
            self.wake = math.inf
        self.tell(ev.Tick(at=self.now))

    def calm(self) -> None:
        """Deliver all messages in order at the current time; fail if there is no end to them."""
        began = len(self.history)
        while self.ops or self.reports or self.thoughts:
            self._require(len(self.history) < began + 4000, "the engine sends commands endlessly at one time")
            while self.thoughts:
                self.think()
            while self.ops:
                self.carry_out()
            while self.reports:
                self.deliver()

    def job(self, name: str) -> dict[str, Any]:
        """The columns of an active job, by name."""
        table = state_of(self.engine).world.table
        slot = state_of(self.engine).world.slot(name)
        assert slot >= 0, f"{name} is not active"
        ints = {column: int(getattr(table, column)[slot]) for column in INT_COLUMNS}
        return ints | {column: float(getattr(table, column)[slot]) for column in FLOAT_COLUMNS}

    def why(self, name: str) -> str:
        """The reason code of a job."""
        return self.engine.explain(name).reason.code

    def sizes(self) -> dict[str, int]:
        """Target number of workers of every active job."""
        state = state_of(self.engine)
        table = state.world.table
        return {state.world.ids[int(table.number[s])]: int(table.count[s]) for s in table.order}

    def settle(self, rounds: int = 600) -> None:
        """End all faults: messages arrive, nodes return, foreign use ends, running jobs finish.

        Then every job must end, except suspended jobs and those that can never run. The guards have their defaults:
        without guards, policies without a transitive order may exchange GPUs endlessly.
        """
        defaults = Options()
        guards = {"min_run_s": defaults.min_run_s, "cooldown_s": defaults.cooldown_s}
        self.tell(ev.OptionsChanged(at=self.now, options=guards))
        self.set_away(False)
        for name in sorted(self.lost_nodes | set(self.changed)):
            self.return_node(name)
        for name in self.nodes:
            self.cordon(name, False)
        for name in list(self.engine.query.foreign):
            self.foreign_gone(name)
        for _ in range(rounds):
            self.calm()
            if self.truth:
                self.finish(min(self.truth))
            elif self.wake < math.inf:
                self.pass_time(max(self.wake - self.now, 0.0))
            else:
                break
        state = state_of(self.engine)
        table = state.world.table
        for slot in table.order:
            excused = table.phase[slot] == Phase.SUSPENDED or int(table.reason[slot]) in EXCUSES
            name = state.world.ids[int(table.number[slot])]
            explanation = self.engine.explain(name)
            self._require(excused, f"{name} never ends: {explanation}; next wake {self.wake}, {state.last_rejection}")

    # --- invariants -------------------------------------------------------------------------------------------------

    def _check_devices(self) -> None:
        users: dict[Place, list[int]] = {}
        for number, (_, workers) in self.truth.items():
            for places in workers.values():
                for place in places:
                    users.setdefault(place, []).append(number)
        overcommitted = {place: who for place, who in users.items() if sum(self.part[number] for number in who) > 1000}
        self._require(not overcommitted, f"overcommitted devices: {overcommitted}")

    def check(self) -> None:
        """Check all invariants that hold between two events."""
        state = state_of(self.engine)
        self._require(state.refused == 0, state.last_rejection)
        violations = check_state(state.world, submitted=state.submitted, ended=state.ended)
        self._require(not violations, f"{violations[:3]}")
        table, world = state.world.table, state.world
        for plane in (world.target, world.held):
            places = whole_devices(world.inventory, plane, plane.devices_of(table.order))
            places = np.concatenate([places, plane.rows], axis=1)
            open_to = world.inventory.eligible[table.node_class[places[SLOT]], places[NODE]]
            self._require(bool(open_to.all()) or self.reopened, "a worker is on a node that is closed to its class")
        alive = set(self.active()) & set(self.ended)
        self._require(not alive, f"jobs {alive} are active after their end")
        for number, (_, workers) in self.truth.items():
            slot = int(table.find(np.array([number]))[0])
            if slot < 0:
                continue
            held = world.places(world.held, slot)
            keys = {
                (world.inventory.nodes[int(world.inventory.node_of[d])], world.inventory.device_id(int(d)))
                for d in held[DEVICE]
                if d >= 0
            }
            running = {place for places in workers.values() for place in places if place[0] not in self.lost_nodes}
            self._require(running <= keys, f"{world.ids[number]} runs on {running - keys}, unknown to the engine")
        for slot in table.order:
            if table.phase[slot] in (Phase.RUNNING, Phase.PENDING) and table.issued[slot]:
                self._require(False, f"slot {slot} is {Phase.name(int(table.phase[slot]))} with an operation out")

    def _require(self, ok: bool, text: str) -> None:
        if not ok:
            raise self._violation(text)

    def _violation(self, text: str) -> InvariantViolated:
        return InvariantViolated(text + "\n  " + "\n  ".join(self.history[-60:]))


def faulty_world(*gpus: int, policy: str = "elastic-fifo", **options: Any) -> FaultyWorld:
    """A world of nodes n0, n1, … with these numbers of v100 GPUs."""
    nodes = tuple(Node.of(f"n{i}", {"v100": count}) for i, count in enumerate(gpus))
    return FaultyWorld(policy=policy, nodes=nodes, **options)
