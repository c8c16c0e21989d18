"""Small integers for names: columns hold the number, people see the name."""

from __future__ import annotations

from collections.abc import Iterable


class Names(list[str]):
    """A growing list of distinct names; a name keeps its number for ever. It is only ever added to, by `add`."""

    # A list, for its length is asked some ten times for each job simulated.
    __slots__ = ("_index",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self._index: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The number of *name*, which is new or known."""
        number = self._index.get(name)
        if number is None:
            number = self._index[name] = len(self)
            self.append(name)
        return number

    def find(self, name: str) -> int:
        """The number of *name*, or -1."""
        return self._index.get(name, -1)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def copy(self) -> Names:
        """An independent copy."""
        twin = Names()
        twin.extend(self)
        twin._index = self._index.copy()
        return twin
