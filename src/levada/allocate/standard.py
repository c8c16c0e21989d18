"""The answer of a policy to one case: workers and type of each job, and why.

The policy runs without the engine's guards, and inside queues if the case has any. The answer contains only sizes;
placement matters only to a policy that decides by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from levada.allocate import policy_state
from levada.allocate.build_cluster import CaseWorld, build, faults_of
from levada.allocate.checked_policy import Checked
from levada.allocate.feasible import infeasible
from levada.allocate.limits import policy_faults
from levada.allocate.reasons import SizeReasons
from levada.allocate.speeds import speeds
from levada.core.decision import Decision
from levada.core.reasons import Reason
from levada.errors import BadInput, Fault
from levada.policies.protocol import AnyPolicy, Needs
from levada.policies.queued import queued
from levada.policies.registry import lookup
from levada.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from levada.allocate.case_file import Case


def answer(case: Case, policy: AnyPolicy, seed: int = 0) -> dict[str, Any]:
    """The sizes of every job of *case*, in its order; raises BadInput with all faults."""
    record = lookup(policy.name)
    if record is not None and record.shares:
        from levada.allocate import shares

        return shares.answer(case, cast(Any, policy).policy, seed)
    if faults := [*faults_of(case), *policy_faults(case, policy), *_missing(case, policy)]:
        raise BadInput(faults)
    saved = policy_state.read(case.state)
    setup = build(case, saved.jobs, saved.next)
    perf = speeds(case, setup, serial=Needs.REMAINING in policy.needs)
    refused = infeasible(case, setup)
    order = setup.world.table.order
    snap = setup.world.snapshot(case.now, order[[int(slot) not in refused for slot in order]])
    checked = Checked(policy, setup.world, resumed=saved.policy is not None)
    initial = checked.initial(seed)
    if case.queues:
        state = policy_state.start_in_queues(policy.name, initial, saved, snap, seed)
        decision, state = queued(cast(AnyPolicy, checked)).decide(snap, perf, state)
    else:
        state = policy_state.start(policy.name, initial, saved, snap)
        decision, state = checked.decide(snap, perf, state)
    checked.check_sums(decision, snap)
    result = _as_json(case, setup, policy.name, decision, snap, refused)
    if initial is not None:
        numbers = {job.id: setup.world.numbers[job.id] for job in case.jobs}
        result["state"] = policy_state.as_json(policy.name, state, numbers, setup.world.next_number)
    return result


def _missing(case: Case, policy: AnyPolicy) -> list[Fault]:
    """A fault for each missing job field that the policy needs."""
    record = lookup(policy.name)
    # The catalog names the exact fields of a case; a user's policy has only flags.
    needs_work = "remaining_s" in record.needs if record else Needs.REMAINING in policy.needs
    needs_curve = "speedup" in record.needs if record else Needs.RATE in policy.needs
    faults = []
    for i, job in enumerate(case.jobs):
        if needs_work and job.remaining_s is None and not (job.steps_left is not None and job.throughput):
            faults.append(Fault(f"jobs[{i}].remaining_s", f"required by {policy.name}"))
        if needs_curve and not job.speedup and not (record is None and job.throughput):
            faults.append(Fault(f"jobs[{i}].speedup", f"required by {policy.name}"))
    return faults


def _as_json(
    case: Case, setup: CaseWorld, policy: str, decision: Decision, snap: Snapshot, refused: dict[int, Reason]
) -> dict[str, Any]:
    row_of = {int(slot): row for row, slot in enumerate(snap.jobs.slots)}
    names = tuple(setup.world.inventory.types)
    allocations: dict[str, dict[str, int]] = {}
    reasons: dict[str, dict[str, str]] = {}
    sizes = SizeReasons(policy, snap, decision)
    for slot, job in zip(setup.slots.tolist(), case.jobs, strict=True):
        row = row_of.get(slot, -1)
        why = refused[slot] if row < 0 else sizes.of(row)
        allocations[job.id] = {} if row < 0 else decision.allocation(row, names)
        reasons[job.id] = {"code": why.code, "text": why.text}
    return {"policy": policy, "allocations": allocations, "reasons": reasons}
