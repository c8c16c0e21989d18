"""Columns for two rows that share GPUs, added to a program of levels when their prices say that they help."""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import Answer
from levada.solve.levels import LevelLp

#: Columns added at a time.
_BATCH = 400
#: A column that gains less than this does not help.
_GAIN = 1e-9


class Columns:
    """All columns (a, b, type) of pairs that could help a program, and which of them it has.

    Time of a pair counts for both rows, its GPUs once. In a pair of a row with itself, two jobs of the row run.
    """

    def __init__(
        self, program: LevelLp, count: Floats, scale: Floats, pairs: Ints, c: Floats, worth: Floats | None = None
    ) -> None:
        """*c* (pairs, types, 2) are levels per unit of time together; *worth* (pairs, types) as in `LevelLp`."""
        self.program = program
        kept, types = np.nonzero(_helpful(program, count, scale, pairs, c))
        self.kind = types
        self.a, self.b = a, b = pairs[kept, 0], pairs[kept, 1]
        #: Time of a whole class, in the program's unit for each of its jobs.
        whole = count * program.time
        self.unit = np.minimum(whole[a], whole[b])
        self.twice = a == b
        first, second = c[kept, types, 0], c[kept, types, 1]
        share_a, share_b = self.unit / count[a], self.unit / count[b]
        self.level_a, self.level_b = first * share_a * program.row[a], second * share_b * program.row[b]
        self.time_a, self.time_b = share_a / program.time[a], share_b / program.time[b]
        self.use = scale[a] * self.unit / program.cap[types]
        self.cost = np.zeros(len(a)) if worth is None else worth[kept, types] * self.unit / program.money
        #: No column can be larger than this.
        self.most = np.minimum(count[a], count[b]) / self.unit / np.where(self.twice, 2.0, 1.0)
        self.kept = kept
        self.present: list[Ints] = []
        self.inside = np.zeros(len(a), np.bool_)

    def gain(self, dual: Floats) -> Floats:
        """What a unit of each column adds to the objective at these duals."""
        types = len(self.program.capacity)
        level, time = dual[types::2], dual[types + 1 :: 2]
        return (
            self.cost
            - level[self.a] * self.level_a
            - level[self.b] * self.level_b
            - time[self.a] * self.time_a
            - time[self.b] * self.time_b
            - dual[:types][self.kind] * self.use
        )

    def solve(self) -> tuple[Answer, float]:
        """The optimum over all columns, and how much too small it can be at most; raises NoAnswer without one."""
        while True:
            answer = self.program.optimum()
            gain = self.gain(answer.dual)
            better = np.flatnonzero((gain > _GAIN) & ~self.inside)
            if not len(better):
                return answer, float((np.maximum(gain, 0.0) * self.most).sum())
            if len(better) > _BATCH:
                better = better[np.sort(np.argsort(-gain[better], kind="stable")[:_BATCH])]
            self.add(better)

    def add(self, chosen: Ints) -> None:
        """Puts these columns into the program."""
        types = len(self.program.capacity)
        a, b = self.a[chosen], self.b[chosen]
        twice = self.twice[chosen]
        # Of a row with itself there is one entry, which counts both jobs.
        entries = np.ones((len(chosen), 5), np.bool_)
        entries[twice, 3:] = False
        both = np.where(twice, 1.0, 0.0)
        index = np.column_stack([self.kind[chosen], *(types + 2 * row + more for row in (a, b) for more in (0, 1))])
        value = np.column_stack(
            [
                self.use[chosen],
                self.level_a[chosen] + both * self.level_b[chosen],
                self.time_a[chosen] + both * self.time_b[chosen],
                self.level_b[chosen],
                self.time_b[chosen],
            ]
        )
        start = np.concatenate([[0], np.cumsum(entries.sum(axis=1))])
        self.program.model.add(self.cost[chosen], start, index[entries], value[entries])
        self.present.append(chosen)
        self.inside[chosen] = True

    def masses(self, x: Floats, pairs: int) -> Floats:
        """(pairs, types): total time together in an answer."""
        mass = np.zeros((pairs, len(self.program.capacity)))
        if self.present:
            chosen = np.concatenate(self.present)
            amount = x[len(x) - len(chosen) :] * self.unit[chosen]
            np.add.at(mass, (self.kept[chosen], self.kind[chosen]), amount)
        return mass


def _helpful(program: LevelLp, count: Floats, scale: Floats, pairs: Ints, c: Floats) -> Bools:
    """(pairs, types): where running together may be better than one after the other.

    Where a / (a alone) + b / (b alone) <= 1, each alone for these parts of the time gets as much and needs no more.
    """
    a, b = pairs[:, 0], pairs[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(c[:, :, 0] / program.c[a], posinf=np.inf) + np.nan_to_num(
            c[:, :, 1] / program.c[b], posinf=np.inf
        )
    fit = (scale[a] == scale[b]) & program.part[a] & program.part[b] & ((a != b) | (count[a] >= 2))
    return (ratio > 1.0) & fit[:, None] & (program.capacity > 0)


def between_jobs(pairs: Ints, mass: Floats, of: Ints, rows: int) -> tuple[Ints, Floats]:
    """Pairs of jobs and their shares, from pairs of rows and their total time: few pairs, jobs of a row alike."""
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=rows))
    found: list[Ints] = [np.zeros((0, 2), np.int64)]
    shares: list[Floats] = [np.zeros((0, mass.shape[1]))]
    for pair in np.flatnonzero(mass.any(axis=1)).tolist():
        a, b = pairs[pair].tolist()
        left, right = (order[ends[row - 1] if row else 0 : ends[row]] for row in (a, b))
        if a == b:
            who = _among(len(left))
            part = np.full(len(who), 1.0 / len(who))
        else:
            who, part = _across(len(left), len(right))
        found.append(np.column_stack([left[who[:, 0]], right[who[:, 1]]]))
        shares.append(part[:, None] * mass[pair])
    return np.concatenate(found), np.concatenate(shares)


def _among(jobs: int) -> Ints:
    """Pairs in which every job comes equally often: two by two, or all in a ring where they are odd."""
    numbers = np.arange(jobs)
    if jobs % 2 == 0:
        return numbers.reshape(-1, 2)
    return np.column_stack([numbers, np.roll(numbers, -1)])


def _across(left: int, right: int) -> tuple[Ints, Floats]:
    """Pairs that give each of *left* and each of *right* jobs an equal part, and their parts of the whole."""
    cuts = np.union1d(np.arange(left + 1) * right, np.arange(right + 1) * left)
    start = cuts[:-1]
    return np.column_stack([start // right, start // left]), np.diff(cuts) / (left * right)
