"""Level by level: the worst-off as high as possible, then those who can still rise, and so on; by entities if given.

Source: Narayanan et al., OSDI 2020 (water filling, and hierarchical fairness, which Gavel's scheduler never used).
With `entities` (name: {weight, policy}) the entities share by weight, and each passes its part on to its own jobs:
fairly by their weights, or in the order of submission (`fifo`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from levada.core.types import Bools, Floats
from levada.errors import BadInput
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import (
    INTERIOR,
    LEXIMIN,
    able,
    all_alike,
    even_shares_of,
    pairs_of,
    problem_of,
    shares_of,
    sound,
    which_shares,
)
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs
from levada.solve.interior import leximin_interior
from levada.solve.interior_packed import leximin_packed_interior
from levada.solve.leximin import hierarchical, leximin
from levada.solve.packed import hierarchical_packed, leximin_packed, max_min_packed


class Entity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of those who share the cluster."""

    weight: float = 1.0
    policy: str = "fairness"


def entities_of(value: Any) -> dict[str, Entity]:
    """The option `entities`; raises BadInput."""
    if not isinstance(value, Mapping):
        raise BadInput.one("must be a mapping from names to {weight, policy}", "options.entities")
    found = {}
    for name, given in value.items():
        place = f"options.entities.{name}"
        try:
            entity = msgspec.convert(given, Entity)
        except msgspec.ValidationError as wrong:
            raise BadInput.one(str(wrong), place) from None
        if not 0 < entity.weight < float("inf"):
            raise BadInput.one("must be a finite number above 0", f"{place}.weight")
        if entity.policy not in ("fairness", "fifo"):
            raise BadInput.one("must be fairness or fifo", f"{place}.policy")
        found[str(name)] = entity
    return found


class WaterFilling(Sharing):
    """All types alike."""

    name: ClassVar[str] = "max_min_fairness_water_filling"
    objective: ClassVar[str] = "leximin_normalized_agnostic"

    def __init__(self, shares: str = LEXIMIN, entities: Mapping[str, Any] | None = None) -> None:
        self.which = which_shares(shares)
        self.entities = entities_of(entities or {})

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the highest levels, lowest first."""
        published = self.which == INTERIOR and not self.entities
        problem = problem_of(instance, instance.rate if self.aware else all_alike(instance), published=published)
        best = hierarchical(problem, *self._entities(instance)) if self.entities else leximin(problem)
        if not published:
            return (shares_of(best) if self.aware else even_shares_of(best, instance)), None
        middle = partial(leximin_interior, problem, best.levels)
        return shares_of(sound(middle, lambda: best), able(instance)), None

    def _entities(self, instance: Instance) -> tuple[Floats, Bools]:
        """By number the weight of each entity, and whether it serves its jobs in turn."""
        names = instance.snap.entities
        weight, in_turn = np.ones(len(names)), np.zeros(len(names), bool)
        for number, name in enumerate(names):
            if name in self.entities:
                weight[number] = self.entities[name].weight
                in_turn[number] = self.entities[name].policy == "fifo"
        return weight, in_turn


class WaterFillingPerf(WaterFilling):
    """Types as they are."""

    name: ClassVar[str] = "max_min_fairness_water_filling_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "leximin_normalized"
    aware: ClassVar[bool] = True


class WaterFillingPacked(WaterFillingPerf):
    """Types as they are, and two jobs may share GPUs."""

    name: ClassVar[str] = "max_min_fairness_water_filling_packed"
    objective: ClassVar[str] = "leximin_normalized_packed"
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares with the highest levels, lowest first."""
        published = self.which == INTERIOR and not self.entities
        problem = problem_of(instance, published=published)
        given = (problem, *pairs_of(instance, problem))
        if not self.entities:
            best = sound(partial(leximin_packed, *given), partial(max_min_packed, *given))
            if not published or best.levels is None:
                return shares_of(best, able(instance) if published else None), None
            middle = partial(leximin_packed_interior, *given, best.levels)
            return shares_of(sound(middle, lambda: best), able(instance)), None
        among = self._entities(instance)
        together, alone = partial(hierarchical_packed, *given, *among), partial(hierarchical, problem, *among)
        return shares_of(sound(together, alone)), None
