"""Training state: objects that are saved, sent to new members and restored."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Mapping
from typing import Any


class TrainingState:
    """Named objects, and optionally the script's own save and load functions.

    An object has `state_dict` and `load_state_dict` like those of torch, or is a dict, list, `array`, bytearray or
    NumPy array, which is restored in place.
    """

    def __init__(
        self, dump: Callable[[Any], bytes] = pickle.dumps, load: Callable[[bytes], Any] = pickle.loads
    ) -> None:
        self._dump = dump
        self._load = load
        self._parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, objects: Mapping[str, Any]) -> None:
        """Register objects by name."""
        for name, value in objects.items():
            self._parts[name] = _accessors(name, value)

    def add_functions(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        """Register functions: *save* returns a picklable value, *load* receives it."""
        self._parts["(functions)"] = (save, load)

    def collect(self) -> dict[str, Any]:
        """The state of all objects by name."""
        return {name: get() for name, (get, _) in self._parts.items()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore every object; raises ValueError if a name is missing."""
        missing = sorted(self._parts.keys() - values.keys())
        if missing:
            known = ", ".join(sorted(values)) or "nothing"
            raise ValueError(
                f"the checkpoint has {known} and lacks {', '.join(missing)}: give the names it has, or move it away"
            )
        for name, (_, put) in self._parts.items():
            put(values[name])

    def dump(self) -> bytes:
        """Serialize the state."""
        return self._dump(self.collect())

    def load(self, data: bytes) -> None:
        """Restore the objects from the bytes of `dump`."""
        self.restore(self._load(data))


def _accessors(name: str, value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Functions that get and set the state of *value*."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict, value.load_state_dict
    if isinstance(value, dict):

        def put_dict(values: Any) -> None:
            value.clear()
            value.update(values)

        return lambda: value, put_dict
    if isinstance(value, list | bytearray | array):

        def put_slice(values: Any) -> None:
            value[:] = values

        return lambda: value, put_slice
    if type(value).__module__ == "numpy" and hasattr(value, "shape"):

        def put_array(values: Any) -> None:
            value[...] = values

        return lambda: value, put_array
    raise TypeError(
        f"{name} is a {type(value).__name__}, which cannot be saved and restored in place: give an object with"
        " state_dict and load_state_dict, a dict, a list or an array, or state(save=…, load=…)"
    )
