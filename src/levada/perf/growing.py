"""From numbers that only grow (jobs, workloads, GPU types) to rows of a table, for whole arrays at once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from levada.perf.model import Int32s, Ints

#: For fewer numbers than this, plain Python is faster than numpy.
FEW = 32


class NameList(Protocol):
    """Names by number, like `core.names.Names` or a tuple. It may grow; a name keeps its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> str: ...


class Growing:
    """A map of numbers >= 0 to rows, in one array; every other number, negative ones too, maps to *otherwise*.

    For numbers that are given out one after the other. One look per number asked, O(numbers ever) memory, 4 bytes each;
    `lookup.Lookup` is for sparse ones.
    """

    __slots__ = ("_otherwise", "_rows", "length")

    def __init__(self, otherwise: int) -> None:
        self._otherwise = otherwise
        # Shifted by one, so that -1 and what is below it meets the first element; the last one is never given.
        self._rows = np.full(16, otherwise, np.int32)
        #: All names below were looked up.
        self.length = 0

    @property
    def shifted(self) -> Int32s:
        """The row of number n at n + 1, to be read only; beyond its ends, what stands there."""
        return self._rows

    def find(self, numbers: Ints) -> Ints:
        """The row of each number, shaped like *numbers*."""
        numbers = np.asarray(numbers)
        if numbers.shape == (1,):
            return np.array([self.find_one(numbers.item(0))], np.int64)
        return self._rows.take(numbers + 1, mode="clip").astype(np.int64)

    def find_one(self, number: int) -> int:
        """The row of one number. Mostly one job comes, and numpy takes five times as long over that."""
        return self._rows.item(min(max(number, -1), len(self._rows) - 2) + 1)

    def put(self, numbers: Ints, rows: Ints) -> None:
        """Sets the row of each number."""
        numbers = np.asarray(numbers)
        if numbers.shape == (1,) and -1 < numbers[0] < len(self._rows) - 2:
            self._rows[int(numbers[0]) + 1] = rows[0]
            return
        few = numbers.ndim == 1 and len(numbers) < FEW
        largest = max(numbers.tolist(), default=-1) if few else int(numbers.max(initial=-1))
        if largest + 3 > len(self._rows):
            more = max(2 * len(self._rows), largest + 3) - len(self._rows)
            self._rows = np.append(self._rows, np.full(more, self._otherwise, np.int32))
        self._rows[numbers + 1] = rows

    def drop(self, numbers: Ints) -> None:
        """Forgets the numbers; unknown ones do no harm."""
        numbers = np.asarray(numbers)
        if numbers.ndim == 1 and len(numbers) < FEW:
            for number in numbers.tolist():
                if 0 <= number < len(self._rows) - 1:
                    self._rows[number + 1] = self._otherwise
            return
        self._rows[numbers[(numbers >= 0) & (numbers < len(self._rows) - 1)] + 1] = self._otherwise

    def follow(self, names: NameList, known: Sequence[str]) -> None:
        """Looks up the names that are new since the last time among the *known* ones."""
        if len(names) <= self.length:
            return
        row_of = {name: row for row, name in enumerate(known)}
        fresh = np.arange(self.length, len(names))
        self.put(fresh, np.array([row_of.get(names[number], self._otherwise) for number in fresh.tolist()], np.int64))
        self.length = len(names)

    def copy(self) -> "Growing":
        """An independent copy."""
        twin = Growing(self._otherwise)
        twin._rows, twin.length = self._rows.copy(), self.length
        return twin
