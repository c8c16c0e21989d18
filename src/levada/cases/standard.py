"""The answer of one policy to one case: who gets how many workers of which type, and why.

The policy runs as it is, without the engine's guards, and inside its queues where the case has any. Sizes are all that
is answered: where the workers would stand plays no role, except to a policy that decides by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from levada.cases import state as policy_state
from levada.cases.checked import Checked
from levada.cases.feasible import infeasible
from levada.cases.limits import policy_faults
from levada.cases.scene import Scene, build, faults_of
from levada.cases.speeds import speeds
from levada.cases.told import told
from levada.core.decision import Decision
from levada.core.reasons import Reason
from levada.errors import BadInput, Fault
from levada.policies.protocol import AnyPolicy, Needs
from levada.policies.queued import queued
from levada.policies.table import lookup
from levada.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from levada.cases.casefile import Case


def answer(case: Case, policy: AnyPolicy, seed: int = 0) -> dict[str, Any]:
    """What *policy* gives to every job of *case*, in the order of the case; raises BadInput with all faults."""
    record = lookup(policy.name)
    if record is not None and record.shares:
        from levada.cases import shares

        return shares.answer(case, cast(Any, policy).policy, seed)
    if faults := [*faults_of(case), *policy_faults(case, policy), *_missing(case, policy)]:
        raise BadInput(faults)
    saved = policy_state.read(case.state)
    scene = build(case, saved.jobs, saved.next)
    perf = speeds(case, scene, serial=Needs.REMAINING in policy.needs)
    refused = infeasible(case, scene)
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


def _as_json(
    case: Case, scene: Scene, policy: str, decision: Decision, snap: Snapshot, refused: dict[int, Reason]
) -> dict[str, Any]:
    row_of = {int(slot): row for row, slot in enumerate(snap.jobs.slots)}
    names = tuple(scene.world.inventory.types)
    allocations: dict[str, dict[str, int]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for slot, job in zip(scene.slots.tolist(), case.jobs, strict=True):
        row = row_of.get(slot, -1)
        why = refused[slot] if row < 0 else told(int(decision.reason[row]), int(decision.evidence[row]))
        allocations[job.id] = {} if row < 0 else decision.allocation(row, names)
        reasons[job.id] = {"code": why.code, "text": why.text}
    return {"policy": policy, "allocations": allocations, "reasons": reasons}
