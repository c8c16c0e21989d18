"""The engine: `handle` takes events and returns commands."""

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
from levada.engine import acks, drain, eligibility, foreign, job_events, node_events
from levada.engine.admission import update_feasibility
from levada.engine.commit import Rejected, commit
from levada.engine.eligibility import Unplaced
from levada.engine.explain import Explanation, explain
from levada.engine.faults import EngineFault, handle_isolated
from levada.engine.guards import visible, waiting
from levada.engine.operations import issue
from levada.engine.options import Options
from levada.engine.queries import Queries
from levada.engine.serving import make_room
from levada.engine.state import MakePolicy, State
from levada.engine.state_fields import copied
from levada.engine.timers import fire_timers
from levada.perf import Beliefs, Estimator
from levada.placement.placer import Packer
from levada.policies import registry
from levada.policies.fifo import Fifo
from levada.policies.queued import QueuedState, queued
from levada.tables.cluster_state import ClusterState
from levada.tables.snapshot import NO_ROWS

#: Event times beyond this come from a broken clock.
_END_OF_TIME_S = 1e12


class Engine:
    """Owner of all job state. The same events give the same commands."""

    #: Roll back faults, at the cost of a copy of the state per call; otherwise faults are raised.
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
        inner = make_policy(policy, policy_options or {})
        world = ClusterState(cluster, queues)
        beliefs = perf if perf is not None else Estimator()
        beliefs.attach(world.workloads, world.inventory.types)
        self._state = State(world, queued(inner), make_policy, beliefs, options, seed)
        self._state.policy_named, self._state.policy_options = policy, policy_options or {}
        #: All read access from outside the package.
        self.query = Queries(self._state)

    # --- events -----------------------------------------------------------------------------------------------------

    def mark(self) -> Engine:
        """Fork. The next `handle` rolls back faults to the fork's state, so neither engine may change until then."""
        twin = self.fork()
        self._mark = twin._state
        return twin

    def handle(self, *events: ev.Event) -> list[Command]:
        """Apply events and return the commands that follow, in order. Invalid events change nothing.

        A fault (an unexpected exception in a handler) is rolled back and reported as `Faulted`; without `undo_faults`
        it is raised as `EngineFault`.
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
        except Exception as error:
            if before is None:
                names = ", ".join(type(event).__name__ for event in events)
                raise EngineFault(f"{names} at {state.now} s: {type(error).__name__}: {error}") from error
            failed = before, error
        if failed is not None:
            handle_isolated(self, events, *failed)
        commands, state.commands = state.commands, []
        return commands

    # --- steps of `handle` ------------------------------------------------------------------------------------------

    def advance(self, event: ev.Event) -> None:
        """Count the event and advance the clock."""
        state, at = self._state, event.at
        state.revision += 1
        if _is_time(at) and abs(at) < _END_OF_TIME_S and at > state.now:
            state.now = at

    def apply(self, event: ev.Event) -> None:
        """Apply an event to the state; an invalid event changes nothing."""
        try:
            if not _is_time(event.at):
                raise ev.InvalidEvent(f"{event.at!r} is not a time")
            _HANDLERS[type(event)](self, event)
        except ev.InvalidEvent as why:
            self._state.refused += 1
            self._state.last_rejection = f"{type(event).__name__}: {why}"

    def ring(self) -> None:
        """Handle timers that are due."""
        state = self._state
        if state.now >= state.next_alarm or state.reservations:
            fire_timers(state)

    def drain(self) -> None:
        """Stop jobs on draining nodes that may be stopped."""
        if self._state.world.inventory.draining:
            drain.leave(self._state)

    def issue(self) -> None:
        """Issue operations whose devices are free, unless the backend is unreachable."""
        if self._state.may_issue and self._state.away_since is None:
            self._state.may_issue = False
            issue(self._state)

    def ask(self) -> None:
        """Emit `Decide` if a decision is due, and `Wake` for the next due time."""
        state = self._state
        due = state.decision_due() if state.deciding is None else math.inf
        commands: list[Command] = []
        if due <= state.now:
            commands, due = self._decide(), math.inf
        self._set_wake(due)
        # `Decide` comes last: a shell may answer it inline, and its results must follow the other commands.
        state.commands += commands

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decide(self) -> list[Command]:
        state = self._state
        if state.lessons or state.pauses or state.over:
            state.learn()
        if state.world.foreign:
            foreign.recount_contested(state)
            if not state.policy.by_node:
                make_room(state)
        trusted = state.asked_policy = state.rejections < state.options.max_rejections
        fill = state.fill_only = state.fill_only if state.redecisions else trusted and self._is_fill_only()
        view, firm = (waiting(state), NO_ROWS) if fill else visible(state)
        if state.most_placed:
            view, firm = eligibility.in_view(state, view, firm)
        table = eligibility.shown_table(state, view)
        state.dirty = state.acked = state.turnover = False
        state.policy_wake = math.inf
        state.deciding = state.revision
        state.last_decided = state.now
        state.in_view = state.world.table.number.take(view)
        policy = state.policy if trusted else queued(Fifo())
        return [
            Decide(
                revision=state.revision,
                snapshot=state.world.snapshot(
                    state.now, view, revision=state.revision, fill=fill, firm=firm, table=table
                ),
                policy=policy,
                perf=state.perf,
                state=state.policy_state if trusted else policy.initial(state.seed),
            )
        ]

    def _is_fill_only(self) -> bool:
        """Whether this decision needs only pending jobs, because nothing else has changed."""
        state = self._state
        others_at = min(state.heed_at, state.policy_wake, state.guard_wake)
        return state.fills and not state.dirty and state.now < others_at

    def _decided(self, event: ev.Decided) -> None:
        state = self._state
        if event.revision != state.deciding:
            state.stale_results += 1
            return
        try:
            # The FIFO fill returns a state of its own, which the policy cannot restore.
            policy_state = self._restored(event.state) if state.asked_policy else None
            placer = Packer(highest_first=state.options.highest_first)
            commit(state, placer, event.decision)
        except Rejected as why:
            self.reject(str(why))
            return
        except Unplaced as unplaced:
            eligibility.decide_again(state, unplaced.most)
            return
        eligibility.settled(state)
        state.deciding = None
        if state.asked_policy:
            state.rejections = 0
            state.policy_state = policy_state
        # A time in the past would cause an endless loop of decisions.
        state.policy_wake = event.decision.wake_at if event.decision.wake_at > state.now else math.inf
        state.heed_at, state.fills = event.decision.heed_at, event.decision.fills
        foreign.reserve(state, event.decision.reservations)
        if event.decision.binds:
            state.commands.append(BindPods(binds=event.decision.binds))

    def _restored(self, policy_state: Any) -> Any:
        """The state of the policy. An exception here is an error of the policy, not a fault of the engine."""
        if isinstance(policy_state, QueuedState):
            return policy_state
        try:
            return self._state.policy.restored(policy_state)
        except Exception as error:
            raise Rejected(f"its state cannot be restored: {type(error).__name__}: {error}") from error

    def _decide_failed(self, event: ev.DecideFailed) -> None:
        if event.revision != self._state.deciding:
            self._state.stale_results += 1
            return
        self.reject(event.why)

    def _restarted(self, _event: ev.Restarted) -> None:
        """Forget the pending decision and the wake-up time: the shell that knew them is gone.

        A shell restarts only with a backend that it can reach.
        """
        self._state.away_since = None
        acks.restart_timeouts(self._state)
        eligibility.settled(self._state)
        self._state.deciding = None
        self._state.dirty = True
        self._state.told_wake = math.inf

    def reject(self, why: str) -> None:
        """Reject the pending decision: grants stay as they are, the next attempt comes after a backoff."""
        state, table = self._state, self._state.world.table
        asked, state.deciding = state.deciding or 0, None
        eligibility.settled(state)
        state.rejections += 1
        state.last_rejection = why
        state.next_try = state.now + state.backoff(0, state.rejections)
        if state.rejections == state.options.max_rejections:
            state.next_try = state.now  # the FIFO fill takes over without a backoff
        state.heed_at = -math.inf
        slots = table.find(state.in_view)
        slots = slots[slots >= 0]
        # Jobs that changed since the snapshot, e.g. were set aside, have a better reason.
        waits = slots[(table.phase[slots] == Phase.PENDING) & (table.count[slots] == 0)]
        waits = waits[(table.changed[waits] <= asked) & (table.aside[waits] == 0)]
        state.set_reason(waits, Code.REJECTED)
        state.dirty = True

    def _set_wake(self, due: float) -> None:
        """Emit `Wake` if the next due time has changed; *due* is that of the next decision."""
        state = self._state
        wake = min(due, state.next_alarm)
        if state.reservations:
            wake = min(wake, foreign.next_expiry(state))
        if state.told_wake <= state.now:
            state.told_wake = math.inf
        if wake == state.told_wake:
            return
        state.told_wake = wake
        state.commands.append(Wake(at=wake))

    # --- settings ---------------------------------------------------------------------------------------------------

    def _policy_changed(self, event: ev.PolicyChanged) -> None:
        state = self._state
        try:
            policy = queued(state.make_policy(event.name, event.options))
            policy_state = policy.initial(state.seed)
        except Exception as error:
            # User-defined policies may raise anything. The current policy stays.
            raise ev.InvalidEvent(f"policy {event.name}: {error}") from error
        state.policy, state.policy_named, state.policy_options = policy, event.name, event.options
        state.policy_state = policy_state
        self._discard_decision()

    def _options_changed(self, event: ev.OptionsChanged) -> None:
        state = self._state
        try:
            merged = {**msgspec.to_builtins(state.options), **event.options}
            state.options = msgspec.convert(merged, Options)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise ev.InvalidEvent(str(error)) from error
        state.reset_rejections()

    def _queues_changed(self, event: ev.QueuesChanged) -> None:
        state = self._state
        faults = queue_faults(event.queues)
        if faults:
            raise ev.InvalidEvent("; ".join(f"queue {name}: {text}" for name, text in faults))
        state.world.set_queues(event.queues)
        update_feasibility(state, state.living())
        state.reset_rejections()

    def _prices_changed(self, event: ev.PricesChanged) -> None:
        if not isinstance(event.prices, Mapping):
            raise ev.InvalidEvent("prices must be a mapping from GPU type to price")
        try:
            self._state.world.set_prices(event.prices)
        except ValueError as error:
            raise ev.InvalidEvent(str(error)) from error
        self._state.dirty = True

    def _beliefs_changed(self, _event: ev.BeliefsChanged) -> None:
        self._state.dirty = True

    def _discard_decision(self) -> None:
        """Ignore the pending decision and the rejections of the previous policy."""
        state = self._state
        state.deciding = None
        eligibility.settled(state)
        state.rejections = 0
        state.next_try = state.heed_at = -math.inf
        state.policy_wake = math.inf
        state.dirty = True

    # --- reads ------------------------------------------------------------------------------------------------------

    def explain(self, job_id: str) -> Explanation:
        """Why a job waits or has its size, what would change that, and which jobs are ahead of it."""
        return explain(self._state, job_id, self.query.reason(job_id))

    def ops(self, plan: Plan) -> list[Op]:
        """The operations of a plan that was just issued, as objects for a backend."""
        world, table = self._state.world, self._state.world.table
        inventory, operations = world.inventory, []
        slots = table.find(plan.number)

        def names(devices: Ints) -> tuple[tuple[str, str], ...]:
            return tuple((inventory.nodes[int(inventory.node_of[d])], inventory.device_id(int(d))) for d in devices)

        for row, slot in enumerate(slots):
            kind = int(plan.kind[row])
            if slot < 0:
                continue
            operations.append(
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
        return operations

    def outstanding(self) -> list[Op]:
        """Issued operations without an acknowledgement, for a backend that may not have received them."""
        world, table = self._state.world, self._state.world.table
        slots = self._state.living()
        operations = []
        for slot in slots[table.issued[slots] > 0].tolist():
            kind = int(table.op[slot])
            if kind != OpKind.STOP and table.count[slot] == 0:
                continue  # the job must stop meanwhile; its stop is issued after this operation
            number = int(table.number[slot])
            operations.append(
                Op(
                    job=world.ids[number],
                    number=number,
                    kind=kind,
                    generation=int(table.generation[slot]),
                    grant=None if kind == OpKind.STOP else world.grant(world.target, slot),
                    batch=int(table.batch[slot]),
                )
            )
        return operations

    # --- copies -----------------------------------------------------------------------------------------------------

    def fork(self) -> Engine:
        """An independent copy, including the policy state, in O(active jobs + devices)."""
        return Engine.of(copied(self._state))

    @staticmethod
    def of(state: State) -> Engine:
        """An engine that takes ownership of *state*."""
        engine = Engine.__new__(Engine)
        engine._state, engine.query, engine.undo_faults = state, Queries(state), False
        return engine

    def swap(self, other: Engine) -> None:
        """Exchange state with a fork, to undo or redo the events since."""
        self._state.swap(other._state)

    def assume(self, **options: float) -> None:
        """Change options of a fork without an event, so that no new decision becomes due."""
        self._state.options = msgspec.structs.replace(self._state.options, **options)

    # --- beliefs ----------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Pass pending observations to the throughput model."""
        self._state.learn()

    def attach(self, model: Beliefs) -> None:
        """Share the numbers of workloads and GPU types with *model*."""
        model.attach(self._state.world.workloads, self._state.world.inventory.types)

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """Pass measured rates of jobs that share devices to the throughput model, one row of *rates* per pair."""
        self._state.perf.observe_pairs(a, b, gpu_types, sizes, rates)


def _is_time(at: object) -> bool:
    return type(at) is float or isinstance(at, float | int)


_HANDLERS: dict[type, Callable[[Engine, Any], None]] = {
    ev.JobsSubmitted: lambda engine, event: job_events.submitted(engine._state, event),
    ev.JobsUpdated: lambda engine, event: job_events.updated(engine._state, event),
    ev.JobsCancelled: lambda engine, event: job_events.cancelled(engine._state, event),
    ev.JobsSuspended: lambda engine, event: job_events.suspended(engine._state, event),
    ev.JobsResumed: lambda engine, event: job_events.resumed(engine._state, event),
    ev.WorkersStarted: lambda engine, event: job_events.workers_seen(engine._state, event),
    ev.WorkersStopped: lambda engine, event: job_events.workers_seen(engine._state, event),
    ev.WorkersFailed: lambda engine, event: job_events.workers_failed(engine._state, event),
    ev.JobsFinished: lambda engine, event: job_events.finished(engine._state, event),
    ev.JobsLeft: lambda engine, event: job_events.left(engine._state, event),
    ev.JobsFailed: lambda engine, event: job_events.failed(engine._state, event),
    ev.Progress: lambda engine, event: job_events.progress(engine._state, event),
    ev.CheckpointSaved: lambda engine, event: job_events.checkpoint_saved(engine._state, event),
    ev.SavesOnStop: lambda engine, event: job_events.saves_on_stop(engine._state, event),
    ev.ResizesInPlace: lambda engine, event: job_events.resizes_in_place(engine._state, event),
    ev.ResizeModes: lambda engine, event: job_events.resize_modes(engine._state, event),
    ev.JobsRestarted: lambda engine, event: job_events.restarted(engine._state, event),
    ev.Observed: lambda engine, event: job_events.observed(engine._state, event),
    ev.NodesAdded: lambda engine, event: node_events.put(engine._state, event),
    ev.NodesChanged: lambda engine, event: node_events.put(engine._state, event),
    ev.NodesCordoned: lambda engine, event: node_events.cordoned(engine._state, event),
    ev.NodesDrained: lambda engine, event: drain.drained(engine._state, event),
    ev.NodesLost: lambda engine, event: node_events.lost(engine._state, event),
    ev.NodesRemoved: lambda engine, event: node_events.removed(engine._state, event),
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
    ev.BackendAway: lambda engine, _event: acks.backend_away(engine._state),
    ev.BackendBack: lambda engine, _event: acks.backend_back(engine._state),
    ev.Restarted: Engine._restarted,
    ev.Tick: lambda engine, event: None,
}
