"""Total time of classes in which each job has its own required rate.

Jobs of a class have common speeds v_1 <= .. <= v_T and required rates r_j. Total times y can be split such that all
jobs reach their rates if and only if, for every speed v_m (and v_0 = 0),

    sum_k max(v_k - v_m, 0) y_k  >=  sum_j max(r_j - v_m, 0)        and        sum_k y_k <= jobs.

(`class_split.split_classes` splits them.) So a class of any size needs one row per type and one more.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import Basis, Lp, LpModel

#: Rows are divided by their lower bound, but at least by this fraction of that of the class's first row.
_LEAST = 1e-4


class ClassTotals(msgspec.Struct, frozen=True):
    """Total time by class and type."""

    mass: Floats  #: (rows, types)
    value: float  #: the objective value, or the required fraction of every type
    prices: Floats  #: (types,)
    basis: Basis


class ClassSpeeds(msgspec.Struct, frozen=True):
    """Classes of jobs with required rates: their speeds and sizes."""

    rate: Floats  #: (rows, types)
    scale: Floats
    count: Floats
    capacity: Floats
    of: Ints  #: (jobs,)

    @property
    def step(self) -> Floats:
        """(rows, types): v_0 = 0 and the speeds except the largest, ascending."""
        step = np.sort(self.rate, axis=1)
        step[:, 1:] = step[:, :-1]
        step[:, 0] = 0.0
        return step

    def excess(self, need: Floats) -> Floats:
        """(rows, types): total excess of the required rates of a class over each step."""
        over = np.maximum(need[:, None] - self.step[self.of], 0.0)
        return np.column_stack([np.bincount(self.of, column, len(self.rate)) for column in over.T])


def class_speeds(rate: Floats, scale: Floats, count: Floats, capacity: Floats, of: Ints) -> ClassSpeeds:
    """Create `ClassSpeeds`; types without GPUs have speed 0."""
    return ClassSpeeds(np.where(capacity > 0, rate, 0.0), scale, count, capacity, of)


def min_load(classes: ClassSpeeds, need: Floats, basis: Basis | None = None) -> ClassTotals | None:
    """Minimize the fraction of the cluster, equal for all types, that gives all jobs their rates.

    Above 1 = infeasible. None if the required rate of a job exceeds that of its fastest type.
    """
    return _solve(classes, classes.excess(need), None, basis)


def max_total(classes: ClassSpeeds, worth: Floats, need: Floats, basis: Basis | None = None) -> ClassTotals | None:
    """Maximize the total *worth* (rows, types) of time with all required rates; None if infeasible."""
    return _solve(classes, classes.excess(need), worth, basis)


def _solve(classes: ClassSpeeds, excess: Floats, worth: Floats | None, basis: Basis | None) -> ClassTotals | None:
    """Solve the program. Columns: load, types of each row. Rows: capacities, time and steps of each row."""
    rows, types = classes.rate.shape
    max_rate = classes.rate.max(axis=1, initial=0.0)
    runnable = (max_rate > 0) & (classes.count > 0)
    if worth is None:
        runnable &= excess[:, 0] > 0
    usable = (classes.rate > 0) & runnable[:, None]
    safe_max = np.where(runnable, max_rate, 1.0)
    # The unit of time is what the class needs on its fastest type; without required rates, all its time.
    needed = excess[:, 0] / safe_max
    unit = np.where(runnable, np.where(needed > 0, needed, classes.count), 1.0)
    use = (classes.scale * unit)[:, None] * usable
    cap = np.maximum(np.maximum(use.max(axis=0, initial=0.0), classes.capacity), 1e-300)
    row_scale = np.maximum(excess, _LEAST * excess[:, :1])
    row_scale = np.where(row_scale > 0, row_scale, 1.0)
    gain = np.maximum(classes.rate[:, :, None] - classes.step[:, None, :], 0.0)  # (rows, types, steps)
    gain *= (unit[:, None] / row_scale)[:, None, :] * usable[:, :, None]
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
    upper_rows[first] = classes.count / unit
    lower_rows[types:].reshape(rows, per_row)[:, 1:] = np.where(
        runnable[:, None] & (excess > 0), excess / row_scale, -np.inf
    )
    if worth is None:
        objective_unit, cost[0] = 1.0, -1.0
        upper_rows[:types] = 0.0
    else:
        gains = np.where(usable, worth * unit[:, None], 0.0)
        objective_unit = float(gains.max(initial=0.0)) or 1.0
        cost[1:] = gains.ravel() / objective_unit
        upper[0] = 0.0
        upper_rows[:types] = classes.capacity / cap
    model = LpModel(
        Lp(
            cost=cost,
            lower=np.zeros(columns),
            upper=upper,
            row_lower=lower_rows,
            row_upper=upper_rows,
            start=np.concatenate([[0, types], types + (2 + types) * np.arange(1, rows * types + 1)]),
            index=np.concatenate([np.arange(types), index.ravel()]),
            value=np.concatenate([-classes.capacity / cap, value.ravel()]),
        ),
        basis,
    )
    solution = model.solve()
    if solution is None:
        return None
    mass = np.maximum(solution.x[1:].reshape(rows, types), 0.0) * unit[:, None]
    prices = np.maximum(solution.dual[:types], 0.0) * objective_unit / cap
    return ClassTotals(mass, abs(solution.value) * objective_unit, prices, model.basis())
