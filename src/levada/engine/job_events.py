"""Handlers of events about jobs: requests of users and reports of workers."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from levada.core.assignment import INDEX, NODE
from levada.core.batch import JobBatch
from levada.core.commands import StopStray
from levada.core.events import (
    CheckpointSaved,
    JobsCancelled,
    JobsFailed,
    JobsFinished,
    JobsLeft,
    JobsRestarted,
    JobsResumed,
    JobsSubmitted,
    JobsSuspended,
    JobsUpdated,
    Observed,
    Progress,
    ResizeModes,
    ResizesInPlace,
    SavesOnStop,
    WorkersFailed,
    WorkersStarted,
    WorkersStopped,
)
from levada.core.job import LARGEST_PRIORITY, LARGEST_SIZE, Phase, Preemptible
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints, one_or_many
from levada.engine.admission import update_feasibility
from levada.engine.completion import end, stopped
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State
from levada.engine.worker_loss import lose_workers, restart, withdraw_operation
from levada.perf import Observations
from levada.tables.job_table import ANY_LOSS, SAVES_ON_STOP
from levada.tables.new_jobs import IMPOSSIBLE, NewJobs

#: A voluntary exit is early if the job has run for less than this.
_EARLY_S = 60.0


def submitted(state: State, event: JobsSubmitted) -> None:
    """Add new jobs as pending; jobs whose id is already active are ignored."""
    world, table = state.world, state.world.table
    slots = world.add_jobs(_with_valid_times(event.jobs, state.now))
    state.submitted += len(slots)
    if not len(slots):
        return
    at = one_or_many(slots)
    numbers = table.number[slots]
    for slot in slots.tolist():
        if table.submitted.item(slot) < state.now:
            table.since[slot] = state.now
    if event.jobs.after:
        _add_dependencies(state, event.jobs, numbers)
    state.perf.bind(numbers, table.workload[at])
    update_feasibility(state, slots)
    _set_aside_invalid(state, slots)
    table.changed[at] = state.revision
    state.turnover = True


def _add_dependencies(state: State, jobs: JobBatch, numbers: Ints) -> None:
    """Record the dependencies of new jobs, which have these *numbers*."""
    world, new = state.world, set(numbers.tolist())
    for row, names in jobs.after.items():
        number = world.numbers[jobs.id[row]]
        if number not in new:
            continue
        slot = int(world.table.find(np.array([number]))[0])
        # A dependency that is not active has succeeded: the server rejects dependencies on failed jobs.
        dependencies = sorted({world.numbers[name] for name in names if name in world.numbers} - {number})
        for dependency in dependencies:
            state.dependents.setdefault(dependency, []).append(number)
        world.table.waits_for[slot] = len(dependencies)


def _with_valid_times(jobs: JobBatch, now: float) -> JobBatch:
    """*jobs*, with the submission time *now* where it is not finite."""
    if isinstance(jobs.columns, NewJobs) and jobs.columns.timely:
        return jobs
    submitted = jobs.columns.get("submitted")
    if submitted is None or all(map(math.isfinite, submitted.tolist())):
        return jobs
    columns = {**jobs.columns, "submitted": np.where(np.isfinite(submitted), submitted, now)}
    return msgspec.structs.replace(jobs, columns=columns)


def _set_aside_invalid(state: State, slots: Ints) -> None:
    """Give invalid jobs, which the server should have rejected, the reason `invalid`; they never start."""
    table = state.world.table
    if IMPOSSIBLE not in table.aside[slots].tolist():
        return
    invalid = slots[table.aside[slots] == IMPOSSIBLE]
    # Valid values, so that computations over all jobs do not fail.
    for column in (table.min, table.max, table.own_min, table.own_max, table.desired, table.step, table.weight):
        column[invalid] = 1
    state.set_reason(invalid, Code.INVALID)


def updated(state: State, event: JobsUpdated) -> None:
    """Apply changes by users; an update that results in an invalid job is ignored."""
    world, table = state.world, state.world.table
    for update in event.updates:
        for slot in state.active_slots(np.array([update.number])):
            low = int(table.own_min[slot]) if update.min is None else update.min
            high = int(table.own_max[slot]) if update.max is None else update.max
            fixed = int(table.fixed[slot]) if update.min is None and update.max is None else 0
            fixed = fixed if update.fixed is None else update.fixed
            if fixed:
                low, high = min(low, fixed), max(high, fixed)
            weight = float(table.weight[slot]) if update.weight is None else update.weight
            desired = int(table.desired[slot]) if update.desired is None else update.desired
            priority = int(table.priority[slot]) if update.priority is None else update.priority
            preemptible = int(table.preemptible[slot]) if update.preemptible is None else update.preemptible
            whole = all(isinstance(number, int) for number in (low, high, desired, priority, fixed, preemptible))
            if not (whole and 1 <= low <= high <= LARGEST_SIZE and 0 < weight < float("inf")):
                continue
            if abs(priority) > LARGEST_PRIORITY or fixed < 0 or preemptible not in Preemptible.numbers():
                continue
            table.own_min[slot], table.own_max[slot], table.weight[slot] = low, high, weight
            resized = update.min is not None or update.max is not None or update.fixed is not None
            if resized:
                # A running job keeps its size until there is capacity for a larger one.
                table.fixed[slot], table.below_fixed[slot] = fixed, 0 < table.held[slot] < fixed
                table.min[slot], table.max[slot] = (fixed, fixed) if fixed else (low, high)
            table.desired[slot] = max(int(table.min[slot]), min(int(table.max[slot]), desired))
            table.priority[slot], table.preemptible[slot] = priority, preemptible
            table.accepts_loss[slot] = int(update.force) if resized else table.accepts_loss[slot]
            if update.queue is not None:
                table.queue_name[slot] = world.queue_names.add(update.queue)
                table.queue[slot] = world.queue_number(update.queue)
            one = np.array([slot])
            _clear_failures(state, one)
            update_feasibility(state, one)
            state.touch(one)


def cancelled(state: State, event: JobsCancelled) -> None:
    """Cancel jobs: at once if they hold no devices, else after a stop. Finished jobs stay finished."""
    slots = state.active_slots(event.number)
    _stop_for(state, slots[state.world.table.intent[slots] != Intent.SUCCEED], Intent.CANCEL)


def suspended(state: State, event: JobsSuspended) -> None:
    """Stop jobs until their user resumes them. Jobs that are being cancelled stay cancelled."""
    table = state.world.table
    slots = state.active_slots(event.number)
    slots = slots[(table.phase[slots] != Phase.SUSPENDED) & (table.intent[slots] <= Intent.SUSPEND)]
    _stop_for(state, slots, Intent.SUSPEND)


def resumed(state: State, event: JobsResumed) -> None:
    """Make suspended jobs, and jobs set aside, pending again."""
    table = state.world.table
    slots = state.active_slots(event.number)
    _clear_failures(state, slots)
    back = slots[table.phase[slots] == Phase.SUSPENDED]
    state.account(back)
    table.phase[back] = Phase.PENDING
    state.set_reason(back, Code.NEW, 1)
    update_feasibility(state, back)
    stopping = slots[table.intent[slots] == Intent.SUSPEND]
    table.intent[stopping] = Intent.WAIT
    state.touch(slots)


def _clear_failures(state: State, slots: Ints) -> None:
    """Consider jobs again that were set aside after failures."""
    table = state.world.table
    aside = slots[table.aside[slots] == 1]
    table.aside[aside] = 0
    table.failures[aside] = 0
    table.retry_at[aside] = 0.0
    state.set_reason(aside[table.phase[aside] == Phase.PENDING], Code.NEW, 1)


def _stop_for(state: State, slots: Ints, intent: int) -> None:
    table = state.world.table
    state.clear_targets(slots, intent)
    idle = slots[table.held[slots] == 0]
    if len(idle):
        stopped(state, idle)
    busy = slots[np.isin(slots, idle, invert=True)]
    table.retry_at[busy] = np.minimum(table.retry_at[busy], state.now)
    plan_operations(state, busy)


def finished(state: State, event: JobsFinished) -> None:
    """End jobs as succeeded; workers of a newer generation are stopped first."""
    slots = state.active_slots(event.number)
    if event.generation is not None:
        reports = zip(state.world.table.find(event.number).tolist(), event.generation.tolist(), strict=True)
        newer = [slot for slot, generation in reports if _may_run_newer(state, slot, generation)]
        if newer:
            for slot in newer:
                _withdraw_if_issued(state, slot)
            _stop_for(state, np.array(newer, np.int64), Intent.SUCCEED)
            slots = slots[np.isin(slots, newer, invert=True)]
    end(state, slots, Phase.SUCCEEDED, Code.FINISHED)


def _may_run_newer(state: State, slot: int, generation: int) -> bool:
    """Whether workers of a newer generation than this ended one may run."""
    table = state.world.table
    if slot < 0 or generation >= table.generation[slot] or not table.held[slot]:
        return False
    # An issued stop or a failed operation adds no workers to the last running generation.
    only_stops = not table.issued[slot] or table.op[slot] == OpKind.STOP
    return not (table.ran[slot] == generation and only_stops and not table.unsure[slot])


def _withdraw_if_issued(state: State, slot: int) -> None:
    table = state.world.table
    if table.issued[slot] and table.op[slot] != OpKind.STOP:
        withdraw_operation(state, slot)


def _ended_runs(state: State, event: JobsLeft | JobsFailed) -> list[int]:
    """Slots of the jobs whose run ended; releases the devices that no newer operation may use.

    An end counts once. It also counts after a newer operation was issued, which is withdrawn: an observation may have
    missed the end of the run, or the operation and the report may have crossed.
    """
    table = state.world.table
    ended: list[int] = []
    for slot, generation in zip(table.find(event.number).tolist(), event.generation.tolist(), strict=True):
        current = slot >= 0 and generation == table.generation[slot] and table.held[slot] > 0
        if slot < 0 or slot in ended or not (current or 0 < generation == table.ran[slot]):
            continue
        ended.append(slot)
        if not current and _may_run_newer(state, slot, generation):
            _withdraw_if_issued(state, slot)
        elif current or not table.issued[slot]:
            state.world.clear_workers(state.world.held, slot)
        if table.phase[slot] == Phase.SUSPENDED:
            table.intent[slot] = Intent.SUSPEND  # suspended by its user after it seemed to be gone
    return ended


def left(state: State, event: JobsLeft) -> None:
    """Restart jobs that exited voluntarily with a checkpoint; early exits cause a growing backoff."""
    table = state.world.table
    for slot in _ended_runs(state, event):
        number = int(table.number[slot])
        early = state.now - float(table.started[slot]) < _EARLY_S
        state.leaves[number] = state.leaves.get(number, 0) + 1 if early else 1
        one = np.array([slot])
        state.account(one)
        if table.intent[slot] == Intent.WAIT and _is_out_of_time(state, one)[0]:
            table.intent[slot] = Intent.TIME_LIMIT  # reached while no server was running to stop it
        restart(state, slot, Code.LEFT)


def failed(state: State, event: JobsFailed) -> None:
    """Restart failed jobs from their checkpoint, or end them if no retries remain."""
    for slot in _ended_runs(state, event):
        restart(state, slot, Code.RESTARTING)


def workers_seen(state: State, event: WorkersStarted | WorkersStopped) -> None:
    """Update the number of running workers, on which accounting is based."""
    table = state.world.table
    slots, rows = state.current(event.number, event.generation)
    state.account(slots)
    table.observed[slots] = np.clip(event.running[rows], 0, table.held[slots])
    state.set_timer(state.now + float((table.time_limit[slots] - table.running_s[slots]).min(initial=np.inf)))


def workers_failed(state: State, event: WorkersFailed) -> None:
    """Handle lost workers: the job shrinks if its framework tolerates that, else it restarts."""
    slots, rows = state.current(event.number, event.generation)
    for slot, row in zip(slots, rows, strict=True):
        places = state.world.places(state.world.held, int(slot))
        lost = places[:, places[INDEX] == event.index[row]]
        if lost.shape[1]:
            lose_workers(state, int(slot), lost[INDEX], lost[NODE], Code.RESTARTING)


def progress(state: State, event: Progress) -> None:
    """Update the progress of jobs and queue observations of their speed."""
    table = state.world.table
    slots, steps = table.find(event.number), event.steps
    valid = (slots >= 0) & (steps >= 0) & (steps < math.inf)
    if not valid.all():
        slots, steps = slots[valid], steps[valid]
    if state.perf.learns:
        complete = (table.observed[slots] > 0) & (table.observed[slots] == table.held[slots])
        running = slots[complete]
        milli = table.milli[running]
        # The model has rates of whole GPUs and assumes that a fraction of a GPU has that fraction of the rate.
        fraction = np.where((milli > 0) & (milli < WHOLE), milli / WHOLE, 1.0)
        state.note(
            Observations(
                workload=table.workload[running],
                gpu_type=table.held_type[running],
                workers=table.held[running],
                seconds=state.now - table.reported[running],
                steps=(steps[complete] - table.steps_done[running]) / fraction,
                at=np.full(len(running), state.now),
                warm=table.reported[running] > table.resized[running],
            )
        )
    table.steps_done[slots] = steps
    table.reported[slots] = state.now


def checkpoint_saved(state: State, event: CheckpointSaved) -> None:
    """Note that jobs can restart from a checkpoint of this run."""
    _may_be_stopped(state, event, 1)


def saves_on_stop(state: State, event: SavesOnStop) -> None:
    """Note that jobs save a checkpoint when they are asked to stop."""
    _may_be_stopped(state, event, SAVES_ON_STOP)


def _may_be_stopped(state: State, event: CheckpointSaved | SavesOnStop, why: int) -> None:
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    # Only the first checkpoint needs a decision: some jobs save every few seconds.
    slots = slots[(table.held[slots] > 0) & (table.saved[slots] == 0)]
    table.saved[slots] = why
    state.dirty |= bool(len(slots))


def resizes_in_place(state: State, event: ResizesInPlace) -> None:
    """Note that jobs can resize in place, which gives the policy more options."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    slots = slots[(table.held[slots] > 0) & (table.resizes_in_place[slots] != ANY_LOSS)]
    table.resizes_in_place[slots] = ANY_LOSS
    state.dirty |= bool(len(slots))


def resize_modes(state: State, event: ResizeModes) -> None:
    """Set how the backend resizes these jobs."""
    table = state.world.table
    slots = table.find(event.number)
    rows = (slots >= 0).nonzero()[0]
    table.resizes_in_place[slots[rows]] = event.in_place[rows] > 0
    state.dirty |= bool(len(rows))


def restarted(state: State, event: JobsRestarted) -> None:
    """Count restarts of all workers; a checkpoint of the previous workers does not count for the new ones."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    slots = slots[table.held[slots] > 0]
    table.restarts[slots] += 1
    table.saved[slots] = 0


def observed(state: State, event: Observed) -> None:
    """Reconcile with the jobs that the backend runs: restart missing jobs, stop unknown ones."""
    table = state.world.table
    slots = table.find(event.number)
    stray = event.number[slots < 0].tolist()
    known = (slots >= 0).nonzero()[0]
    old = known[event.generation[known] != table.generation[slots[known]]]
    stray += event.number[old][table.held[slots[old]] == 0].tolist()
    seen = known[event.generation[known] == table.generation[slots[known]]]
    state.account(slots[seen])
    table.observed[slots[seen]] = np.clip(event.running[seen], 0, table.held[slots[seen]])
    living = state.living()
    # Jobs with an operation in progress may not run yet.
    settled = (table.op[living] == OpKind.NONE) & (table.unsure[living] == 0)
    expected = living[(table.held[living] > 0) & settled]
    # A job that the backend knows but that has no running worker is missing, too.
    running = np.concatenate([slots[old], slots[seen[event.running[seen] > 0]]])
    missing = expected[~np.isin(expected, running)]
    for slot in missing:
        one = np.array([slot])
        state.set_reason(one, Code.INTERRUPTED)
        state.clear_targets(one, int(table.intent[slot]))
        stopped(state, one)
    if stray:
        state.commands.append(StopStray(number=tuple(sorted({int(number) for number in stray}))))


def time_limits(state: State) -> None:
    """Stop and fail jobs that have reached their time limit."""
    table = state.world.table
    slots = state.living()
    limited = slots[(table.time_limit[slots] < np.inf) & (table.held[slots] > 0) & (table.intent[slots] == Intent.WAIT)]
    if not len(limited):
        return
    state.account(limited)
    over = limited[_is_out_of_time(state, limited)]
    if len(over):
        _stop_for(state, over, Intent.TIME_LIMIT)


def _is_out_of_time(state: State, slots: Ints) -> Bools:
    """Which of these jobs have reached their time limit, according to their accounts."""
    table = state.world.table
    # Rounding may leave sums just below the limit, and the timer would fire forever.
    return np.asarray(table.running_s[slots] >= table.time_limit[slots] - 1e-6)
