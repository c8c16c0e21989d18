"""An unreliable world around the engine: commands and reports get lost, come twice, late and in any order.

`Chaos` knows the truth, which the engine only hears of: what really runs where. After every step it checks that two
jobs never really use one device, that the engine knows of everything that runs, and the rules that must always hold.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.commands import Apply, BindPods, Command, Decide, Faulted, JobsEnded, StopStray, Wake
from levada.core.job import Job, Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.plan import OpKind
from levada.core.plane import DEVICE
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.engine import Engine, Options, answer
from levada.tables.invariants import check_state
from tests.engine.inspect import state_of

Place = tuple[str, str]

#: Why a job may wait for ever in a kind world (a job it comes after may, too).
EXCUSES = (
    *(Code.TOO_LARGE, Code.UNKNOWN_TYPE, Code.SET_ASIDE, Code.QUEUE_LIMIT, Code.USER_LIMIT),
    *(Code.DEPENDENCY, Code.DEPENDENCY_FAILED),
)


class Broken(AssertionError):
    """A rule does not hold; the text tells the story."""


class Chaos:
    """Engine, truth, and the wire between them."""

    def __init__(self, policy: str = "elastic-fifo", nodes: tuple[Node, ...] = (), **options: Any) -> None:
        settings = {"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0, "op_timeout_s": 60.0, **options}
        self.nodes = {node.name: node for node in nodes}
        self.engine = Engine(cluster=Cluster(nodes=nodes), policy=policy, options=Options(**settings))
        self.engine.undo_faults = False  # a fault of the engine is one of the test
        self.now = 0.0
        self.story: list[str] = []
        #: What really runs: job number to (generation, workers by index: places).
        self.truth: dict[int, tuple[int, dict[int, tuple[Place, ...]]]] = {}
        #: Operations that have not reached the backend, and reports that have not reached the engine.
        self.ops: list[Any] = []
        #: What each job that runs has of every device it is on.
        self.part: dict[int, int] = {}
        self.reports: list[ev.Event] = []
        self.thoughts: list[Decide] = []
        self.lost_nodes: set[str] = set()
        #: Devices that are left of a machine that has lost some.
        self.changed: dict[str, set[str]] = {}
        self.ended: list[int] = []
        #: How they ended.
        self.phases: dict[int, int] = {}
        self.generations: dict[int, int] = {}
        self.over: set[int] = set()
        self.wake = math.inf
        self.jobs_made = 0
        self.decisions = 0

    # --- the engine's side ------------------------------------------------------------------------------------------

    def tell(self, *events: ev.Event) -> None:
        """Gives events to the engine, obeys it, and looks whether all is well."""
        self.story += [type(event).__name__ for event in events]
        self._obey(self.engine.handle(*events))
        self._demand(self.wake > self.now, f"the engine wants to be woken at {self.wake}; it is {self.now}")
        self.check()

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Apply):
                ops = self.engine.ops(command.plan)
                self.story += [f"{OpKind.name(op.kind)} {op.job} g{op.generation} {op.adds} -{op.drops}" for op in ops]
                self.ops += ops
            elif isinstance(command, Decide):
                self.thoughts.append(command.detached())
            elif isinstance(command, JobsEnded):
                again = set(command.number.tolist()) & set(self.ended)
                self._demand(not again, f"jobs {again} ended twice")
                self.ended += command.number.tolist()
                self.phases.update(zip(command.number.tolist(), command.phase.tolist(), strict=True))
            elif isinstance(command, Wake):
                self.wake = command.at
            elif isinstance(command, StopStray):
                for number in command.number:
                    self.truth.pop(number, None)
            elif isinstance(command, Faulted):
                raise self._broken(command.traceback)
            else:
                assert isinstance(command, BindPods)

    # --- what users do ----------------------------------------------------------------------------------------------

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

    # --- what the world does ----------------------------------------------------------------------------------------

    def think(self, which: int = 0, *, fail: bool = False, spoil: Any = None) -> None:
        """The policy answers, perhaps late, perhaps badly."""
        command = self.thoughts.pop(which % len(self.thoughts))
        self.decisions += 1
        if fail:
            self.tell(ev.DecideFailed(at=self.now, revision=command.revision, why="it broke"))
            return
        decided = answer(command, self.now)
        if isinstance(decided, ev.DecideFailed):
            raise Broken(f"the policy broke: {decided.why}")
        self.tell(spoil(decided) if spoil is not None else decided)

    def carry_out(self, which: int = 0, *, lose: bool = False, fail: bool = False) -> None:
        """The backend gets an operation, or it is lost on the way, or it fails."""
        op = self.ops.pop(which % len(self.ops))
        if lose:
            self.story.append(f"lost: {OpKind.name(op.kind)} {op.job} g{op.generation}")
            return
        names = {"number": np.array([op.number]), "generation": np.array([op.generation])}
        if op.number in self.over:
            # What is done is never begun again; the backend answers that it is done.
            self.reports.append(ev.JobsFinished(at=self.now, **names))
            return
        if op.generation < self.generations.get(op.number, 0):
            return  # the backend refuses what is out of date
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
        self._no_device_twice()
        self.reports += [ev.Released(at=self.now, **names), ev.Running(at=self.now, **names)]

    def _names_gone(self, op: Any) -> bool:
        return any(self._is_gone(place.node, place.devices) for place in op.grant.places)

    def _is_gone(self, node: str, devices: tuple[str, ...]) -> bool:
        return node in self.lost_nodes or not set(devices) <= self.changed.get(node, set(devices))

    def deliver(self, which: int = 0, *, lose: bool = False, twice: bool = False) -> None:
        """A report reaches the engine: in any order, not at all, or twice."""
        report = self.reports.pop(which % len(self.reports))
        if lose:
            self.story.append(f"lost: {type(report).__name__}")
            return
        if twice:
            self.reports.append(report)
        self.tell(self._now(report))

    def _now(self, event: Any) -> ev.Event:
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        return type(event)(**{**fields, "at": self.now})

    def finish(self, number: int) -> None:
        """A job that really runs is done."""
        generation, _ = self.truth.pop(number)
        self.over.add(number)
        self.tell(ev.JobsFinished(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def save(self, number: int) -> None:
        """A job that really runs has saved a checkpoint."""
        generation = np.array([self.truth[number][0]])
        self.tell(ev.CheckpointSaved(at=self.now, number=np.array([number]), generation=generation))

    def break_job(self, number: int) -> None:
        """A job that really runs breaks."""
        generation, _ = self.truth.pop(number)
        self.tell(ev.JobsFailed(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def leave(self, number: int) -> None:
        """A job that really runs leaves by itself, with a checkpoint."""
        generation, _ = self.truth.pop(number)
        self.tell(ev.JobsLeft(at=self.now, number=np.array([number]), generation=np.array([generation])))

    def break_worker(self, number: int, which: int) -> None:
        """One worker of a job that really runs is lost; what it had is free."""
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
        """A machine dies with all that runs on it."""
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
        """A machine has only its first devices now; what ran on the others is dead."""
        whole = self.nodes[name]
        left = whole.devices[:devices]
        kept = {device.id for device in left}
        for number, (generation, workers) in list(self.truth.items()):
            alive = {i: p for i, p in workers.items() if all(node != name or device in kept for node, device in p)}
            if alive:
                self.truth[number] = (generation, alive)
            else:
                self.truth.pop(number)
        self.changed[name] = kept
        self.lost_nodes.discard(name)
        self.tell(ev.NodesChanged(at=self.now, nodes=(msgspec.structs.replace(whole, devices=left),)))

    def paused(self, number: int, seconds: float) -> None:
        """A job tells how long it stood still for a resize."""
        told = {"number": np.array([number]), "generation": np.array([self.truth[number][0]])}
        self.tell(ev.Paused(at=self.now, seconds=np.array([seconds]), **told))

    def cordon(self, name: str, cordoned: bool) -> None:
        self.tell(ev.NodesCordoned(at=self.now, names=(name,), cordoned=cordoned))

    def drain(self, name: str, force: bool = False) -> None:
        self.tell(ev.NodesDrained(at=self.now, names=(name,), force=force))

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
        """The backend says all that runs."""
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
        """Everything on the wire arrives, in order, while no time passes; it must come to an end."""
        began = len(self.story)
        while self.ops or self.reports or self.thoughts:
            self._demand(len(self.story) < began + 4000, "the engine does not come to rest though no time passes")
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
        """The code of its reason."""
        return self.engine.explain(name).reason.code

    def sizes(self) -> dict[str, int]:
        """Workers of every active job, as it should be."""
        state = state_of(self.engine)
        table = state.world.table
        return {state.world.ids[int(table.number[s])]: int(table.count[s]) for s in table.order}

    def settle(self, rounds: int = 600) -> None:
        """From here on the world is kind: everything arrives, machines are back, others are gone, running jobs finish.

        Then every job must end, but for those that wait for their user or could never run. The guards are those that
        everybody has by default: without any, rules that are not transitive may trade GPUs in a circle.
        """
        usual = Options()
        guards = {"min_run_s": usual.min_run_s, "cooldown_s": usual.cooldown_s}
        self.tell(ev.OptionsChanged(at=self.now, options=guards))
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
            told = self.engine.explain(name)
            self._demand(excused, f"{name} never ends: {told}; next wake {self.wake}, {state.last_rejection}")

    # --- the rules --------------------------------------------------------------------------------------------------

    def _no_device_twice(self) -> None:
        users: dict[Place, list[int]] = {}
        for number, (_, workers) in self.truth.items():
            for places in workers.values():
                for place in places:
                    users.setdefault(place, []).append(number)
        beyond = {place: who for place, who in users.items() if sum(self.part[number] for number in who) > 1000}
        self._demand(not beyond, f"devices used beyond what there is: {beyond}")

    def check(self) -> None:
        """All that must hold between two events."""
        state = state_of(self.engine)
        self._demand(state.refused == 0, state.last_rejection)
        violations = check_state(state.world, submitted=state.submitted, ended=state.ended)
        self._demand(not violations, f"{violations[:3]}")
        table, world = state.world.table, state.world
        alive = set(self.active()) & set(self.ended)
        self._demand(not alive, f"jobs {alive} came back from the dead")
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
            really = {place for places in workers.values() for place in places if place[0] not in self.lost_nodes}
            self._demand(really <= keys, f"{world.ids[number]} runs on {really - keys}, which the engine does not know")
        for slot in table.order:
            if table.phase[slot] in (Phase.RUNNING, Phase.PENDING) and table.issued[slot]:
                self._demand(False, f"slot {slot} is {Phase.name(int(table.phase[slot]))} with an operation out")

    def _demand(self, ok: bool, text: str) -> None:
        if not ok:
            raise self._broken(text)

    def _broken(self, text: str) -> Broken:
        return Broken(text + "\n  " + "\n  ".join(self.story[-60:]))


def desk(*gpus: int, policy: str = "elastic-fifo", **options: Any) -> Chaos:
    """A world of nodes n0, n1, … with so many v100 each."""
    nodes = tuple(Node.of(f"n{i}", {"v100": count}) for i, count in enumerate(gpus))
    return Chaos(policy=policy, nodes=nodes, **options)
