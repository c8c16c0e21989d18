"""The answer of a DRAGON policy to one cycle: starts, resizes and reasons.

Case and outcome have the format of DRAGON's conformance cases; `dragon_case` checks the case, `dragon_world` turns it
into columns.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from levada.allocate.dragon_case import DragonCase, check
from levada.allocate.dragon_world import DragonWorld
from levada.allocate.reasons import SizeReasons
from levada.core.assignment import DEVICE, INDEX, NODE, SLOT
from levada.core.decision import Decision
from levada.core.types import Ints
from levada.errors import BadInput, Fault
from levada.perf.table_model import TableModel
from levada.policies.dragon.compat import DragonCompat
from levada.policies.dragon.policy import Dragon
from levada.policies.dragon.state import DragonState
from levada.policies.registry import check_names, lookup, unknown
from levada.tables.snapshot import Snapshot


def answer(raw: dict[str, Any], policy: Any) -> dict[str, Any]:
    """The actions of *policy* in the cycle *raw*; raises BadInput with all faults."""
    faults: list[Fault] = []
    if policy is None:
        faults.append(Fault("policy", "is required"))
    elif policy not in (Dragon.name, DragonCompat.name):
        name = str(policy)
        unsupported = "does not support cases with pods and nodes; use dragon or dragon-compat"
        faults.append(Fault("policy", unknown(name) if lookup(name) is None else unsupported))
    try:
        case = check(raw)
    except BadInput as error:
        raise BadInput([*faults, *error.faults], error.more) from None
    if faults:
        raise BadInput(faults)
    chosen = _policy(policy, case.options)
    setup = DragonWorld(case, as_original=policy == DragonCompat.name)
    world = setup.world
    snap = world.snapshot(case.now)
    before = case.last_action
    if before is not None and before >= case.now:
        before = math.nextafter(case.now, -math.inf)  # so that a reset of the clock is visible
    state = DragonState(last_action=before, admitted=tuple(world.numbers[job.name] for job in case.running))
    decision, after = chosen.decide(snap, TableModel([], []), state)
    outcome = PodOutcome(setup, snap, decision)
    return {
        "policy": policy,
        "outcome": {**outcome.as_json(), "last_action_reset": after.last_action == case.now},
        "reasons": _reasons(case, setup, snap, decision),
    }


def _policy(name: str, options: dict[str, Any]) -> Dragon | DragonCompat:
    kind: type[Dragon] | type[DragonCompat] = Dragon if name == Dragon.name else DragonCompat
    fixed = {} if kind is Dragon else {"clamp": False}
    record = lookup(name)
    check_names(name, [option.name for option in record.options] if record else [], options)
    return kind(**options, **fixed)


class PodOutcome:
    """The changes of a decision in the terms of the case."""

    def __init__(self, setup: DragonWorld, snap: Snapshot, decision: Decision) -> None:
        self.setup, self.snap, self.decision = setup, snap, decision
        self.nodes = setup.world.inventory.nodes
        self.row_of = {setup.world.ids[int(number)]: row for row, number in enumerate(decision.number)}

    def as_json(self) -> dict[str, Any]:
        """The outcome; `admits` and `binds` only if there are several."""
        admits = [self._admit(job.name) for job in self.setup.case.pending if self._starts(job.name)]
        binds = [self._bind(i) for i in range(len(self.decision.binds))]
        outcome: dict[str, Any] = {
            "admit": admits[0] if admits else None,
            "bind_priority_pod": binds[0] if binds else None,
            "scale_down": {},
            "scale_up": {},
        }
        for job in self.setup.case.running:
            old, new = self._before(job.name), self._after(job.name)
            lost = old[:, (old[INDEX] >= 0) & ~np.isin(old[INDEX], new[INDEX])]
            more = new[:, ~np.isin(new[INDEX], old[INDEX])]
            if lost.shape[1]:
                outcome["scale_down"][job.name] = self._lost(lost)
            if more.shape[1]:
                added = {"n_added": _workers(more), "workers": self._by_node(more)}
                outcome["scale_up"][job.name] = added | self._gpus(more)
        if len(admits) > 1:
            outcome["admits"] = admits
        if len(binds) > 1:
            outcome["binds"] = binds
        return outcome

    def _starts(self, name: str) -> bool:
        return name in self.row_of and int(self.decision.count[self.row_of[name]]) > 0

    def _admit(self, name: str) -> dict[str, Any]:
        places = self._after(name)
        workers = places[:, places[INDEX] >= 0]
        return {
            "job": name,
            "n_workers": _workers(workers),
            "ps": self._by_node(places[:, places[INDEX] < 0]),
            "workers": self._by_node(workers),
        } | self._gpus(workers)

    def _bind(self, number: int) -> dict[str, Any]:
        bind = self.decision.binds[number]
        result = {"pod": bind.pod, "node": self.nodes[bind.node]}
        if self.setup.case.mode == "kubeshare" and bind.device >= 0:
            result["gpu"] = self.setup.gpuid.get(bind.device, "new")
        return result

    def _before(self, name: str) -> Ints:
        world = self.setup.world
        return world.places(world.target, world.slot(name))

    def _after(self, name: str) -> Ints:
        """The places of a job after the decision; unchanged unless it places the job."""
        row = self.row_of[name]
        if self.decision.count[row] == 0:
            return np.zeros((6, 0), np.int64)
        placed, places = self.decision.placed, self.decision.places
        if placed is None or places is None or row not in placed.tolist():
            return self._before(name)
        return places[:, places[SLOT] == row]

    def _by_node(self, places: Ints) -> dict[str, int]:
        nodes = {int(index): int(node) for index, node in zip(places[INDEX], places[NODE], strict=True)}
        counted = Counter(nodes.values())
        return {self.nodes[node]: counted[node] for node in sorted(counted)}

    def _lost(self, places: Ints) -> dict[str, Any]:
        """Workers by node; workers with a GPU fraction by node and device."""
        if self.setup.case.mode == "nvidia" or not (places[DEVICE] >= 0).any():
            return self._by_node(places)
        by_node: dict[str, Any] = {}
        for node, device in zip(places[NODE].tolist(), places[DEVICE].tolist(), strict=True):
            devices = by_node.setdefault(self.nodes[node], {})
            name = self.setup.gpuid.get(device, "")
            devices[name] = devices.get(name, 0) + 1
        return by_node

    def _gpus(self, places: Ints) -> dict[str, Any]:
        """GPU fractions by node and device; newly shared devices are counted as `new`."""
        if self.setup.case.mode == "nvidia" or not (places[DEVICE] >= 0).any():
            return {}
        by_node: dict[str, dict[str, Any]] = {}
        shares = Counter(zip(places[NODE].tolist(), places[DEVICE].tolist(), strict=True))
        for (node, device), count in sorted(shares.items()):
            devices = by_node.setdefault(self.nodes[node], {})
            if device in self.setup.gpuid:
                devices[self.setup.gpuid[device]] = count
            else:
                devices["new"] = sorted([*devices.get("new", []), count], reverse=True)
        return {"gpus": by_node}


def _workers(places: Ints) -> int:
    return len(np.unique(places[INDEX]))


def _reasons(case: DragonCase, setup: DragonWorld, snap: Snapshot, decision: Decision) -> dict[str, dict[str, str]]:
    reasons: dict[str, dict[str, str]] = {}
    sizes = SizeReasons(case.policy or "the policy", snap, decision)
    row_of = {setup.world.ids[int(number)]: row for row, number in enumerate(snap.jobs.number)}
    for name in (*(job.name for job in case.running), *(job.name for job in case.pending)):
        if name in row_of:
            row = row_of[name]
            why = sizes.of(row)
            reasons[name] = {"code": why.code, "text": why.text}
    return reasons | {name: {"code": "invalid", "text": text} for name, text in setup.refused.items()}
