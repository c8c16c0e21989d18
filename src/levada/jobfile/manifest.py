"""Values of a Kubernetes manifest with their paths, and the faults by path.

A manifest contains far more than Levada reads; only the fields that are read are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from levada.errors import MOST_FAULTS, Faults
from levada.jobfile import units
from levada.jobfile.faults import path_of, unknown_field


class ManifestFaults(Faults):
    """The faults of a manifest, at most one per path."""

    def __init__(self, most: int = MOST_FAULTS, *, lenient: bool = False) -> None:
        """*lenient*: fields that are not known are no faults, because an API server has accepted them."""
        super().__init__(most)
        self.lenient = lenient
        self._paths: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._paths)

    def add(self, path: str, text: str) -> None:
        """Add a fault, unless the path has one."""
        if path not in self._paths:
            self._paths.add(path)
            super().add(path, text)


class ManifestValue:
    """One value of a manifest (None if absent) and its path."""

    __slots__ = ("_faults", "_keys", "_note", "value")

    def __init__(
        self, value: Any, keys: tuple[int | str, ...] = (), faults: ManifestFaults | None = None, note: str = ""
    ) -> None:
        self.value = value
        self._keys = keys
        self._faults = ManifestFaults() if faults is None else faults
        self._note = note

    @property
    def faults(self) -> ManifestFaults:
        """The faults of the whole manifest so far."""
        return self._faults

    @property
    def path(self) -> str:
        """The path as users write it."""
        return path_of(self._keys) + (f" ({self._note})" if self._note else "")

    @property
    def given(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    def fault(self, text: str) -> None:
        """Add a fault at this path, unless it has one."""
        self._faults.add(self.path, text)

    def at(self, *keys: str) -> ManifestValue:
        """The value at these keys."""
        place = self
        for key in keys:
            place = ManifestValue(place.mapping().get(key), (*place._keys, key), self._faults)
        return place

    def first_of(self, *names: str) -> ManifestValue:
        """The value under the first given of several synonyms; two at once are a fault."""
        there = [name for name in names if self.at(name).given]
        if len(there) > 1 and not self._faults.lenient:
            self.at(there[1]).fault(f"is a synonym of {there[0]}; use only one")
        return self.at(there[0] if there else names[0])

    def named(self, note: str, otherwise: Any = None) -> ManifestValue:
        """The same path with a *note* for users, and a default value."""
        return ManifestValue(self.value if self.given else otherwise, self._keys, self._faults, note)

    def mapping(self) -> dict[str, Any]:
        """The value as a mapping; empty if absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            self.fault("must be a mapping")
            return {}
        return self.value

    def items(self) -> Iterator[ManifestValue]:
        """The values of a list."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            self.fault("must be a list")
            return
        for i, value in enumerate(self.value):
            yield ManifestValue(value, (*self._keys, i), self._faults)

    def text(self) -> str | None:
        """The value as text."""
        if self.value is not None and not isinstance(self.value, str):
            self.fault("must be text (put it in quotes)")
            return None
        return self.value

    def texts(self) -> list[str]:
        """The texts of a list."""
        return [text for item in self.items() if (text := item.text()) is not None]

    def whole(self, least: int = 0) -> int | None:
        """The value as a whole number, also from a quoted one."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault("must be a whole number")
            return None
        if not least <= value <= units.LARGEST:
            self.fault(f"must be at least {least}" if value < least else "is too large")
            return None
        return value

    def number(self) -> float | None:
        """The value as a number, also from a quoted one."""
        value = self.value
        if value is None:
            return None
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not abs(number) <= units.LARGEST * 2**20:
            self.fault("must be a number")
            return None
        return number

    def cpu(self) -> int:
        """1/1000ths of a core; 0 if absent."""
        value = self.value
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                return units.cpu_milli(value)
            except ValueError as error:
                self.fault(str(error))
        elif value is not None:
            self.fault("must be a number of cores, e.g. 4, 0.5 or 500m")
        return 0

    def memory(self) -> int:
        """MiB; 0 if absent."""
        value = self.value
        if isinstance(value, str | int) and not isinstance(value, bool):
            try:
                return units.memory_mib(str(value))
            except ValueError as error:
                self.fault(str(error))
        elif value is not None:
            self.fault("must be an amount of memory, e.g. 8Gi")
        return 0

    def is_true(self) -> bool:
        """Whether an annotation is true."""
        return self.value is True or (isinstance(self.value, str) and self.value.lower() == "true")

    def only(self, known: Iterable[str]) -> None:
        """Add a fault for each unknown field."""
        names = list(known)
        for name in () if self._faults.lenient else self.mapping():
            if name not in names:
                place = self.at(name)
                place.fault(unknown_field(str(name), names) if self._faults.room else "")
