"""The answer of a share policy to one case: which fraction of time each job, or pair of jobs, should run where.

Shares are of the whole cluster; how rounds make them true plays no role here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from levada.cases import state as policy_state
from levada.cases.checked import blame
from levada.cases.feasible import infeasible
from levada.cases.formulas import NO_OBJECTIVE, value
from levada.cases.limits import share_faults
from levada.cases.scene import Scene, build, faults_of
from levada.cases.speeds import speeds
from levada.cases.told import percent
from levada.core.reasons import Code, Reason, reason
from levada.core.types import Bools, Floats
from levada.errors import BadInput, Fault
from levada.policies.gavel.allox import AlloxState
from levada.policies.gavel.finish_time_fairness import Account, FinishTimeState
from levada.policies.gavel.forms import able
from levada.policies.gavel.gavel_fifo import FifoState
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import AnySharePolicy, Shares
from levada.policies.table import lookup

if TYPE_CHECKING:
    from levada.cases.casefile import Case, CaseJob

#: A share below this part of the job's largest one is nothing.
_NOTHING = 1e-9


def answer(case: Case, policy: AnySharePolicy, seed: int = 0) -> dict[str, Any]:
    """What *policy* gives to every job of *case*, in the order of the case; raises BadInput with all faults."""
    sized = case.model_copy(update={"jobs": [_sized(job) for job in case.jobs]})
    if faults := [*faults_of(case), *share_faults(case, policy), *_missing(sized, policy)]:
        raise BadInput(faults)
    case = sized
    saved = policy_state.read(case.state)
    scene = build(case, saved.jobs, saved.next, by_age=False)
    perf = speeds(case, scene, serial=False)
    refused = infeasible(case, scene)
    order = scene.world.table.order
    snap = scene.world.snapshot(case.now, order[[int(slot) not in refused for slot in order]])
    instance = Instance(snap, perf)
    _set_elapsed(case, scene, instance)
    with blame(policy, goes_on=saved.policy is not None):
        initial = policy.initial(seed)
        state = policy_state.start(policy.name, initial, saved, snap)
        state = _with_isolated(_by_name(state, saved, instance), case, scene)
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
        "shares": _as_json(case, scene, instance, shares),
        "objective": {"name": name, "value": value(name, instance, shares, isolated_s)},
        "reasons": _reasons(case, scene, policy, instance, shares, refused),
    }
    if shares.alarm:
        result["alarm"] = shares.alarm
    # Who keeps no state of its own still goes on with the same order of jobs.
    numbers = {job.id: scene.world.numbers[job.id] for job in case.jobs}
    following, types = scene.world.next_number, tuple(scene.world.inventory.types)
    result["state"] = policy_state.as_json(policy.name, state, numbers, following, types)
    return result


# --- what goes in ----------------------------------------------------------------------------------------------------


def _missing(case: Case, policy: AnySharePolicy) -> list[Fault]:
    """A fault for each thing that the policy must know and the case does not say."""
    record = lookup(policy.name)
    needs = record.needs if record else ()
    faults = []
    for i, job in enumerate(case.jobs):
        if "throughput" in needs and not job.throughput:
            faults.append(Fault(f"jobs[{i}].throughput", f"{policy.name} needs it"))
        if "steps_left" in needs and job.steps_left is None:
            faults.append(Fault(f"jobs[{i}].steps_left", f"{policy.name} needs it"))
        if "elapsed_s" in needs and job.elapsed_s is None and "submitted" not in job.model_fields_set:
            faults.append(Fault(f"jobs[{i}].elapsed_s", f"{policy.name} needs it, or submitted"))
        if policy.name == "allox" and (job.desired or job.min) * job.gpus_per_worker != 1:
            faults.append(Fault(f"jobs[{i}].scale_factor", "allox takes jobs of one GPU"))
    if "prices" in needs:
        free = [name for name, price in case.cluster.prices.items() if price == 0]
        faults += [Fault(f"cluster.prices.{name}", f"must be above 0: {policy.name} divides by it") for name in free]
    if case.queues:
        faults.append(Fault("queues", f"{policy.name} shares out the whole cluster; leave queues out"))
    return faults


def _sized(job: CaseJob) -> CaseJob:
    """The job with the size that its throughput was measured with, where that is said: only time is shared out here."""
    if "scale_factor" not in job.model_fields_set:
        return job
    size = job.scale_factor
    return job.model_copy(update={"min": size, "max": size, "desired": size, "step": 1})


def _set_elapsed(case: Case, scene: Scene, instance: Instance) -> None:
    """How long jobs have been there, to the last digit; `submitted` alone says who was first."""
    row_of = {int(number): row for row, number in enumerate(instance.number)}
    instance.elapsed = instance.elapsed.copy()
    for job in case.jobs:
        row = row_of.get(scene.world.numbers[job.id])
        if row is not None and job.elapsed_s is not None:
            instance.elapsed[row] = job.elapsed_s


def _by_name(state: Any, saved: policy_state.Saved, instance: Instance) -> Any:
    """The state with GPU types as they are numbered in this case; a type that is gone is forgotten."""
    if not isinstance(state, FifoState | AlloxState) or saved.policy is None:
        return state
    kinds = {kind: instance.snap.inventory.types.find(name) for kind, name in enumerate(saved.types)}
    if not set(state.type_of.values()) <= set(kinds):
        raise BadInput.one("does not name all GPU types of the state", "state.types")
    type_of = {number: kinds[kind] for number, kind in state.type_of.items() if kinds[kind] >= 0}
    return msgspec.structs.replace(state, type_of=type_of)


def _with_isolated(state: Any, case: Case, scene: Scene) -> Any:
    """The state of finish-time fairness with the isolated times that the case gives."""
    if not isinstance(state, FinishTimeState):
        return state
    # At rate 0 nothing is added to what is given.
    given = {
        scene.world.numbers[job.id]: Account(isolated_s=job.isolated_s, rate=0.0, steps=0.0)
        for job in case.jobs
        if job.isolated_s is not None
    }
    return FinishTimeState(accounts={**state.accounts, **given})


# --- what comes out --------------------------------------------------------------------------------------------------


def _without_traces(shares: Shares) -> Shares:
    both = None if shares.pair_share is None else _cut(shares.pair_share)
    return msgspec.structs.replace(shares, share=_cut(shares.share), pair_share=both)


def _cut(share: Floats) -> Floats:
    return np.where(share >= _NOTHING * share.max(axis=1, initial=0.0)[:, None], share, 0.0)


def _as_json(case: Case, scene: Scene, instance: Instance, shares: Shares) -> dict[str, dict[str, float]]:
    """By job in the order of the case, then by pair, as the case spells it, by GPU type."""
    names, ids = instance.names, scene.world.ids
    row_of = {ids[number]: row for row, number in enumerate(instance.number.tolist())}
    found = {job.id: _by_type(shares.share[row_of[job.id]], names) if job.id in row_of else {} for job in case.jobs}
    if shares.pair_share is not None:
        place = {job.id: i for i, job in enumerate(case.jobs)}
        spelt = {frozenset(pair.jobs): "+".join(pair.jobs) for pair in case.pairs}
        together = []
        for rows, share in zip(shares.pairs.tolist(), shares.pair_share, strict=True):
            pair = sorted((ids[int(instance.number[row])] for row in rows), key=place.__getitem__)
            name = spelt.get(frozenset(pair), "+".join(pair))
            together.append((place[pair[0]], place[pair[1]], name, _by_type(share, names)))
        found |= {name: share for *_, name, share in sorted(together) if share}
    return found


def _by_type(share: Floats, names: tuple[str, ...]) -> dict[str, float]:
    return {names[kind]: float(share[kind]) for kind in np.flatnonzero(share).tolist()}


def _reasons(
    case: Case, scene: Scene, policy: AnySharePolicy, instance: Instance, shares: Shares, refused: dict[int, Reason]
) -> dict[str, dict[str, str]]:
    time = shares.share.sum(axis=1)
    if shares.pair_share is not None:
        for side in (0, 1):
            np.add.at(time, shares.pairs[:, side], shares.pair_share.sum(axis=1))
    runs = able(instance)
    has_room = np.asarray((runs & _fits_beside(instance, shares)).any(axis=1))
    row_of = {int(slot): row for row, slot in enumerate(instance.snap.jobs.slots)}
    reasons = {}
    for slot, job in zip(scene.slots.tolist(), case.jobs, strict=True):
        row = row_of.get(slot, -1)
        if row < 0:
            why = refused[slot]
        elif time[row] > 0:
            why = Reason(code=reason(Code.RUNS).code, text=f"It runs {percent(min(time[row], 1.0))} % of the time.")
        else:
            # Where nobody overtakes, whoever has room waits for somebody before it.
            waits = Code.IN_LINE if policy.strict and has_room[row] else Code.CAPACITY
            why = reason(waits if runs[row].any() else Code.CANNOT_RUN)
        reasons[job.id] = {"code": why.code, "text": why.text}
    return reasons


def _fits_beside(instance: Instance, shares: Shares) -> Bools:
    """By job and GPU type: whether what the others leave free is enough for it."""
    left = instance.capacity - instance.scale @ shares.share
    if shares.pair_share is not None:
        left -= instance.scale[shares.pairs[:, 0]] @ shares.pair_share
    return np.asarray(instance.scale[:, None] <= left + _NOTHING)
