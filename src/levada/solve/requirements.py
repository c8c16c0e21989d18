"""What a class must have for each of its jobs to reach a rate of its own.

Jobs of a class have common speeds v_1 <= .. <= v_T and needs r_j of their own. Totals y of time can be split so that
all needs are met if and only if, for every speed v_m (and v_0 = 0),

    sum_k max(v_k - v_m, 0) y_k  >=  sum_j max(r_j - v_m, 0)        and        sum_k y_k <= jobs.

(`split.shadow` does it.) So a class of any size needs as many rows as there are types, and one.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import Basis, Lp, Model

#: Rows are divided by what they ask for, but by no less than this part of the class's first row.
_LEAST = 1e-4


class Plan(msgspec.Struct, frozen=True):
    """Totals of time by class and type."""

    mass: Floats  #: (rows, types)
    value: float  #: the objective, or the load that is needed of every type
    prices: Floats  #: (types,)
    basis: Basis


class Speeds(msgspec.Struct, frozen=True):
    """The classes that have needs: their speeds, and the steps between them."""

    rate: Floats  #: (rows, types)
    step: Floats  #: (rows, types): v_0 = 0 and the speeds but the largest, ascending
    scale: Floats
    count: Floats
    capacity: Floats
    of: Ints  #: (jobs,)

    def excess(self, need: Floats) -> Floats:
        """(rows, types): how much the needs of a class exceed each step, together."""
        over = np.maximum(need[:, None] - self.step[self.of], 0.0)
        return np.column_stack([np.bincount(self.of, column, len(self.rate)) for column in over.T])


def speeds(rate: Floats, scale: Floats, count: Floats, capacity: Floats, of: Ints) -> Speeds:
    """The speeds of classes, where types without GPUs have speed 0."""
    rate = np.where(capacity > 0, rate, 0.0)
    step = np.sort(rate, axis=1)
    step[:, 1:] = step[:, :-1]
    step[:, 0] = 0.0
    return Speeds(rate, step, scale, count, capacity, of)


def least_load(given: Speeds, need: Floats, basis: Basis | None = None) -> Plan | None:
    """The least part of the cluster, the same of every type, that meets all needs; above 1 = there is too little.

    None where a job needs more than its fastest type gives.
    """
    return _solve(given, given.excess(need), None, basis)


def best_total(given: Speeds, worth: Floats, need: Floats, basis: Basis | None = None) -> Plan | None:
    """The largest total of *worth* (rows, types) of time with all needs met; None where they cannot be."""
    return _solve(given, given.excess(need), worth, basis)


def _solve(given: Speeds, excess: Floats, worth: Floats | None, basis: Basis | None) -> Plan | None:
    """Columns: the load, then the types of each row. Rows: capacities, then time and steps of each row."""
    rows, types = given.rate.shape
    best = given.rate.max(axis=1, initial=0.0)
    part = (best > 0) & (given.count > 0)
    if worth is None:
        part &= excess[:, 0] > 0
    usable = (given.rate > 0) & part[:, None]
    safe_best = np.where(part, best, 1.0)
    # Time in units of what the class would need on its fastest type; without needs, of all its time.
    needed = excess[:, 0] / safe_best
    unit = np.where(part, np.where(needed > 0, needed, given.count), 1.0)
    use = (given.scale * unit)[:, None] * usable
    cap = np.maximum(np.maximum(use.max(axis=0, initial=0.0), given.capacity), 1e-300)
    asked = np.maximum(excess, _LEAST * excess[:, :1])
    asked = np.where(asked > 0, asked, 1.0)
    gain = np.maximum(given.rate[:, :, None] - given.step[:, None, :], 0.0)  # (rows, types, steps)
    gain *= (unit[:, None] / asked)[:, None, :] * usable[:, :, None]
    per_row = 1 + types
    first = types + per_row * np.arange(rows)
    index = np.empty((rows, types, 2 + types), np.int64)
    index[:, :, 0] = np.arange(types)
    index[:, :, 1:] = first[:, None, None] + np.arange(per_row)
    value = np.empty((rows, types, 2 + types))
    value[:, :, 0] = use / cap
    value[:, :, 1] = 1.0
    value[:, :, 2:] = gain
    columns, all_rows = 1 + rows * types, types + per_row * rows
    lower_rows, upper_rows = np.full(all_rows, -np.inf), np.full(all_rows, np.inf)
    cost, upper = np.zeros(columns), np.full(columns, np.inf)
    upper[1:] = np.where(usable.ravel(), np.inf, 0.0)
    upper_rows[first] = given.count / unit
    lower_rows[types:].reshape(rows, per_row)[:, 1:] = np.where(part[:, None] & (excess > 0), excess / asked, -np.inf)
    if worth is None:
        money, cost[0] = 1.0, -1.0
        upper_rows[:types] = 0.0
    else:
        gains = np.where(usable, worth * unit[:, None], 0.0)
        money = float(gains.max(initial=0.0)) or 1.0
        cost[1:] = gains.ravel() / money
        upper[0] = 0.0
        upper_rows[:types] = given.capacity / cap
    model = Model(
        Lp(
            cost=cost,
            lower=np.zeros(columns),
            upper=upper,
            row_lower=lower_rows,
            row_upper=upper_rows,
            start=np.concatenate([[0, types], types + (2 + types) * np.arange(1, rows * types + 1)]),
            index=np.concatenate([np.arange(types), index.ravel()]),
            value=np.concatenate([-given.capacity / cap, value.ravel()]),
        ),
        basis,
    )
    answer = model.solve()
    if answer is None:
        return None
    mass = np.maximum(answer.x[1:].reshape(rows, types), 0.0) * unit[:, None]
    prices = np.maximum(answer.dual[:types], 0.0) * money / cap
    return Plan(mass, abs(answer.value) * money, prices, model.basis())
