"""Small integers for names: columns hold the number, people see the name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Names:
    """A growing list of distinct names; a name keeps its number for ever."""

    __slots__ = ("_index", "_names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The number of *name*, which is new or known."""
        number = self._index.get(name)
        if number is None:
            number = self._index[name] = len(self._names)
            self._names.append(name)
        return number

    def find(self, name: str) -> int:
        """The number of *name*, or -1."""
        return self._index.get(name, -1)

    def __getitem__(self, number: int) -> str:
        return self._names[number]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def copy(self) -> Names:
        """An independent copy."""
        return Names(self._names)
