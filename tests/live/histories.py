"""Random job histories: a seed chooses nodes, policy, jobs, requests of users and faults, in the simulator.

The simulator decides when operations are complete and jobs end. Requests and faults come at random times and concern
jobs and nodes in the state that they have then, so that a server accepts every request.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.commands import Command
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.engine import Engine
from levada.live.manifest import prepare
from levada.perf import JobSpeed, TableModel
from levada.plugins import find_policy
from levada.sim.simulation import Costs, Simulation
from tests.live.live_server import document
from tests.live.recording import Features, Recorder, Step

_ERRATIC = f"{Path(__file__).with_name('erratic_policy.py')}:Erratic"
#: Each history begins with one of these, in turn.
POLICIES = (
    "elastic-fifo",
    "elastic-tiresias",
    "afs-l",
    "max_min_fairness_perf",
    "dragon",
    "gandiva",
    "max_min_fairness_packed",
    _ERRATIC,
    "elastic-srjf",
    "ffdl",
    "tiresias",
    "finish_time_fairness_perf",
    "max_min_fairness_water_filling_perf",
    "allox",
    "gavel-fifo_packed",
    "srjf",
    "fifo",
    "isolated",
    "dragon-compat",
    "min_total_duration_perf",
)
_BEGIN = 10_000.0
#: Requests and faults of a history; after the last one the history ends after this many more steps of the engine.
_ACTS, _MOST_STEPS = 48, 140
#: Equal nodes in equal racks, where placement has ties; and nodes that all differ.
_TWINS = tuple(
    Node.of(name, gpus, gpu_memory=16384, cpu=12000, memory=49152, labels={"rack": rack})
    for name, rack, gpus in (
        ("a", "r1", {"v100": 2}),
        ("b", "r1", {"v100": 2}),
        ("c", "r2", {"v100": 2}),
        ("d", "r2", {"v100": 2}),
        ("e", "r3", {"a100": 2}),
    )
)
_ODD = (
    Node.of("a", {"v100": 4}, gpu_memory=16384, cpu=16000, memory=65536, labels={"rack": "r1"}),
    Node.of("b", {"v100": 2, "a100": 2}, gpu_memory=16384, cpu=16000, memory=65536, labels={"rack": "r1"}),
    Node.of("c", {"a100": 3}, gpu_memory=40960, cpu=8000, memory=32768),
)


class Moment(NamedTuple):
    """The events of one time, and the number of steps of the engine up to the last that follows from them."""

    at: float
    events: tuple[ev.Event, ...]
    steps: int


class JobHistory(NamedTuple):
    """A script for a server, and the steps of the engine in the simulator."""

    policy: str
    options: dict[str, float]
    nodes: tuple[Node, ...]
    #: The documents of the jobs, by number.
    documents: list[dict[str, Any]]
    #: The first one has the events of a new server: policy, options, nodes.
    moments: list[Moment]
    steps: list[Step]
    features: dict[str, int]


def simulated(seed: int) -> JobHistory:
    """Write the history of *seed*."""
    return _HistoryWriter(seed).write()


class _FeatureRecorder(Recorder):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.features = Features()

    def record(self, events: Sequence[ev.Event], commands: Sequence[Command]) -> None:
        super().record(events, commands)
        self.features.observe(self.engine, events, commands)


class _HistoryWriter:
    """Runs the simulator and adds requests and faults to it."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(f"history/{seed}")
        self._policy = POLICIES[seed % len(POLICIES)]
        self._options = {
            "rate_limit_s": chance.choice([1.0, 15.0]),
            "min_run_s": chance.choice([0.0, 60.0]),
            "cooldown_s": chance.choice([0.0, 30.0]),
            "backoff_s": 20.0,
            "max_failures": 2,
            "op_timeout_s": 3000.0,
            "move_budget": chance.choice([0, 4]),
        }
        self._nodes = _TWINS if chance.random() < 0.5 else _ODD
        self._documents: list[dict[str, Any]] = []
        self._ids: list[str] = []
        self._lost: set[str] = set()
        self._closed: set[str] = set()
        self._engine = Engine(make_policy=find_policy)
        self._recorder = _FeatureRecorder(self._engine)
        self._moments: list[Moment] = []
        speeds = [
            # Types are numbered as nodes name them; 0 is the type of CPU jobs.
            JobSpeed(job=number, throughput={0: 0.5, 1: 1.0, 2: chance.choice([1.0, 2.0, 4.0])})
            for number in range(3 * _ACTS)
        ]
        costs = Costs(start_s=20.0, resize_s=5.0, stop_s=10.0)
        self._world = Simulation(self._engine, TableModel(speeds), costs, self._note, check_every=3)

    def _note(self) -> None:
        recorder = self._recorder
        for at, events in recorder.heard:
            self._moments.append(Moment(at, events, len(recorder.steps)))
        recorder.heard.clear()

    def write(self) -> JobHistory:
        first = (
            ev.PolicyChanged(at=_BEGIN, name=self._policy),
            ev.OptionsChanged(at=_BEGIN, options=self._options),
            ev.NodesAdded(at=_BEGIN, nodes=self._nodes),
            ev.Observed(at=_BEGIN, **_columns(number=[], generation=[], running=[])),
        )
        for event in first:
            self._world.add(event)
        now = _BEGIN + 1.0
        for _ in range(_ACTS):
            self._world.run(until=now)
            event = self._act(now)
            if event is not None:
                self._world.add(event)
            now += self._chance.expovariate(1 / 30.0)
        recorder = self._recorder
        self._world.run(until=now + 4000.0, done=lambda: len(recorder.steps) >= _MOST_STEPS)
        return JobHistory(
            self._policy,
            self._options,
            self._nodes,
            self._documents,
            self._moments,
            recorder.steps,
            recorder.features.counts,
        )

    # --- requests and faults ---------------------------------------------------------------------------------------

    def _act(self, now: float) -> ev.Event | None:
        """A random request or fault; None if it is not possible now."""
        query = self._engine.query
        slots = query.jobs.order.tolist()
        jobs = query.jobs
        numbers = [int(jobs.number[slot]) for slot in slots]
        running = [
            int(jobs.number[slot])
            for slot in slots
            if jobs.phase[slot] == Phase.RUNNING and jobs.op[slot] == OpKind.NONE and jobs.observed[slot] > 0
        ]
        busy = [int(jobs.number[slot]) for slot in slots if jobs.issued[slot] > 0]
        suspended = [int(jobs.number[slot]) for slot in slots if jobs.phase[slot] == Phase.SUSPENDED]
        up = [node.name for node in self._nodes if node.name not in self._lost]
        choices = {"submit": 4.0 if len(numbers) < 12 else 0.3, "policy": 0.25}
        choices |= {"cancel": 0.5, "suspend": 0.8, "scale": 0.9, "update": 0.6} if numbers else {}
        choices |= {"fail": 0.9, "lose worker": 0.5, "tell": 1.5} if running else {}
        choices |= {"refuse": 0.5} if busy else {}
        choices |= {"resume": 3.0} if suspended else {}
        choices |= {"lose": 0.7 if len(up) > 2 else 0.0, "cordon": 0.5, "drain": 0.5}
        choices |= {"return": 3.0} if self._lost else {}
        choices |= {"open": 3.0} if self._closed - self._lost else {}
        what = self._chance.choices(list(choices), list(choices.values()))[0]
        if what == "submit":
            return self._submit(now)
        if what == "policy":
            return ev.PolicyChanged(at=now, name=self._chance.choice(POLICIES[:7]), options={})
        if what in ("lose", "cordon", "drain", "return", "open"):
            return self._change_nodes(what, now)
        if what in ("fail", "lose worker", "tell", "refuse"):
            return self._report(what, self._chance.choice(busy if what == "refuse" else running), now)
        if what == "resume":
            return ev.JobsResumed(at=now, **_columns(number=[self._chance.choice(suspended)]))
        number = self._chance.choice(numbers)
        if what == "cancel":
            return ev.JobsCancelled(at=now, **_columns(number=[number]))
        if what == "suspend":
            if number in suspended:
                return None
            return ev.JobsSuspended(at=now, **_columns(number=[number]))
        return self._update(what, number, now)

    def _submit(self, now: float) -> ev.Event:
        """One job, or some at once, so that policies have ties to break."""
        user, jobs = self._chance.choice(["ann", "bob"]), []
        living = sorted(self._engine.query.ids)
        for _ in range(self._chance.choice([1, 1, 2, 3])):
            document = _document(self._chance, len(self._documents), user, living)
            (submission,) = prepare(document, user=user, now=now, suffix="aaaa")
            # Dependencies are by id, and a server has other ids.
            after = tuple(self._ids[int(name.split("-")[1])] for name in submission.job.after)
            jobs.append(msgspec.structs.replace(submission.job, after=after))
            self._documents.append(document)
            self._ids.append(submission.id)
        return ev.JobsSubmitted(at=now, jobs=JobBatch.of(jobs))

    def _report(self, what: str, number: int, now: float) -> ev.Event:
        """A report of the backend on a job with workers or an operation."""
        jobs = self._engine.query.jobs
        slot = int(jobs.find(np.array([number]))[0])
        rows = _columns(number=[number], generation=[int(jobs.generation[slot])])
        if what == "lose worker":
            left = int(jobs.observed[slot]) - 1
            return ev.WorkersFailed(at=now, **rows, **_columns(running=[left], index=[self._chance.randint(0, left)]))
        if what in ("fail", "refuse"):
            self._world.progress.pause(rows["number"], now)
            return (ev.JobsFailed if what == "fail" else ev.OperationFailed)(at=now, **rows)
        return self._chance.choice((ev.CheckpointSaved, ev.ResizesInPlace))(at=now, **rows)

    def _update(self, what: str, number: int, now: float) -> ev.Event | None:
        jobs = self._engine.query.jobs
        slot = int(jobs.find(np.array([number]))[0])
        if what == "update":
            update = ev.JobUpdate(number=number, priority=self._chance.randint(-1, 2))
            return ev.JobsUpdated(at=now, updates=(update,))
        size = int(jobs.step[slot]) * self._chance.randint(1, 4)
        update = ev.JobUpdate(number=number, fixed=size, force=True)
        change = ev.JobsUpdated(at=now, updates=(update,))
        if jobs.held[slot]:
            twin = self._engine.fork()
            twin.handle(change)
            then = twin.query.job(twin.query.ids[number])
            if then is None or not then.feasible or twin.query.most_workers(number) < size:
                return None  # a server rejects this size
        return change

    def _change_nodes(self, what: str, now: float) -> ev.Event:
        names = [node.name for node in self._nodes]
        up = [name for name in names if name not in self._lost]
        if what == "lose":
            name = self._chance.choice(up)
            self._lost.add(name)
            return ev.NodesLost(at=now, names=(name,))
        if what == "return":
            name = self._chance.choice(sorted(self._lost))
            self._lost.remove(name)
            (node,) = (node for node in self._nodes if node.name == name)
            return ev.NodesAdded(at=now, nodes=(node,))
        if what == "open":
            name = self._chance.choice(sorted(self._closed - self._lost))
            self._closed.remove(name)
            return ev.NodesCordoned(at=now, names=(name,), cordoned=False)
        name = self._chance.choice(up)
        self._closed.add(name)
        if what == "cordon":
            return ev.NodesCordoned(at=now, names=(name,), cordoned=True)
        return ev.NodesDrained(at=now, names=(name,), force=self._chance.random() < 0.5)


def _name(number: int) -> str:
    return f"job-{number:02d}"


def _columns(**columns: list[int]) -> dict[str, Any]:
    return {name: np.array(values, np.int64) for name, values in columns.items()}


def _document(chance: random.Random, number: int, user: str, living: Sequence[int]) -> dict[str, Any]:
    """The document of a random job."""
    least, step = chance.choice([1, 1, 1, 2, 3]), 1
    if chance.random() < 0.15:
        least = step = 2
    spec: dict[str, Any] = {
        "workers": {"min": least, "max": least + step * chance.choice([0, 1, 3, 5]), "step": step},
        "steps": chance.randint(100, 1500),
        "priority": chance.choice([0, 0, 0, 1]),
        "weight": chance.choice([1.0, 1.0, 2.0]),
        "retries": chance.choice([0, 1, 3]),
        "preemptible": chance.choice([True, True, True, "auto", False]),
        "checkpoint": {"gracePeriod": "5s"},
        "labels": {"user": user},
        "run": {"command": ["work", "1e9", "0", "plain"]},
    }
    kind = chance.random()
    if kind < 0.12:
        spec |= {"gpusPerWorker": 0, "resources": {"cpu": chance.choice([2, 5]), "memory": "1Gi"}}
    elif kind < 0.30:
        spec |= {"gpusPerWorker": chance.choice([0.25, 0.5, 0.7]), "gpuMemory": "4Gi"}
    elif kind < 0.40:
        spec |= {"gpusPerWorker": 2}
    elif kind < 0.55:
        spec |= {"resources": {"cpu": 3, "memory": "8Gi"}}
    elif kind < 0.67:
        spec |= {"parameterServers": {"replicas": chance.choice([1, 2]), "cpu": 2, "memory": "512Mi"}}
    if chance.random() < 0.3 and kind >= 0.12:
        spec["gpuTypes"] = chance.choice([["v100"], ["a100"], ["a100", "v100"]])
    if chance.random() < 0.02:
        spec["gpuTypes"] = ["k80"]
    if chance.random() < 0.08:
        spec["timeLimit"] = "100s"
    if chance.random() < 0.1 and living:
        spec["after"] = [_name(chance.choice(living))]
    return document(_name(number), **spec)
