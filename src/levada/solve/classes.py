"""Jobs with equal rates, scale, weight and entity are one row.

Exact for every objective that treats equal jobs alike (max-min, leximin, sums, cost, geometric mean, pairs): averaging
an optimum over the jobs of a class is feasible and no worse. 16,384 jobs of a usual workload are 166 rows.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import classes
from levada.solve.problem import Problem


def classify(problem: Problem) -> Problem:
    """The same problem with equal jobs put into one row, in the order in which they first appear.

    O(jobs log jobs). A problem that has classes already is given back as it is.
    """
    if problem.of is not None:
        return problem
    first, of = classes.distinct_rows(_keys(problem.rate, problem.scale, problem.weight, problem.entity))
    return Problem(
        rate=problem.rate[first],
        scale=problem.scale[first],
        weight=problem.weight[first],
        entity=problem.entity[first],
        capacity=problem.capacity,
        of=of,
    )


def _keys(rate: Floats, scale: Floats, weight: Floats, entity: Ints) -> Floats:
    return np.column_stack([rate, scale, weight, entity.astype(np.float64)])


class Classes:
    """Classes that are kept while jobs come and go. A class keeps its number for ever, also when it is empty.

    The caller keeps the number of each job's class, which `add` gives and `remove` takes back.
    """

    def __init__(self, types: int) -> None:
        self.types = types
        self.count: Ints = np.zeros(0, np.int64)  #: jobs in each class
        self._rows: Floats = np.zeros((0, types + 3))
        self._number: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.count)

    def add(self, rate: Floats, scale: Floats, weight: Floats, entity: Ints) -> Ints:
        """The class of each of these jobs, which are counted in it from now on."""
        keys = _keys(rate, scale, weight, entity) + 0.0
        first, of = classes.distinct_rows(keys)
        numbers = np.empty(len(first), np.int64)
        new = []
        for at, row in enumerate(first.tolist()):
            name = keys[row].tobytes()
            number = self._number.get(name)
            if number is None:
                number = self._number[name] = len(self._number)
                new.append(row)
            numbers[at] = number
        if new:
            self._rows = np.concatenate([self._rows, keys[new]])
            self.count = np.concatenate([self.count, np.zeros(len(new), np.int64)])
        mine = numbers[of]
        self.count += np.bincount(mine, minlength=len(self.count))
        return mine

    def remove(self, of: Ints) -> None:
        """Jobs of these classes, one entry per job, are gone."""
        self.count -= np.bincount(of, minlength=len(self.count))

    def problem(self, of: Ints, capacity: Floats) -> Problem:
        """The problem of jobs that are in the classes *of*: those of all that are counted, in any order."""
        types = self.types
        return Problem(
            rate=self._rows[:, :types],
            scale=self._rows[:, types],
            weight=self._rows[:, types + 1],
            entity=self._rows[:, types + 2].astype(np.int64),
            capacity=capacity,
            of=of,
        )

    def copy(self) -> Classes:
        """Classes that change on their own from here on."""
        twin = Classes(self.types)
        twin.count, twin._rows, twin._number = self.count.copy(), self._rows, dict(self._number)
        return twin
