"""The engine: `handle` takes what happened and says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from levada.core import events as ev
from levada.core.cluster import Cluster
from levada.core.commands import BindPods, Command, Decide, Wake
from levada.core.job import Phase
from levada.core.plan import Op, OpKind, Plan
from levada.core.queue import Queue
from levada.core.queue import faults_of as queue_faults
from levada.core.reasons import Code
from levada.core.types import Floats, Ints
from levada.engine import acks, drains, foreign, jobs, nodes
from levada.engine.admit import judge_feasibility
from levada.engine.alarms import ring
from levada.engine.commit import Rejected, commit
from levada.engine.explain import Explanation, explain
from levada.engine.faults import EngineFault, handle_isolated
from levada.engine.guards import visible, waiting
from levada.engine.operations import issue
from levada.engine.options import Options
from levada.engine.parts import copied
from levada.engine.queries import Queries
from levada.engine.serving import make_room
from levada.engine.state import MakePolicy, State
from levada.perf import Beliefs, Estimator
from levada.placement.placer import Packer
from levada.policies import registry
from levada.policies.fifo import Fifo
from levada.policies.queued import QueueState, queued
from levada.tables.snapshot import NO_ROWS
from levada.tables.world import World

#: An event that is said to happen beyond this, in seconds from the beginning, is one whose clock is broken.
_END_OF_TIME_S = 1e12


class Engine:
    """Owner of all job state. Same events, same commands."""

    #: Faults are undone, at the price of a copy of the state per call; otherwise they are raised.
    undo_faults = True
    _mark: State | None = None

    def __init__(
        self,
        *,
        cluster: Cluster = Cluster(),  # noqa: B008 frozen default
        policy: str = "elastic-fifo",
        policy_options: Mapping[str, Any] | None = None,
        queues: Iterable[Queue] = (),
        options: Options = Options(),  # noqa: B008 frozen default
        perf: Beliefs | None = None,
        seed: int = 0,
        make_policy: MakePolicy = registry.make,
    ) -> None:
        made = make_policy(policy, policy_options or {})
        world = World(cluster, queues)
        beliefs = perf if perf is not None else Estimator()
        beliefs.attach(world.workloads, world.inventory.types)
        self._state = State(world, queued(made), make_policy, beliefs, options, seed)
        self._state.policy_named, self._state.policy_options = policy, policy_options or {}
        #: Everything that others may read of it.
        self.query = Queries(self)

    # --- the one entrance -------------------------------------------------------------------------------------------

    def mark(self) -> Engine:
        """A fork. The next `handle` undoes faults with its state: nothing may change either one until then."""
        twin = self.fork()
        self._mark = twin._state
        return twin

    def handle(self, *events: ev.Event) -> list[Command]:
        """What to do after these events, in this order. Never raises for anything an event says.

        A fault (an exception that no handler expects) is undone and told by a `Faulted`; without `undo_faults` it is
        raised as `EngineFault`.
        """
        state = self._state
        state.commands = []
        mark, self._mark = self._mark, None
        before = (mark or copied(state)) if self.undo_faults else None
        failed = None
        try:
            for event in events:
                self.advance(event)
                self.apply(event)
            self.ring()
            self.drain()
            self.issue()
            self.ask()
        except Exception as broken:
            if before is None:
                names = ", ".join(type(event).__name__ for event in events)
                raise EngineFault(f"{names} at {state.now} s: {type(broken).__name__}: {broken}") from broken
            failed = before, broken
        if failed is not None:
            handle_isolated(self, events, *failed)
        commands, state.commands = state.commands, []
        return commands

    # --- the steps of it --------------------------------------------------------------------------------------------

    def advance(self, event: ev.Event) -> None:
        """Counts the event and moves the clock."""
        state = self._state
        state.revision += 1
        if _is_time(event.at) and abs(event.at) < _END_OF_TIME_S:
            state.now = max(state.now, event.at)

    def apply(self, event: ev.Event) -> None:
        """Changes the state as the event says; one that makes no sense changes nothing."""
        try:
            if not _is_time(event.at):
                raise ev.InvalidEvent(f"{event.at!r} is no time")
            _HANDLERS[type(event)](self, event)
        except ev.InvalidEvent as why:
            self._state.refused += 1
            self._state.last_rejection = f"{type(event).__name__}: {why}"

    def ring(self) -> None:
        """Does what is due by time."""
        state = self._state
        if state.now >= state.next_alarm or state.reservations:
            ring(state)

    def drain(self) -> None:
        """Lets jobs leave nodes that are being drained."""
        if self._state.world.inventory.draining:
            drains.leave(self._state)

    def issue(self) -> None:
        """Sends out operations that may go."""
        if self._state.may_issue:
            self._state.may_issue = False
            issue(self._state)

    def ask(self) -> None:
        """Asks the policy where a decision is due; asks to be woken otherwise."""
        state = self._state
        due = self._due_at() if state.deciding is None else math.inf
        question: list[Command] = []
        if due <= state.now:
            question, due = self._question(), math.inf
        self._tell_wake(due)
        # Last of all: a shell may answer it on the spot, and what follows from that must not come before the rest.
        state.commands += question

    # --- decisions --------------------------------------------------------------------------------------------------

    def _due_at(self) -> float:
        """When the next decision is due; infinite when nothing asks for one."""
        state = self._state
        cadence = state.policy.cadence
        asks = min(state.policy_wake, state.guard_wake)
        # Without a time of its own (at first, or after a rejection) every policy waits for events.
        if cadence.on_events or state.policy_wake == math.inf:
            # That operations were done matters where some job had to be left out for one, or to who looks at nodes.
            if state.dirty or (state.acked and (state.left_out or (state.policy.by_node and cadence.on_acks))):
                asks = state.now
            elif state.turnover:
                asks = state.now if state.heed_at <= state.now or state.could_fill() else min(asks, state.heed_at)
        if asks == math.inf:
            return math.inf
        earliest = max(asks, state.last_decided + state.options.rate_limit_s, state.next_try)
        grid = cadence.grid_s
        return math.ceil(earliest / grid) * grid if grid > 0 else earliest

    def _question(self) -> list[Command]:
        """What to ask the policy."""
        state = self._state
        if state.lessons or state.pauses or state.over:
            state.learn()
        if state.world.foreign and not state.policy.by_node:
            make_room(state)
        trusted = state.asked_policy = state.rejections < state.options.max_rejections
        fill = trusted and self._fills()
        view, firm = (waiting(state), NO_ROWS) if fill else visible(state)
        state.dirty = state.acked = state.turnover = False
        state.policy_wake = math.inf
        state.deciding = state.revision
        state.last_decided = state.now
        state.in_view = state.world.table.number.take(view)
        policy = state.policy if trusted else queued(Fifo())
        return [
            Decide(
                revision=state.revision,
                snapshot=state.world.snapshot(state.now, view, revision=state.revision, fill=fill, firm=firm),
                policy=policy,
                perf=state.perf,
                state=state.policy_state if trusted else policy.initial(state.seed),
            )
        ]

    def _fills(self) -> bool:
        """Whether only jobs that wait need be thought of, for nothing happened that touches others."""
        state = self._state
        others_at = min(state.heed_at, state.policy_wake, state.guard_wake)
        return state.fills and not state.dirty and state.now < others_at

    def _decided(self, event: ev.Decided) -> None:
        state = self._state
        if event.revision != state.deciding:
            state.stale_results += 1
            return
        try:
            # What the FIFO fill remembers in its place is not the policy's to restore.
            memory = self._remembered(event.state) if state.asked_policy else None
            placer = Packer(highest_first=state.options.highest_first)
            commit(state, placer, event.decision)
        except Rejected as why:
            self.reject(str(why))
            return
        state.deciding = None
        if state.asked_policy:
            state.rejections = 0
            state.policy_state = memory
        # A time that has come already would have it asked again at once, for ever.
        state.policy_wake = event.decision.wake_at if event.decision.wake_at > state.now else math.inf
        state.heed_at, state.fills = event.decision.heed_at, event.decision.fills
        foreign.reserve(state, event.decision.reservations)
        if event.decision.binds:
            state.commands.append(BindPods(binds=event.decision.binds))

    def _remembered(self, memory: Any) -> Any:
        """The policy's memory. An exception here is an error of the policy, not a fault of the engine."""
        if isinstance(memory, QueueState):
            return memory
        try:
            return self._state.policy.restored(memory)
        except Exception as broken:
            raise Rejected(f"its state cannot be restored: {type(broken).__name__}: {broken}") from broken

    def _decide_failed(self, event: ev.DecideFailed) -> None:
        if event.revision != self._state.deciding:
            self._state.stale_results += 1
            return
        self.reject(event.why)

    def _restarted(self, _event: ev.Restarted) -> None:
        """Nobody will answer what was asked before."""
        acks.ask_again(self._state)
        self._state.deciding = None
        self._state.dirty = True
        # Whoever was told of a time to wake has forgotten it.
        self._state.told_wake = math.inf

    def reject(self, why: str) -> None:
        """Grants stay as they are, and the next try comes after a pause."""
        state, table = self._state, self._state.world.table
        asked, state.deciding = state.deciding or 0, None
        state.rejections += 1
        state.last_rejection = why
        state.next_try = state.now + state.backoff(0, state.rejections)
        if state.rejections == state.options.max_rejections:
            # Plain FIFO takes over at once: it needs no second thought.
            state.next_try = state.now
        state.heed_at = -math.inf
        slots = table.find(state.in_view)
        slots = slots[slots >= 0]
        # Of a job that has changed since (it was set aside, say) there is more to tell.
        waits = slots[(table.phase[slots] == Phase.PENDING) & (table.count[slots] == 0)]
        waits = waits[(table.changed[waits] <= asked) & (table.aside[waits] == 0)]
        state.say(waits, Code.REJECTED)
        state.dirty = True

    def _tell_wake(self, due: float) -> None:
        """Asks to be woken when a decision is *due*, or something else is."""
        state = self._state
        wake = min(due, state.next_alarm)
        if state.reservations:
            wake = min(wake, foreign.next_expiry(state))
        if state.told_wake <= state.now:
            state.told_wake = math.inf  # that one has come
        if wake == state.told_wake:
            return
        state.told_wake = wake
        state.commands.append(Wake(at=wake))

    # --- settings ---------------------------------------------------------------------------------------------------

    def _policy_changed(self, event: ev.PolicyChanged) -> None:
        state = self._state
        try:
            policy = queued(state.make_policy(event.name, event.options))
            memory = policy.initial(state.seed)
        except Exception as broken:  # an error of the policy
            state.last_rejection = str(broken)
            return
        state.policy, state.policy_named, state.policy_options = policy, event.name, event.options
        state.policy_state = memory
        self._forget_thought()

    def _options_changed(self, event: ev.OptionsChanged) -> None:
        state = self._state
        try:
            merged = {**msgspec.to_builtins(state.options), **event.options}
            state.options = msgspec.convert(merged, Options)
        except (msgspec.ValidationError, TypeError, ValueError) as broken:
            state.last_rejection = str(broken)
            return
        state.give_another_chance()

    def _queues_changed(self, event: ev.QueuesChanged) -> None:
        state = self._state
        faults = queue_faults(event.queues)
        if faults:
            state.last_rejection = "; ".join(f"queue {name}: {text}" for name, text in faults)
            return
        state.world.set_queues(event.queues)
        judge_feasibility(state, state.living())
        state.give_another_chance()

    def _prices_changed(self, event: ev.PricesChanged) -> None:
        if not isinstance(event.prices, Mapping):
            raise ev.InvalidEvent("prices must be given by type")
        try:
            self._state.world.set_prices(event.prices)
        except ValueError as bad:
            raise ev.InvalidEvent(str(bad)) from bad
        self._state.dirty = True

    def _beliefs_changed(self, _event: ev.BeliefsChanged) -> None:
        self._state.dirty = True

    def _forget_thought(self) -> None:
        """A policy that is thinking about the past need not finish; a new one starts with a clean slate."""
        state = self._state
        state.deciding = None
        state.rejections = 0
        state.next_try = state.heed_at = -math.inf
        state.policy_wake = math.inf
        state.dirty = True

    # --- questions --------------------------------------------------------------------------------------------------

    def explain(self, job_id: str) -> Explanation:
        """Why a job waits or has its size, what would have to change, and which jobs stand before it."""
        return explain(self._state, job_id)

    def ops(self, plan: Plan) -> list[Op]:
        """The operations of a plan that has just been issued, as objects for a backend."""
        world, table = self._state.world, self._state.world.table
        inventory, made = world.inventory, []
        slots = table.find(plan.number)

        def names(devices: Ints) -> tuple[tuple[str, str], ...]:
            return tuple((inventory.nodes[int(inventory.node_of[d])], inventory.device_id(int(d))) for d in devices)

        for row, slot in enumerate(slots):
            kind = int(plan.kind[row])
            if slot < 0:
                continue
            made.append(
                Op(
                    job=world.ids[int(plan.number[row])],
                    number=int(plan.number[row]),
                    kind=kind,
                    generation=int(plan.generation[row]),
                    grant=None if kind == OpKind.STOP else world.grant(world.target, int(slot)),
                    adds=names(plan.adds(row)),
                    drops=names(plan.drops(row)),
                    batch=int(table.batch[slot]),
                )
            )
        return made

    def outstanding(self) -> list[Op]:
        """Operations that are out and not acknowledged, for a backend that may not have heard of them."""
        world, table = self._state.world, self._state.world.table
        slots = self._state.living()
        made = []
        for slot in slots[table.issued[slots] > 0].tolist():
            kind = int(table.op[slot])
            if kind != OpKind.STOP and table.count[slot] == 0:
                continue  # it shall stop by now: that goes out when this one is over
            number = int(table.number[slot])
            made.append(
                Op(
                    job=world.ids[number],
                    number=number,
                    kind=kind,
                    generation=int(table.generation[slot]),
                    grant=None if kind == OpKind.STOP else world.grant(world.target, slot),
                    batch=int(table.batch[slot]),
                )
            )
        return made

    # --- copies -----------------------------------------------------------------------------------------------------

    def fork(self) -> Engine:
        """An independent copy, policy state and all, in O(active jobs + devices)."""
        return Engine.of(copied(self._state))

    @staticmethod
    def of(state: State) -> Engine:
        """The engine that owns *state* from now on."""
        engine = Engine.__new__(Engine)
        engine._state, engine.query, engine.undo_faults = state, Queries(engine), False
        return engine

    def swap(self, other: Engine) -> None:
        """Exchange state with a fork, to take back what was handled since, or to redo it."""
        self._state, other._state = other._state, self._state

    def assume(self, **options: float) -> None:
        """Change options of a fork without an event: nothing is decided anew for it."""
        self._state.options = msgspec.structs.replace(self._state.options, **options)

    # --- beliefs ----------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Let beliefs catch up with what was seen."""
        self._state.learn()

    def attach(self, model: Beliefs) -> None:
        """Share the numbers of workloads and GPU types with *model*."""
        model.attach(self._state.world.workloads, self._state.world.inventory.types)

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """Let beliefs know how fast jobs are that share devices, one row of *rates* for each pair."""
        self._state.perf.observe_pairs(a, b, gpu_types, sizes, rates)


def _is_time(at: object) -> bool:
    return type(at) is float or isinstance(at, float | int)


_HANDLERS: dict[type, Callable[[Engine, Any], None]] = {
    ev.JobsSubmitted: lambda engine, event: jobs.submitted(engine._state, event),
    ev.JobsUpdated: lambda engine, event: jobs.updated(engine._state, event),
    ev.JobsCancelled: lambda engine, event: jobs.cancelled(engine._state, event),
    ev.JobsSuspended: lambda engine, event: jobs.suspended(engine._state, event),
    ev.JobsResumed: lambda engine, event: jobs.resumed(engine._state, event),
    ev.WorkersStarted: lambda engine, event: jobs.workers_seen(engine._state, event),
    ev.WorkersStopped: lambda engine, event: jobs.workers_seen(engine._state, event),
    ev.WorkersFailed: lambda engine, event: jobs.workers_failed(engine._state, event),
    ev.JobsFinished: lambda engine, event: jobs.finished(engine._state, event),
    ev.JobsLeft: lambda engine, event: jobs.left(engine._state, event),
    ev.JobsFailed: lambda engine, event: jobs.failed(engine._state, event),
    ev.Progress: lambda engine, event: jobs.progress(engine._state, event),
    ev.CheckpointSaved: lambda engine, event: jobs.checkpoint_saved(engine._state, event),
    ev.SavesOnStop: lambda engine, event: jobs.saves_on_stop(engine._state, event),
    ev.ResizesInPlace: lambda engine, event: jobs.resizes_in_place(engine._state, event),
    ev.ResizeModes: lambda engine, event: jobs.resize_modes(engine._state, event),
    ev.JobsRestarted: lambda engine, event: jobs.restarted(engine._state, event),
    ev.Observed: lambda engine, event: jobs.observed(engine._state, event),
    ev.NodesAdded: lambda engine, event: nodes.put(engine._state, event),
    ev.NodesChanged: lambda engine, event: nodes.put(engine._state, event),
    ev.NodesCordoned: lambda engine, event: nodes.cordoned(engine._state, event),
    ev.NodesDrained: lambda engine, event: drains.drained(engine._state, event),
    ev.NodesLost: lambda engine, event: nodes.lost(engine._state, event),
    ev.NodesRemoved: lambda engine, event: nodes.removed(engine._state, event),
    ev.ForeignAppeared: lambda engine, event: foreign.appeared(engine._state, event),
    ev.ForeignGone: lambda engine, event: foreign.gone(engine._state, event),
    ev.ReservationExpired: lambda engine, event: foreign.expired(engine._state, event),
    ev.Released: lambda engine, event: acks.released(engine._state, event),
    ev.Running: lambda engine, event: acks.running(engine._state, event),
    ev.OperationFailed: lambda engine, event: acks.failed(engine._state, event),
    ev.OperationTimedOut: lambda engine, event: acks.timed_out(engine._state, event),
    ev.Paused: lambda engine, event: acks.paused(engine._state, event),
    ev.PolicyChanged: Engine._policy_changed,
    ev.OptionsChanged: Engine._options_changed,
    ev.QueuesChanged: Engine._queues_changed,
    ev.PricesChanged: Engine._prices_changed,
    ev.BeliefsChanged: Engine._beliefs_changed,
    ev.Decided: Engine._decided,
    ev.DecideFailed: Engine._decide_failed,
    ev.Restarted: Engine._restarted,
    ev.Tick: lambda engine, event: None,
}
