"""Map dense, growing numbers (jobs, workloads, GPU types) to rows of a table."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from levada.perf.model import Int32s, Ints

#: Below this length, plain Python is faster than numpy.
FEW = 32


class NamesByNumber(Protocol):
    """Names by number, like `core.names.Names` or a tuple. It may grow; a name keeps its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> str: ...


class IndexMap:
    """A map of numbers >= 0 to rows in one array; all other numbers map to *default*.

    For numbers that are assigned consecutively. O(1) per lookup, 4 bytes per number ever used. Use `lookup.Lookup` for
    sparse numbers.
    """

    __slots__ = ("_default", "_rows", "length")

    def __init__(self, default: int) -> None:
        self._default = default
        # Shifted by one: numbers below 0 use the first element, numbers beyond the end the last, which is never set.
        self._rows = np.full(16, default, np.int32)
        #: Names below this number were looked up.
        self.length = 0

    @property
    def shifted(self) -> Int32s:
        """The row of number n at index n + 1, read-only; numbers outside use the first or last element."""
        return self._rows

    def find(self, numbers: Ints) -> Ints:
        """The row of each number, shaped like *numbers*."""
        numbers = np.asarray(numbers)
        if numbers.shape == (1,):
            return np.array([self.find_one(numbers.item(0))], np.int64)
        return self._rows.take(numbers + 1, mode="clip").astype(np.int64)

    def find_one(self, number: int) -> int:
        """The row of one number: 5 times faster than numpy in the common case of one job."""
        return self._rows.item(min(max(number, -1), len(self._rows) - 2) + 1)

    def put(self, numbers: Ints, rows: Ints) -> None:
        """Set the row of each number."""
        numbers = np.asarray(numbers)
        if numbers.shape == (1,) and -1 < numbers[0] < len(self._rows) - 2:
            self._rows[int(numbers[0]) + 1] = rows[0]
            return
        few = numbers.ndim == 1 and len(numbers) < FEW
        largest = max(numbers.tolist(), default=-1) if few else int(numbers.max(initial=-1))
        if largest + 3 > len(self._rows):
            more = max(2 * len(self._rows), largest + 3) - len(self._rows)
            self._rows = np.append(self._rows, np.full(more, self._default, np.int32))
        self._rows[numbers + 1] = rows

    def drop(self, numbers: Ints) -> None:
        """Reset numbers to the default; unknown ones are ignored."""
        numbers = np.asarray(numbers)
        if numbers.ndim == 1 and len(numbers) < FEW:
            for number in numbers.tolist():
                if 0 <= number < len(self._rows) - 1:
                    self._rows[number + 1] = self._default
            return
        self._rows[numbers[(numbers >= 0) & (numbers < len(self._rows) - 1)] + 1] = self._default

    def follow(self, names: NamesByNumber, known: Sequence[str]) -> None:
        """Look up names that are new since the last call among the *known* ones."""
        if len(names) <= self.length:
            return
        row_of = {name: row for row, name in enumerate(known)}
        new = np.arange(self.length, len(names))
        self.put(new, np.array([row_of.get(names[number], self._default) for number in new.tolist()], np.int64))
        self.length = len(names)

    def copy(self) -> "IndexMap":
        """An independent copy."""
        result = IndexMap(self._default)
        result._rows, result.length = self._rows.copy(), self.length
        return result
