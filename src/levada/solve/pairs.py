"""Column generation for pairs of rows that share GPUs."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import LpSolution
from levada.solve.levels import NOISE, LevelLp

#: Columns with a smaller reduced cost are not added.
_GAIN = 1e-9


class PairColumns:
    """The columns (a, b, type) of pairs that can improve a program; it contains some of them.

    The time of a pair counts for both rows, its GPUs once. A pair of a row with itself is two jobs of the row.
    """

    def __init__(
        self, program: LevelLp, count: Floats, scale: Floats, pairs: Ints, c: Floats, worth: Floats | None = None
    ) -> None:
        """*c* (pairs, types, 2): levels per unit of shared time; *worth* (pairs, types) as in `LevelLp`."""
        self.program = program
        helpful, types = np.nonzero(_helpful(program, count, scale, pairs, c))
        a, b = pairs[helpful, 0], pairs[helpful, 1]
        first, second = c[helpful, types, 0], c[helpful, types, 1]
        #: The level of each row on its fastest type, alone or in a pair.
        self.max_level = program.max_level.copy()
        np.maximum.at(self.max_level, a, first)
        np.maximum.at(self.max_level, b, second)
        #: Total time of each class, in the units of the program.
        class_time = count * program.time
        unit = np.minimum(class_time[a], class_time[b])
        share_a, share_b = unit / count[a], unit / count[b]
        self._candidates = Candidates(
            pair=helpful,
            kind=types,
            a=a,
            b=b,
            unit=unit,
            level_a=first * share_a * program.row[a],
            level_b=second * share_b * program.row[b],
            time_a=share_a / program.time[a],
            time_b=share_b / program.time[b],
            use=scale[a] * unit / program.cap[types],
            cost=np.zeros(len(a)) if worth is None else worth[helpful, types] * unit / program.objective_unit,
            upper=np.minimum(count[a], count[b]) / unit / np.where(a == b, 2.0, 1.0),
        )
        self._open = np.ones(len(a), np.bool_)  # neither in the program nor excluded
        self._no_cost = worth is None  # columns count only through the levels of their rows
        self._added: list[Candidates] = []

    def solve(self, iteration_limit: int | None = None) -> tuple[LpSolution, float]:
        """The optimum over all columns, and the largest possible error of its value; raises NoSolution.

        See `LevelLp.optimum` for *iteration_limit*.
        """
        while True:
            solution = self.program.optimum(iteration_limit)
            which, gain = self._reduced_costs(solution.dual)
            if not (gain > _GAIN).any():
                return solution, float(np.maximum(gain, 0.0) @ self._candidates.upper[which])
            self._add(which[self._select(which, gain)])

    def add_all(self) -> None:
        """Add all columns to the program."""
        self._add(np.flatnonzero(self._open))

    def restrict_to_face(self, solution: LpSolution) -> None:
        """See `LevelLp`; columns that are 0 in all optima are excluded."""
        which, gain = self._reduced_costs(solution.dual)
        excluded = gain < -NOISE
        if excluded.any():
            self._exclude(which[excluded])
        self.program.restrict_to_face(solution)

    def _reduced_costs(self, dual: Floats) -> tuple[Ints, Floats]:
        """Columns and their reduced costs at these duals; those of other columns are 0."""
        columns, types = self._candidates, len(self.program.capacity)
        prices, level, time = dual[:types], dual[types::2], dual[types + 1 :: 2]
        if self._no_cost and not prices.any():
            touched = (level != 0) | (time != 0)
            which = np.flatnonzero((touched[columns.a] | touched[columns.b]) & self._open)
        else:
            which = np.flatnonzero(self._open)
        a, b = columns.a[which], columns.b[which]
        gain = columns.cost[which] - prices[columns.kind[which]] * columns.use[which]
        gain -= level[a] * columns.level_a[which] + level[b] * columns.level_b[which]
        gain -= time[a] * columns.time_a[which] + time[b] * columns.time_b[which]
        return which, gain

    def _select(self, which: Ints, gain: Floats) -> Bools:
        """Columns with the largest gain of one of their rows on their type: diverse columns need fewer rounds."""
        columns, types = self._candidates, len(self.program.capacity)
        max_gain = np.full(len(self.program.c) * types, _GAIN)
        one, other = columns.a[which] * types + columns.kind[which], columns.b[which] * types + columns.kind[which]
        np.maximum.at(max_gain, one, gain)
        np.maximum.at(max_gain, other, gain)
        return (gain > _GAIN) & ((gain == max_gain[one]) | (gain == max_gain[other]))

    def _exclude(self, which: Ints) -> None:
        self._open[which] = False
        # Skipping a few excluded columns is cheaper than copying the others.
        if 2 * np.count_nonzero(self._open) < len(self._open):
            self._candidates = self._candidates.select(self._open)
            self._open = np.ones(len(self._candidates.a), np.bool_)

    def _add(self, which: Ints) -> None:
        chosen = self._candidates.select(which)
        self._exclude(which)
        self._added.append(chosen)
        types = len(self.program.capacity)
        # A pair of a row with itself has one entry, which counts both jobs.
        twice = chosen.a == chosen.b
        entries = np.ones((len(which), 5), np.bool_)
        entries[twice, 3:] = False
        both = np.where(twice, 1.0, 0.0)
        index = np.column_stack(
            [chosen.kind, *(types + 2 * row + more for row in (chosen.a, chosen.b) for more in (0, 1))]
        )
        value = np.column_stack(
            [
                chosen.use,
                chosen.level_a + both * chosen.level_b,
                chosen.time_a + both * chosen.time_b,
                chosen.level_b,
                chosen.time_b,
            ]
        )
        start = np.concatenate([[0], np.cumsum(entries.sum(axis=1))])
        self.program.model.add_columns(chosen.cost, start, index[entries], value[entries])

    def masses(self, x: Floats, pairs: int) -> Floats:
        """(pairs, types): total shared time in a solution."""
        mass = np.zeros((pairs, len(self.program.capacity)))
        at = len(x) - sum(len(chosen.a) for chosen in self._added)
        for chosen in self._added:
            amount = x[at : at + len(chosen.a)] * chosen.unit
            np.add.at(mass, (chosen.pair, chosen.kind), amount)
            at += len(chosen.a)
        return mass


def no_pairs(program: LevelLp) -> PairColumns:
    """No columns: jobs do not share GPUs."""
    rows, types = program.c.shape
    return PairColumns(program, np.ones(rows), np.ones(rows), np.zeros((0, 2), np.int64), np.zeros((0, types, 2)))


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of pairs, in the units of the program."""

    pair: Ints  #: number of the pair
    kind: Ints  #: GPU type
    a: Ints
    b: Ints
    unit: Floats
    level_a: Floats
    level_b: Floats
    time_a: Floats
    time_b: Floats
    use: Floats
    cost: Floats
    upper: Floats  #: upper bound of each column

    def select(self, which: Ints | Bools) -> Candidates:
        """A subset of the columns."""
        return Candidates(**{name: getattr(self, name)[which] for name in self.__struct_fields__})


def _helpful(program: LevelLp, count: Floats, scale: Floats, pairs: Ints, c: Floats) -> Bools:
    """(pairs, types): where sharing may be better than running one after the other.

    It is not if a / (a alone) + b / (b alone) <= 1: running each alone for these fractions of time gives the same.
    """
    a, b = pairs[:, 0], pairs[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(c[:, :, 0] / program.c[a], posinf=np.inf) + np.nan_to_num(
            c[:, :, 1] / program.c[b], posinf=np.inf
        )
    fit = (scale[a] == scale[b]) & program.runnable[a] & program.runnable[b] & ((a != b) | (count[a] >= 2))
    return (ratio > 1.0) & fit[:, None] & (program.capacity > 0)


def assign_pairs(pairs: Ints, mass: Floats, of: Ints, rows: int) -> tuple[Ints, Floats]:
    """Convert pairs of rows to few pairs of jobs and their shares; jobs of a row get equal shares."""
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=rows))
    job_pairs: list[Ints] = [np.zeros((0, 2), np.int64)]
    shares: list[Floats] = [np.zeros((0, mass.shape[1]))]
    for pair in np.flatnonzero(mass.any(axis=1)).tolist():
        a, b = pairs[pair].tolist()
        left, right = (order[ends[row - 1] if row else 0 : ends[row]] for row in (a, b))
        if a == b:
            members = _pairs_within(len(left))
            part = np.full(len(members), 1.0 / len(members))
        else:
            members, part = _pairs_between(len(left), len(right))
        job_pairs.append(np.column_stack([left[members[:, 0]], right[members[:, 1]]]))
        shares.append(part[:, None] * mass[pair])
    return np.concatenate(job_pairs), np.concatenate(shares)


def expand_pairs(pairs: Ints, of: Ints, rows: int) -> tuple[Ints, Ints]:
    """All pairs of jobs of these pairs of rows, including a job with itself, and the pair of rows of each."""
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=rows))
    job_pairs, source = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, (a, b) in enumerate(pairs.tolist()):
        left, right = (order[ends[row - 1] if row else 0 : ends[row]] for row in (a, b))
        both = np.column_stack([np.repeat(left, len(right)), np.tile(right, len(left))])
        if a == b:
            both = both[both[:, 0] <= both[:, 1]]
        job_pairs.append(both)
        source.append(np.full(len(both), number))
    return np.concatenate(job_pairs), np.concatenate(source)


def _pairs_within(jobs: int) -> Ints:
    """Pairs in which all jobs occur equally often: two by two, or a ring if their number is odd."""
    numbers = np.arange(jobs)
    if jobs % 2 == 0:
        return numbers.reshape(-1, 2)
    return np.column_stack([numbers, np.roll(numbers, -1)])


def _pairs_between(left: int, right: int) -> tuple[Ints, Floats]:
    """Pairs of *left* and *right* jobs that treat the jobs of each side equally, and their fractions of the time."""
    cuts = np.union1d(np.arange(left + 1) * right, np.arange(right + 1) * left)
    start = cuts[:-1]
    return np.column_stack([start // right, start // left]), np.diff(cuts) / (left * right)
