"""The answer of one policy to one case: who gets how many workers of which type, and why.

The policy runs as it is, without the engine's guards, and inside its queues where the case has any. Sizes are all that
is answered: where the workers would stand plays no role, except to a policy that decides by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from levada.cases import state as policy_state
from levada.cases.checked import Checked
from levada.cases.limits import policy_faults
from levada.cases.scene import Scene, build, faults_of, gpu_types
from levada.core.decision import Decision
from levada.core.jobtable import NOT_ALLOWED
from levada.core.reasons import Code, Reason, reason
from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE
from levada.errors import BadInput, Fault, did_you_mean
from levada.perf.table import JobSpeed, PairSpeed, TableModel
from levada.policies.protocol import AnyPolicy, Needs
from levada.policies.queued import queued
from levada.policies.table import lookup

if TYPE_CHECKING:
    from levada.cli.casefile import Case


def answer(case: Case, policy: AnyPolicy, seed: int = 0) -> dict[str, Any]:
    """What *policy* gives to every job of *case*, in the order of the case; raises BadInput with all faults."""
    if faults := [*faults_of(case), *policy_faults(case, policy), *_missing(case, policy)]:
        raise BadInput(faults)
    saved = policy_state.read(case.state)
    scene = build(case, saved.jobs, saved.next)
    perf = _speeds(case, scene, policy.needs)
    # A job that this cluster could never hold is not in the policy's view, so it stands in nobody's way.
    refused = _infeasible(scene)
    _suggest_types(case, scene, refused)
    order = scene.world.table.order
    snap = scene.world.snapshot(case.now, order[[int(slot) not in refused for slot in order]])
    checked = Checked(policy, scene.world, goes_on=saved.policy is not None)
    initial = checked.initial(seed)
    if case.queues:
        state = policy_state.start_in_queues(policy.name, initial, saved, snap, seed)
        decision, state = queued(cast(AnyPolicy, checked)).decide(snap, perf, state)
    else:
        state = policy_state.start(policy.name, initial, saved, snap)
        decision, state = checked.decide(snap, perf, state)
    checked.check_sums(decision, snap)
    result = _as_json(case, scene, policy.name, decision, snap, refused)
    if initial is not None:
        numbers = {job.id: scene.world.numbers[job.id] for job in case.jobs}
        result["state"] = policy_state.as_json(policy.name, state, numbers, scene.world.next_number)
    return result


def _missing(case: Case, policy: AnyPolicy) -> list[Fault]:
    """A fault for each thing that the policy must know of a job and the case does not say."""
    record = lookup(policy.name)
    # The table says in fields of a case what the flags of a user's policy say roughly.
    needs_work = "remaining_s" in record.needs if record else Needs.REMAINING in policy.needs
    needs_curve = "speedup" in record.needs if record else Needs.RATE in policy.needs
    faults = []
    for i, job in enumerate(case.jobs):
        if needs_work and job.remaining_s is None and not (job.steps_left is not None and job.throughput):
            faults.append(Fault(f"jobs[{i}].remaining_s", f"{policy.name} needs it"))
        if needs_curve and not job.speedup and not (record is None and job.throughput):
            faults.append(Fault(f"jobs[{i}].speedup", f"{policy.name} needs it"))
    return faults


def _speeds(case: Case, scene: Scene, needs: Needs) -> TableModel:
    """What the case says about speeds; the work that is left goes into the table."""
    world, speeds = scene.world, []
    # The case may name types that the cluster has not; only the model hears of them.
    kinds = world.inventory.types.copy()
    for slot, job in zip(scene.slots, case.jobs, strict=True):
        throughput = {kinds.add(name): rate for name, rate in (job.throughput or {}).items()}
        work = job.steps_left
        if job.remaining_s is not None and (Needs.REMAINING in needs or work is None):
            # Seconds on one GPU are what the policy wants to know: let them be steps, at one step per second.
            work, throughput = job.remaining_s, {}
        world.table.steps[slot] = np.nan if work is None else work
        speeds.append(
            JobSpeed(
                job=world.numbers[job.id],
                speedup={int(size): value for size, value in (job.speedup or {}).items()},
                throughput=throughput,
                scale_factor=job.scale_factor,
            )
        )
    pairs = [
        PairSpeed(
            a=world.numbers[pair.jobs[0]],
            b=world.numbers[pair.jobs[1]],
            throughput={kinds.add(name): (both[0], both[1]) for name, both in pair.throughput.items()},
        )
        for pair in case.pairs
    ]
    return TableModel(speeds, pairs)


def _infeasible(scene: Scene) -> dict[int, Reason]:
    """By slot, why no state of the cluster could hold the job."""
    table, inventory, slots = scene.world.table, scene.world.inventory, scene.slots
    exists = np.bincount(inventory.type_of, minlength=len(inventory.types)) > 0
    exists[CPU_TYPE] = len(inventory.nodes) > 0
    allowed = (table.preference[:, slots] != NOT_ALLOWED) & exists[:, None]
    unit = table.units()[slots]
    most = np.where(allowed, inventory.capacity()[:, None], 0).max(axis=0) // np.maximum(unit, 1)
    nowhere = ~allowed.any(axis=0)
    too_large = ~nowhere & (unit > 0) & (most < table.min[slots])
    refused = {int(slot): reason(Code.UNKNOWN_TYPE) for slot in slots[nowhere]}
    refused |= {
        int(slot): reason(Code.TOO_LARGE, int(n)) for slot, n in zip(slots[too_large], most[too_large], strict=True)
    }
    return refused


def _suggest_types(case: Case, scene: Scene, refused: dict[int, Reason]) -> None:
    """Adds to the reason of jobs whose types do not exist those that may have been meant."""
    types = gpu_types(case.cluster)
    for slot, job in zip(scene.slots.tolist(), case.jobs, strict=True):
        if slot in refused and job.gpu_types and not set(types) & set(job.gpu_types):
            why = refused[slot]
            text = why.text.rstrip(".") + did_you_mean(job.gpu_types[0], types, f"it has {', '.join(types) or 'none'}.")
            refused[slot] = Reason(code=why.code, text=text)


def _as_json(
    case: Case, scene: Scene, policy: str, decision: Decision, snap: Snapshot, refused: dict[int, Reason]
) -> dict[str, Any]:
    row_of = {int(slot): row for row, slot in enumerate(snap.jobs.slots)}
    names = tuple(scene.world.inventory.types)
    allocations: dict[str, dict[str, int]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for slot, job in zip(scene.slots.tolist(), case.jobs, strict=True):
        row = row_of.get(slot, -1)
        why = refused[slot] if row < 0 else reason(int(decision.reason[row]), int(decision.evidence[row]))
        allocations[job.id] = {} if row < 0 else decision.allocation(row, names)
        reasons[job.id] = {"code": why.code, "text": why.text}
    return {"policy": policy, "allocations": allocations, "reasons": reasons}
