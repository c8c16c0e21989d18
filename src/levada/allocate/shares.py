"""The answer of a share policy to one case: shares of jobs and pairs by type.

Shares refer to the whole cluster; rounds do not matter here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from levada.allocate import policy_state
from levada.allocate.build_cluster import CaseWorld, build, faults_of
from levada.allocate.checked_policy import attribute_errors
from levada.allocate.feasible import infeasible
from levada.allocate.limits import share_faults
from levada.allocate.objectives import NO_OBJECTIVE, value
from levada.allocate.reasons import percent
from levada.allocate.speeds import speeds
from levada.core.reasons import Code, Reason, reason
from levada.core.types import Bools, Floats
from levada.errors import BadInput, Fault
from levada.policies.gavel.allox import AlloxState
from levada.policies.gavel.finish_time_fairness import Account, FinishTimeState
from levada.policies.gavel.gavel_fifo import FifoState
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import can_run
from levada.policies.gavel.share import AnySharePolicy, Shares
from levada.policies.registry import lookup

if TYPE_CHECKING:
    from levada.allocate.case_file import Case, CaseJob

#: Shares below this fraction of the job's largest share are set to 0.
_NOTHING = 1e-9


def answer(case: Case, policy: AnySharePolicy, seed: int = 0) -> dict[str, Any]:
    """The shares of every job of *case*, in its order; raises BadInput."""
    sized = case.model_copy(update={"jobs": [_sized(job) for job in case.jobs]})
    if faults := [*faults_of(case), *share_faults(case, policy), *_missing(sized, policy)]:
        raise BadInput(faults)
    case = sized
    saved = policy_state.read(case.state)
    setup = build(case, saved.jobs, saved.next, by_age=False)
    perf = speeds(case, setup, serial=False)
    refused = infeasible(case, setup)
    order = setup.world.table.order
    snap = setup.world.snapshot(case.now, order[[int(slot) not in refused for slot in order]])
    instance = Instance(snap, perf)
    _set_elapsed(case, setup, instance)
    with attribute_errors(policy, resumed=saved.policy is not None):
        initial = policy.initial(seed)
        state = policy_state.start(policy.name, initial, saved, snap)
        state = _with_isolated(_by_name(state, saved, instance), case, setup)
        shares, state = policy.shares(instance, perf, state)
    shares = _without_traces(shares)
    isolated_s = (
        {number: account.isolated_s for number, account in state.accounts.items()}
        if isinstance(state, FinishTimeState)
        else {}
    )
    name = policy.objective or NO_OBJECTIVE
    result = {
        "policy": policy.name,
        "shares": _as_json(case, setup, instance, shares),
        "objective": {"name": name, "value": value(name, instance, shares, isolated_s)},
        "reasons": _reasons(case, setup, policy, instance, shares, refused),
    }
    if shares.alarm:
        result["alarm"] = shares.alarm
    # Also for stateless policies: the job numbers keep the order of jobs.
    numbers = {job.id: setup.world.numbers[job.id] for job in case.jobs}
    following, types = setup.world.next_number, tuple(setup.world.inventory.types)
    result["state"] = policy_state.as_json(policy.name, state, numbers, following, types)
    return result


# --- input -----------------------------------------------------------------------------------------------------------


def _missing(case: Case, policy: AnySharePolicy) -> list[Fault]:
    """A fault for each missing field that the policy needs."""
    record = lookup(policy.name)
    needs = record.needs if record else ()
    faults = []
    for i, job in enumerate(case.jobs):
        if "throughput" in needs and not job.throughput:
            faults.append(Fault(f"jobs[{i}].throughput", f"required by {policy.name}"))
        if "steps_left" in needs and job.steps_left is None:
            faults.append(Fault(f"jobs[{i}].steps_left", f"required by {policy.name}"))
        if "elapsed_s" in needs and job.elapsed_s is None and "submitted" not in job.model_fields_set:
            faults.append(Fault(f"jobs[{i}].elapsed_s", f"this or submitted is required by {policy.name}"))
        if policy.name == "allox" and (job.desired or job.min) * job.gpus_per_worker != 1:
            faults.append(Fault(f"jobs[{i}].scale_factor", "allox supports only jobs of one GPU"))
    if "prices" in needs:
        free = [name for name, price in case.cluster.prices.items() if price == 0]
        faults += [Fault(f"cluster.prices.{name}", f"must be above 0: {policy.name} divides by it") for name in free]
    if case.queues:
        faults.append(Fault("queues", f"not supported by {policy.name}; leave them out"))
    return faults


def _sized(job: CaseJob) -> CaseJob:
    """The job fixed at its scale_factor, if given: a share policy does not resize."""
    if "scale_factor" not in job.model_fields_set:
        return job
    size = job.scale_factor
    return job.model_copy(update={"min": size, "max": size, "desired": size, "step": 1})


def _set_elapsed(case: Case, setup: CaseWorld, instance: Instance) -> None:
    """Use the exact `elapsed_s` of jobs; `submitted` only determines their order."""
    row_of = {int(number): row for row, number in enumerate(instance.number)}
    instance.elapsed = instance.elapsed.copy()
    for job in case.jobs:
        row = row_of.get(setup.world.numbers[job.id])
        if row is not None and job.elapsed_s is not None:
            instance.elapsed[row] = job.elapsed_s


def _by_name(state: Any, saved: policy_state.SavedPolicyState, instance: Instance) -> Any:
    """The state with the type numbers of this case; removed types are dropped."""
    if not isinstance(state, FifoState | AlloxState) or saved.policy is None:
        return state
    kinds = {kind: instance.snap.inventory.types.find(name) for kind, name in enumerate(saved.types)}
    if not set(state.type_of.values()) <= set(kinds):
        raise BadInput.one("must name all GPU types of the state", "state.types")
    type_of = {number: kinds[kind] for number, kind in state.type_of.items() if kinds[kind] >= 0}
    return msgspec.structs.replace(state, type_of=type_of)


def _with_isolated(state: Any, case: Case, setup: CaseWorld) -> Any:
    """The state of finish-time fairness with the isolated times of the case."""
    if not isinstance(state, FinishTimeState):
        return state
    # At rate 0 the policy does not add to the given time.
    accounts = {
        setup.world.numbers[job.id]: Account(isolated_s=job.isolated_s, rate=0.0, steps=0.0)
        for job in case.jobs
        if job.isolated_s is not None
    }
    return FinishTimeState(accounts={**state.accounts, **accounts})


# --- output ----------------------------------------------------------------------------------------------------------


def _without_traces(shares: Shares) -> Shares:
    both = None if shares.pair_share is None else _cut(shares.pair_share)
    return msgspec.structs.replace(shares, share=_cut(shares.share), pair_share=both)


def _cut(share: Floats) -> Floats:
    return np.where(share >= _NOTHING * share.max(axis=1, initial=0.0)[:, None], share, 0.0)


def _as_json(case: Case, setup: CaseWorld, instance: Instance, shares: Shares) -> dict[str, dict[str, float]]:
    """Shares by GPU type: jobs in the order of the case, then pairs as in the case."""
    names, ids = instance.names, setup.world.ids
    row_of = {ids[number]: row for row, number in enumerate(instance.number.tolist())}
    result = {job.id: _by_type(shares.share[row_of[job.id]], names) if job.id in row_of else {} for job in case.jobs}
    if shares.pair_share is not None:
        index = {job.id: i for i, job in enumerate(case.jobs)}
        name_of = {frozenset(pair.jobs): "+".join(pair.jobs) for pair in case.pairs}
        pairs = []
        for rows, share in zip(shares.pairs.tolist(), shares.pair_share, strict=True):
            pair = sorted((ids[int(instance.number[row])] for row in rows), key=index.__getitem__)
            name = name_of.get(frozenset(pair), "+".join(pair))
            pairs.append((index[pair[0]], index[pair[1]], name, _by_type(share, names)))
        result |= {name: share for *_, name, share in sorted(pairs) if share}
    return result


def _by_type(share: Floats, names: tuple[str, ...]) -> dict[str, float]:
    return {names[kind]: float(share[kind]) for kind in np.flatnonzero(share).tolist()}


def _reasons(
    case: Case, setup: CaseWorld, policy: AnySharePolicy, instance: Instance, shares: Shares, refused: dict[int, Reason]
) -> dict[str, dict[str, str]]:
    time = shares.share.sum(axis=1)
    if shares.pair_share is not None:
        for side in (0, 1):
            np.add.at(time, shares.pairs[:, side], shares.pair_share.sum(axis=1))
    runs = can_run(instance)
    has_room = np.asarray((runs & _fits_beside(instance, shares)).any(axis=1))
    row_of = {int(slot): row for row, slot in enumerate(instance.snap.jobs.slots)}
    reasons = {}
    for slot, job in zip(setup.slots.tolist(), case.jobs, strict=True):
        row = row_of.get(slot, -1)
        if row < 0:
            why = refused[slot]
        elif time[row] > 0:
            why = Reason(code=reason(Code.RUNS).code, text=f"Runs {percent(min(time[row], 1.0))} % of the time.")
        else:
            # Without backfill, a job that has room waits for a job ahead of it.
            waits = Code.IN_LINE if policy.strict and has_room[row] else Code.CAPACITY
            why = reason(waits if runs[row].any() else Code.CANNOT_RUN)
        reasons[job.id] = {"code": why.code, "text": why.text}
    return reasons


def _fits_beside(instance: Instance, shares: Shares) -> Bools:
    """Per job and GPU type whether the job fits beside the shares of the others."""
    left = instance.capacity - instance.scale @ shares.share
    if shares.pair_share is not None:
        left -= instance.scale[shares.pairs[:, 0]] @ shares.pair_share
    return np.asarray(instance.scale[:, None] <= left + _NOTHING)
