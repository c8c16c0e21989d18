"""The answer of one DRAGON policy to one cycle: who starts, who shrinks and grows where, and why the others wait.

The case and the outcome have the shape of DRAGON's conformance cases; `dragon_case` checks the one and `dragon_scene`
makes columns of it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from levada.cases.dragon_case import DragonCase, check
from levada.cases.dragon_scene import Scene
from levada.cases.told import told
from levada.core.decision import Decision
from levada.core.plane import DEVICE, INDEX, NODE, SLOT
from levada.core.types import Ints
from levada.errors import BadInput, Fault
from levada.perf.table import TableModel
from levada.policies.dragon import Dragon
from levada.policies.dragon_compat import DragonCompat
from levada.policies.dragon_state import DragonState
from levada.policies.registry import check_names
from levada.policies.table import lookup, unknown
from levada.tables.snapshot import Snapshot


def answer(raw: dict[str, Any], policy: Any) -> dict[str, Any]:
    """What *policy* does in the cycle that *raw* describes; raises BadInput with all faults."""
    faults: list[Fault] = []
    if policy is None:
        faults.append(Fault("policy", "is required"))
    elif policy not in (Dragon.name, DragonCompat.name):
        name = str(policy)
        strange = unknown(name) if lookup(name) is None else "takes no case of this kind; dragon and dragon-compat do"
        faults.append(Fault("policy", strange))
    try:
        case = check(raw)
    except BadInput as error:
        raise BadInput([*faults, *error.faults], error.more) from None
    if faults:
        raise BadInput(faults)
    chosen = _policy(policy, case.options)
    scene = Scene(case, as_original=policy == DragonCompat.name)
    world = scene.world
    snap = world.snapshot(case.now)
    before = case.last_action
    if before is not None and before >= case.now:
        before = math.nextafter(case.now, -math.inf)  # so that setting the clock can be seen
    state = DragonState(last_action=before, admitted=tuple(world.numbers[job.name] for job in case.running))
    decision, after = chosen.decide(snap, TableModel([], []), state)
    outcome = Outcome(scene, snap, decision)
    return {
        "policy": policy,
        "outcome": {**outcome.as_json(), "last_action_reset": after.last_action == case.now},
        "reasons": _reasons(case, scene, snap, decision),
    }


def _policy(name: str, options: dict[str, Any]) -> Dragon | DragonCompat:
    kind: type[Dragon] | type[DragonCompat] = Dragon if name == Dragon.name else DragonCompat
    fixed = {} if kind is Dragon else {"clamp": False}
    record = lookup(name)
    check_names(name, [option.name for option in record.options] if record else [], options)
    return kind(**options, **fixed)


class Outcome:
    """What a decision changes, in the words of the case."""

    def __init__(self, scene: Scene, snap: Snapshot, decision: Decision) -> None:
        self.scene, self.snap, self.decision = scene, snap, decision
        self.nodes = scene.world.inventory.nodes
        self.row_of = {scene.world.ids[int(number)]: row for row, number in enumerate(decision.number)}

    def as_json(self) -> dict[str, Any]:
        """The outcome; `admits` and `binds` only where there are several."""
        admits = [self._admit(job.name) for job in self.scene.case.pending if self._starts(job.name)]
        binds = [self._bind(i) for i in range(len(self.decision.binds))]
        found: dict[str, Any] = {
            "admit": admits[0] if admits else None,
            "bind_priority_pod": binds[0] if binds else None,
            "scale_down": {},
            "scale_up": {},
        }
        for job in self.scene.case.running:
            old, new = self._before(job.name), self._after(job.name)
            lost = old[:, (old[INDEX] >= 0) & ~np.isin(old[INDEX], new[INDEX])]
            more = new[:, ~np.isin(new[INDEX], old[INDEX])]
            if lost.shape[1]:
                found["scale_down"][job.name] = self._lost(lost)
            if more.shape[1]:
                found["scale_up"][job.name] = {"n_added": _workers(more), "workers": self._by_node(more)} | self._gpus(
                    more
                )
        if len(admits) > 1:
            found["admits"] = admits
        if len(binds) > 1:
            found["binds"] = binds
        return found

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
        found = {"pod": bind.pod, "node": self.nodes[bind.node]}
        if self.scene.case.mode == "kubeshare" and bind.device >= 0:
            found["gpu"] = self.scene.gpuid.get(bind.device, "new")
        return found

    def _before(self, name: str) -> Ints:
        world = self.scene.world
        return world.places(world.target, world.slot(name))

    def _after(self, name: str) -> Ints:
        """The places of a job after the decision; a job of which it does not speak keeps them."""
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
        """Workers by node; those with a share by node and device."""
        if self.scene.case.mode == "nvidia" or not (places[DEVICE] >= 0).any():
            return self._by_node(places)
        found: dict[str, Any] = {}
        for node, device in zip(places[NODE].tolist(), places[DEVICE].tolist(), strict=True):
            devices = found.setdefault(self.nodes[node], {})
            name = self.scene.gpuid.get(device, "")
            devices[name] = devices.get(name, 0) + 1
        return found

    def _gpus(self, places: Ints) -> dict[str, Any]:
        """Shares by node and device; devices cut up just now have no name, only how many shares they got."""
        if self.scene.case.mode == "nvidia" or not (places[DEVICE] >= 0).any():
            return {}
        found: dict[str, dict[str, Any]] = {}
        shares = Counter(zip(places[NODE].tolist(), places[DEVICE].tolist(), strict=True))
        for (node, device), count in sorted(shares.items()):
            devices = found.setdefault(self.nodes[node], {})
            if device in self.scene.gpuid:
                devices[self.scene.gpuid[device]] = count
            else:
                devices["new"] = sorted([*devices.get("new", []), count], reverse=True)
        return {"gpus": found}


def _workers(places: Ints) -> int:
    return len(np.unique(places[INDEX]))


def _reasons(case: DragonCase, scene: Scene, snap: Snapshot, decision: Decision) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    row_of = {scene.world.ids[int(number)]: row for row, number in enumerate(snap.jobs.number)}
    for name in (*(job.name for job in case.running), *(job.name for job in case.pending)):
        if name in row_of:
            row = row_of[name]
            why = told(int(decision.reason[row]), int(decision.evidence[row]))
            found[name] = {"code": why.code, "text": why.text}
    invalid = {name: {"code": "invalid", "text": text} for name, text in scene.refused.items()}
    return found | invalid
