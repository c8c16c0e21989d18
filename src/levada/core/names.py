"""Numbers for names: columns contain the number, users see the name."""

from __future__ import annotations

from collections.abc import Iterable


class Names(list[str]):
    """A list of distinct names with permanent numbers; use only `add` to change it."""

    # A list subclass, because `len` is called about ten times per simulated job.
    __slots__ = ("_index",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self._index: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The number of *name*, which is added if it is new."""
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
