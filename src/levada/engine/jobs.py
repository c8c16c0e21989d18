"""What users and workers do to jobs."""

from __future__ import annotations

import math

import msgspec
import numpy as np

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
from levada.core.plane import INDEX, NODE
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints, one_or_many
from levada.engine.admit import judge_feasibility
from levada.engine.ends import end, stopped
from levada.engine.losses import lose_workers, restart, withdraw_operation
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State
from levada.perf import Observations
from levada.tables.jobtable import ANY_LOSS, SAVES_ON_STOP
from levada.tables.newcomers import IMPOSSIBLE, Newcomers

#: A job that leaves by itself before it has run so long has left early.
_EARLY_S = 60.0


def submitted(state: State, event: JobsSubmitted) -> None:
    """New jobs wait; a job whose id is active already changes nothing."""
    world, table = state.world, state.world.table
    slots = world.add_jobs(_timely(event.jobs, state.now))
    state.submitted += len(slots)
    if not len(slots):
        return
    at = one_or_many(slots)
    numbers = table.number[slots]
    for slot in slots.tolist():
        if table.submitted.item(slot) < state.now:
            table.since[slot] = state.now
    if event.jobs.after:
        _note_dependencies(state, event.jobs, numbers)
    state.perf.bind(numbers, table.workload[at])
    judge_feasibility(state, slots)
    _put_aside_impossible(state, slots)
    table.changed[at] = state.revision
    state.turnover = True


def _note_dependencies(state: State, jobs: JobBatch, numbers: Ints) -> None:
    """New jobs, with these *numbers*, wait for those that they come after."""
    world, fresh = state.world, set(numbers.tolist())
    for row, names in jobs.after.items():
        number = world.numbers[jobs.id[row]]
        if number not in fresh:
            continue
        slot = int(world.table.find(np.array([number]))[0])
        # A job that is not active has succeeded: whoever submits refuses to wait for one that has not.
        before = sorted({world.numbers[name] for name in names if name in world.numbers} - {number})
        for other in before:
            state.dependents.setdefault(other, []).append(number)
        world.table.waits_for[slot] = len(before)


def _timely(jobs: JobBatch, now: float) -> JobBatch:
    """These jobs; those that came at no time came now."""
    if isinstance(jobs.columns, Newcomers) and jobs.columns.timely:
        return jobs
    submitted = jobs.columns.get("submitted")
    if submitted is None or all(map(math.isfinite, submitted.tolist())):
        return jobs
    columns = {**jobs.columns, "submitted": np.where(np.isfinite(submitted), submitted, now)}
    return msgspec.structs.replace(jobs, columns=columns)


def _put_aside_impossible(state: State, slots: Ints) -> None:
    """Jobs that whoever submitted them should have refused wait for ever, with that reason, and harm nobody."""
    table = state.world.table
    if IMPOSSIBLE not in table.aside[slots].tolist():
        return
    bad = slots[table.aside[slots] == IMPOSSIBLE]
    # Nothing that scans all jobs shall stumble over them.
    for column in (table.min, table.max, table.own_min, table.own_max, table.desired, table.step, table.weight):
        column[bad] = 1
    state.say(bad, Code.INVALID)


def updated(state: State, event: JobsUpdated) -> None:
    """Users change what their jobs ask for; an update that would leave no valid range changes nothing of its job."""
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
            asked = int(table.desired[slot]) if update.desired is None else update.desired
            priority = int(table.priority[slot]) if update.priority is None else update.priority
            preemptible = int(table.preemptible[slot]) if update.preemptible is None else update.preemptible
            whole = all(isinstance(number, int) for number in (low, high, asked, priority, fixed, preemptible))
            if not (whole and 1 <= low <= high <= LARGEST_SIZE and 0 < weight < float("inf")):
                continue
            if abs(priority) > LARGEST_PRIORITY or fixed < 0 or preemptible not in Preemptible.numbers():
                continue
            table.own_min[slot], table.own_max[slot], table.weight[slot] = low, high, weight
            resized = update.min is not None or update.max is not None or update.fixed is not None
            if resized:
                # One that runs goes on as it is until there is room for a larger size.
                table.fixed[slot], table.below_fixed[slot] = fixed, 0 < table.held[slot] < fixed
                table.min[slot], table.max[slot] = (fixed, fixed) if fixed else (low, high)
            table.desired[slot] = max(int(table.min[slot]), min(int(table.max[slot]), asked))
            table.priority[slot], table.preemptible[slot] = priority, preemptible
            table.accepts_loss[slot] = int(update.force) if resized else table.accepts_loss[slot]
            if update.queue is not None:
                table.queue_name[slot] = world.queue_names.add(update.queue)
                table.queue[slot] = world.queue_number(update.queue)
            one = np.array([slot])
            _forgive(state, one)
            judge_feasibility(state, one)
            state.touch(one)


def cancelled(state: State, event: JobsCancelled) -> None:
    """Jobs that hold nothing are over at once; the others stop first. One that is done stays so."""
    slots = state.active_slots(event.number)
    _stop_for(state, slots[state.world.table.intent[slots] != Intent.SUCCEED], Intent.CANCEL)


def suspended(state: State, event: JobsSuspended) -> None:
    """Jobs stop and wait for their user. One that is being cancelled stays so."""
    table = state.world.table
    slots = state.active_slots(event.number)
    slots = slots[(table.phase[slots] != Phase.SUSPENDED) & (table.intent[slots] <= Intent.SUSPEND)]
    _stop_for(state, slots, Intent.SUSPEND)


def resumed(state: State, event: JobsResumed) -> None:
    """Suspended jobs, and jobs set aside, wait for their turn again."""
    table = state.world.table
    slots = state.active_slots(event.number)
    _forgive(state, slots)
    back = slots[table.phase[slots] == Phase.SUSPENDED]
    state.account(back)
    table.phase[back] = Phase.PENDING
    state.say(back, Code.NEW)
    judge_feasibility(state, back)
    changed_mind = slots[table.intent[slots] == Intent.SUSPEND]
    table.intent[changed_mind] = Intent.WAIT
    state.touch(slots)


def _forgive(state: State, slots: Ints) -> None:
    """Jobs set aside for their failures get another chance."""
    table = state.world.table
    again = slots[table.aside[slots] == 1]
    table.aside[again] = 0
    table.failures[again] = 0
    table.retry_at[again] = 0.0
    state.say(again[table.phase[again] == Phase.PENDING], Code.NEW)


def _stop_for(state: State, slots: Ints, intent: int) -> None:
    table = state.world.table
    state.wants_stop(slots, intent)
    idle = slots[table.held[slots] == 0]
    if len(idle):
        stopped(state, idle)
    busy = slots[np.isin(slots, idle, invert=True)]
    table.retry_at[busy] = np.minimum(table.retry_at[busy], state.now)
    plan_operations(state, busy)


def finished(state: State, event: JobsFinished) -> None:
    """Jobs have succeeded, whatever was under way; what may run of a newer generation stops first."""
    slots = state.active_slots(event.number)
    if event.generation is not None:
        told = zip(state.world.table.find(event.number).tolist(), event.generation.tolist(), strict=True)
        newer = [slot for slot, generation in told if _may_run_newer(state, slot, generation)]
        if newer:
            for slot in newer:
                _withdraw_if_out(state, slot)
            _stop_for(state, np.array(newer, np.int64), Intent.SUCCEED)
            slots = slots[np.isin(slots, newer, invert=True)]
    end(state, slots, Phase.SUCCEEDED, Code.FINISHED)


def _may_run_newer(state: State, slot: int, generation: int) -> bool:
    """Whether workers of a newer generation than this one, which has ended, may run."""
    table = state.world.table
    if slot < 0 or generation >= table.generation[slot] or not table.held[slot]:
        return False
    # A stop that is out, or an operation that failed, adds no workers to the generation that ran last.
    only_stops = not table.issued[slot] or table.op[slot] == OpKind.STOP
    return not (table.ran[slot] == generation and only_stops and not table.unsure[slot])


def _withdraw_if_out(state: State, slot: int) -> None:
    table = state.world.table
    if table.issued[slot] and table.op[slot] != OpKind.STOP:
        withdraw_operation(state, slot)


def _ended_runs(state: State, event: JobsLeft | JobsFailed) -> list[int]:
    """Slots of the jobs whose run ended as *event* says; what they held and nothing uses any more is free.

    An end counts once, and also after a newer operation went out, which is withdrawn: an observation may have missed
    the end of a run, or the operation and the end may have crossed on the wire.
    """
    table = state.world.table
    found = []
    for slot, generation in zip(table.find(event.number).tolist(), event.generation.tolist(), strict=True):
        current = slot >= 0 and generation == table.generation[slot] and table.held[slot] > 0
        if slot < 0 or slot in found or not (current or 0 < generation == table.ran[slot]):
            continue
        found.append(slot)
        if not current and _may_run_newer(state, slot, generation):
            _withdraw_if_out(state, slot)
        elif current or not table.issued[slot]:
            state.world.clear_workers(state.world.held, slot)
        if table.phase[slot] == Phase.SUSPENDED:
            table.intent[slot] = Intent.SUSPEND  # its user suspended it after it was taken for gone
    return found


def left(state: State, event: JobsLeft) -> None:
    """Jobs saved and left by themselves: they start again, after pauses that grow while they do so early."""
    table = state.world.table
    for slot in _ended_runs(state, event):
        number = int(table.number[slot])
        early = state.now - float(table.started[slot]) < _EARLY_S
        state.leaves[number] = state.leaves.get(number, 0) + 1 if early else 1
        one = np.array([slot])
        state.account(one)
        if table.intent[slot] == Intent.WAIT and _is_out_of_time(state, one)[0]:
            table.intent[slot] = Intent.TIME_LIMIT  # its lease ended while nobody was there to stop it
        restart(state, slot, Code.LEFT)


def failed(state: State, event: JobsFailed) -> None:
    """Jobs broke and nothing of them runs: they start again from their checkpoint while they have retries left."""
    for slot in _ended_runs(state, event):
        restart(state, slot, Code.RESTARTING)


def workers_seen(state: State, event: WorkersStarted | WorkersStopped) -> None:
    """Accounting follows what is seen to run."""
    table = state.world.table
    slots, rows = state.current(event.number, event.generation)
    state.account(slots)
    table.observed[slots] = np.clip(event.running[rows], 0, table.held[slots])
    state.alarm(state.now + float((table.time_limit[slots] - table.running_s[slots]).min(initial=np.inf)))


def workers_failed(state: State, event: WorkersFailed) -> None:
    """A worker was lost: jobs whose framework carries on with what is left shrink, the others start again."""
    slots, rows = state.current(event.number, event.generation)
    for slot, row in zip(slots, rows, strict=True):
        places = state.world.places(state.world.held, int(slot))
        lost = places[:, places[INDEX] == event.index[row]]
        if lost.shape[1]:
            lose_workers(state, int(slot), lost[INDEX], lost[NODE], Code.RESTARTING)


def progress(state: State, event: Progress) -> None:
    """How far jobs are, and what that teaches about their speed."""
    table = state.world.table
    found = table.find(event.number)
    rows = ((found >= 0) & np.isfinite(event.steps) & (event.steps >= 0)).nonzero()[0]
    slots, steps = found[rows], event.steps[rows]
    if state.perf.learns:
        whole = (table.observed[slots] > 0) & (table.observed[slots] == table.held[slots])
        some = slots[whole]
        milli = table.milli[some]
        # Speeds are those of whole GPUs: who has a part of one is believed to have that part of the speed.
        part = np.where((milli > 0) & (milli < WHOLE), milli / WHOLE, 1.0)
        state.note(
            Observations(
                workload=table.workload[some],
                gpu_type=table.held_type[some],
                workers=table.held[some],
                seconds=state.now - table.reported[some],
                steps=(steps[whole] - table.steps_done[some]) / part,
                at=np.full(len(some), state.now),
                warm=table.reported[some] > table.resized[some],
            )
        )
    table.steps_done[slots] = steps
    table.reported[slots] = state.now


def checkpoint_saved(state: State, event: CheckpointSaved) -> None:
    """Jobs may be restarted without loss from now on."""
    _may_be_stopped(state, event, 1)


def saves_on_stop(state: State, event: SavesOnStop) -> None:
    """Jobs may be restarted without loss, since they save when they are asked to stop."""
    _may_be_stopped(state, event, SAVES_ON_STOP)


def _may_be_stopped(state: State, event: CheckpointSaved | SavesOnStop, why: int) -> None:
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    # Only the first one is news: some jobs write one every few seconds.
    slots = slots[(table.held[slots] > 0) & (table.saved[slots] == 0)]
    table.saved[slots] = why
    state.dirty |= bool(len(slots))


def resizes_in_place(state: State, event: ResizesInPlace) -> None:
    """Jobs that seemed to need a restart for every change of size need none: more may be done with them."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    slots = slots[(table.held[slots] > 0) & (table.resizes_in_place[slots] != ANY_LOSS)]
    table.resizes_in_place[slots] = ANY_LOSS
    state.dirty |= bool(len(slots))


def resize_modes(state: State, event: ResizeModes) -> None:
    """The backend says how it resizes these jobs."""
    table = state.world.table
    found = table.find(event.number)
    rows = (found >= 0).nonzero()[0]
    table.resizes_in_place[found[rows]] = event.in_place[rows] > 0
    state.dirty |= bool(len(rows))


def restarted(state: State, event: JobsRestarted) -> None:
    """All workers of these jobs start again: what the workers before them saved is no checkpoint of theirs."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    slots = slots[table.held[slots] > 0]
    table.restarts[slots] += 1
    table.saved[slots] = 0


def observed(state: State, event: Observed) -> None:
    """Belief follows fact: jobs that should run and do not start again, and what runs and should not is stopped."""
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
    # Where an operation is or may be on its way, what does not run now may do so in a moment.
    quiet = (table.op[living] == OpKind.NONE) & (table.unsure[living] == 0)
    believed = living[(table.held[living] > 0) & quiet]
    # Known to the backend, and yet none of its workers runs: that is gone, too.
    there = np.concatenate([slots[old], slots[seen[event.running[seen] > 0]]])
    gone = believed[~np.isin(believed, there)]
    for slot in gone:
        one = np.array([slot])
        state.say(one, Code.INTERRUPTED)
        state.wants_stop(one, int(table.intent[slot]))
        stopped(state, one)
    if stray:
        state.commands.append(StopStray(number=tuple(sorted({int(number) for number in stray}))))


def time_limits(state: State) -> None:
    """Jobs that have run as long as they may stop, and have failed."""
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
    """Which of these jobs have run as long as they may, up to what they are accounted for."""
    table = state.world.table
    # Sums of times end a hair short of the limit; waking up for that hair would never end.
    return np.asarray(table.running_s[slots] >= table.time_limit[slots] - 1e-6)
