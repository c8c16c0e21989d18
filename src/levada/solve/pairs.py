"""Columns for two rows that share GPUs, added to a program of levels when their prices say that they help."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import Answer
from levada.solve.levels import NOISE, LevelLp

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
        a, b = pairs[kept, 0], pairs[kept, 1]
        first, second = c[kept, types, 0], c[kept, types, 1]
        #: The level that each row could have with all of its time where it is fastest, alone or together.
        self.most = program.best.copy()
        np.maximum.at(self.most, a, first)
        np.maximum.at(self.most, b, second)
        #: Time of a whole class, in the program's unit for each of its jobs.
        whole = count * program.time
        unit = np.minimum(whole[a], whole[b])
        share_a, share_b = unit / count[a], unit / count[b]
        self._left = Candidates(
            pair=kept,
            kind=types,
            a=a,
            b=b,
            unit=unit,
            level_a=first * share_a * program.row[a],
            level_b=second * share_b * program.row[b],
            time_a=share_a / program.time[a],
            time_b=share_b / program.time[b],
            use=scale[a] * unit / program.cap[types],
            cost=np.zeros(len(a)) if worth is None else worth[kept, types] * unit / program.money,
            most=np.minimum(count[a], count[b]) / unit / np.where(a == b, 2.0, 1.0),
        )
        self._waits = np.ones(len(a), np.bool_)  # those that are neither in the program nor useless
        self._free = worth is None  # no column adds anything but by the rows it helps
        self._inside: list[Candidates] = []

    def solve(self, most_steps: int | None = None) -> tuple[Answer, float]:
        """The optimum over all columns, and how much too small it can be at most; raises NoAnswer without one.

        See `LevelLp.optimum` for *most_steps*.
        """
        while True:
            answer = self.program.optimum(most_steps)
            which, gain = self._gain(answer.dual)
            if not (gain > _GAIN).any():
                return answer, float(np.maximum(gain, 0.0) @ self._left.most[which])
            self._add(which[self._best(which, gain)])

    def add_all(self) -> None:
        """Puts all columns into the program."""
        self._add(np.flatnonzero(self._waits))

    def narrow(self, answer: Answer) -> None:
        """As of `LevelLp`; columns that are 0 in all optima are forgotten."""
        which, gain = self._gain(answer.dual)
        useless = gain < -NOISE
        if useless.any():
            self._forget(which[useless])
        self.program.narrow(answer)

    def _gain(self, dual: Floats) -> tuple[Ints, Floats]:
        """What a unit of each column adds to the objective at these duals; columns not named add nothing."""
        left, types = self._left, len(self.program.capacity)
        prices, level, time = dual[:types], dual[types::2], dual[types + 1 :: 2]
        if self._free and not prices.any():
            touched = (level != 0) | (time != 0)
            which = np.flatnonzero((touched[left.a] | touched[left.b]) & self._waits)
        else:
            which = np.flatnonzero(self._waits)
        a, b = left.a[which], left.b[which]
        gain = left.cost[which] - prices[left.kind[which]] * left.use[which]
        gain -= level[a] * left.level_a[which] + level[b] * left.level_b[which]
        gain -= time[a] * left.time_a[which] + time[b] * left.time_b[which]
        return which, gain

    def _best(self, which: Ints, gain: Floats) -> Bools:
        """The columns that gain most for one of their rows on their type: many that differ beat many of the best."""
        left, types = self._left, len(self.program.capacity)
        best = np.full(len(self.program.c) * types, _GAIN)
        one, other = left.a[which] * types + left.kind[which], left.b[which] * types + left.kind[which]
        np.maximum.at(best, one, gain)
        np.maximum.at(best, other, gain)
        return (gain > _GAIN) & ((gain == best[one]) | (gain == best[other]))

    def _forget(self, which: Ints) -> None:
        self._waits[which] = False
        # To copy what is left costs more than to pass over a few that are gone.
        if 2 * np.count_nonzero(self._waits) < len(self._waits):
            self._left = self._left.only(self._waits)
            self._waits = np.ones(len(self._left.a), np.bool_)

    def _add(self, which: Ints) -> None:
        chosen = self._left.only(which)
        self._forget(which)
        self._inside.append(chosen)
        types = len(self.program.capacity)
        # Of a row with itself there is one entry, which counts both jobs.
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
        self.program.model.add(chosen.cost, start, index[entries], value[entries])

    def masses(self, x: Floats, pairs: int) -> Floats:
        """(pairs, types): total time together in an answer."""
        mass = np.zeros((pairs, len(self.program.capacity)))
        at = len(x) - sum(len(chosen.a) for chosen in self._inside)
        for chosen in self._inside:
            amount = x[at : at + len(chosen.a)] * chosen.unit
            np.add.at(mass, (chosen.pair, chosen.kind), amount)
            at += len(chosen.a)
        return mass


def alone(program: LevelLp) -> Columns:
    """No columns: nobody shares."""
    rows, types = program.c.shape
    return Columns(program, np.ones(rows), np.ones(rows), np.zeros((0, 2), np.int64), np.zeros((0, types, 2)))


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of pairs as the program would have them, in its units."""

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
    most: Floats  #: no column can be larger than this

    def only(self, which: Ints | Bools) -> Candidates:
        """These of them."""
        return Candidates(**{name: getattr(self, name)[which] for name in self.__struct_fields__})


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


def of_jobs(pairs: Ints, of: Ints, rows: int) -> tuple[Ints, Ints]:
    """All pairs of jobs of these pairs of rows, a job of a row with itself among them; and the pair each comes from."""
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=rows))
    found, source = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, (a, b) in enumerate(pairs.tolist()):
        left, right = (order[ends[row - 1] if row else 0 : ends[row]] for row in (a, b))
        both = np.column_stack([np.repeat(left, len(right)), np.tile(right, len(left))])
        if a == b:
            both = both[both[:, 0] <= both[:, 1]]
        found.append(both)
        source.append(np.full(len(both), number))
    return np.concatenate(found), np.concatenate(source)


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
