"""Water filling: raise all levels together; jobs that cannot rise stop.

Source: Narayanan et al., OSDI 2020 (water filling, and hierarchical fairness, which Gavel's scheduler never used). With
`entities` (name: {weight, policy}) the entities share the cluster by weight. Each entity divides its part among its own
jobs: fairly by their weights, or in the order of submission (`fifo`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from levada.compat.gavel.solver.interior import leximin_interior
from levada.compat.gavel.solver.interior_packed import leximin_packed_interior
from levada.core.types import Bools, Floats
from levada.errors import BadInput
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import (
    INTERIOR,
    LEXIMIN,
    can_run,
    even_shares_of,
    first_solved,
    pairs_of,
    problem_of,
    shares_of,
    unit_rates,
    which_shares,
)
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.leximin import hierarchical, leximin
from levada.solve.packed import hierarchical_packed, leximin_packed, max_min_packed
from levada.solve.problem import Solution


class Entity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of jobs with a part of the cluster, e.g. a team."""

    weight: float = 1.0
    policy: str = "fairness"


def entities_of(value: Any) -> dict[str, Entity]:
    """The option `entities`; raises BadInput."""
    if not isinstance(value, Mapping):
        raise BadInput.one("must be a mapping from names to {weight, policy}", "options.entities")
    entities = {}
    for name, fields in value.items():
        path = f"options.entities.{name}"
        try:
            entity = msgspec.convert(fields, Entity)
        except msgspec.ValidationError as error:
            raise BadInput.one(str(error), path) from None
        if not 0 < entity.weight < float("inf"):
            raise BadInput.one("must be a finite number above 0", f"{path}.weight")
        if entity.policy not in ("fairness", "fifo"):
            raise BadInput.one("must be fairness or fifo", f"{path}.policy")
        entities[str(name)] = entity
    return entities


class WaterFilling(ShareDefaults):
    """Water filling that treats all GPU types as equal."""

    name: ClassVar[str] = "max_min_fairness_water_filling"
    objective: ClassVar[str] = "leximin_normalized_agnostic"

    def __init__(self, shares: str = LEXIMIN, entities: Mapping[str, Any] | None = None) -> None:
        self.which = which_shares(shares)
        self.entities = entities_of(entities or {})

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the levels, lowest first."""
        published = self.which == INTERIOR and not self.entities
        solution = _fill(instance, unit_rates(instance), self.entities, published)
        return (shares_of(solution, can_run(instance)) if published else even_shares_of(solution, instance)), None


class WaterFillingPerf(ShareDefaults):
    """Water filling with the measured speed on each GPU type."""

    name: ClassVar[str] = "max_min_fairness_water_filling_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "leximin_normalized"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN, entities: Mapping[str, Any] | None = None) -> None:
        self.which = which_shares(shares)
        self.entities = entities_of(entities or {})

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the levels, lowest first."""
        published = self.which == INTERIOR and not self.entities
        solution = _fill(instance, instance.rate, self.entities, published)
        return shares_of(solution, can_run(instance) if published else None), None


class WaterFillingPacked(ShareDefaults):
    """Water filling with the speed on each GPU type and space sharing."""

    name: ClassVar[str] = "max_min_fairness_water_filling_packed"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "leximin_normalized_packed"
    aware: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN, entities: Mapping[str, Any] | None = None) -> None:
        self.which = which_shares(shares)
        self.entities = entities_of(entities or {})

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Shares that maximise the levels, lowest first."""
        published = self.which == INTERIOR and not self.entities
        problem = problem_of(instance, published=published)
        arguments = (problem, *pairs_of(instance, problem))
        if not self.entities:
            best = first_solved(partial(leximin_packed, *arguments), partial(max_min_packed, *arguments))
            if not published or best.levels is None:
                return shares_of(best, can_run(instance) if published else None), None
            centre = partial(leximin_packed_interior, *arguments, best.levels)
            return shares_of(first_solved(centre, lambda: best), can_run(instance)), None
        columns = _entity_columns(instance, self.entities)
        together = partial(hierarchical_packed, *arguments, *columns)
        return shares_of(first_solved(together, partial(hierarchical, problem, *columns))), None


def _fill(instance: Instance, rate: Floats, entities: Mapping[str, Entity], published: bool) -> Solution:
    problem = problem_of(instance, rate, published=published)
    best = hierarchical(problem, *_entity_columns(instance, entities)) if entities else leximin(problem)
    if not published:
        return best
    return first_solved(partial(leximin_interior, problem, best.levels), lambda: best)


def _entity_columns(instance: Instance, entities: Mapping[str, Entity]) -> tuple[Floats, Bools]:
    """By entity its weight, and whether it serves its jobs in order of submission."""
    names = instance.snap.entities
    weight, in_order = np.ones(len(names)), np.zeros(len(names), bool)
    for number, name in enumerate(names):
        if name in entities:
            weight[number] = entities[name].weight
            in_order[number] = entities[name].policy == "fifo"
    return weight, in_order
