"""What of a training script is saved, shared with newcomers, and restored."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Mapping
from typing import Any


class State:
    """Named objects, and two functions if the script has its own way.

    An object has `state_dict` and `load_state_dict` as torch's do, or is a dict, a list, an `array`, a bytearray or a
    NumPy array, which is then changed in place.
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
        """Takes these objects in."""
        for name, thing in objects.items():
            self._parts[name] = _ways(name, thing)

    def add_functions(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        """*save* returns something that can be pickled; *load* gets it back."""
        self._parts["(functions)"] = (save, load)

    def collect(self) -> dict[str, Any]:
        """All of it as one value."""
        return {name: get() for name, (get, _) in self._parts.items()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Puts every object in the state it had."""
        missing = sorted(self._parts.keys() - values.keys())
        if missing:
            known = ", ".join(sorted(values)) or "nothing"
            raise ValueError(
                f"the checkpoint has {known} and lacks {', '.join(missing)}: give the names it has, or move it away"
            )
        for name, (_, put) in self._parts.items():
            put(values[name])

    def dump(self) -> bytes:
        """All of it as bytes."""
        return self._dump(self.collect())

    def load(self, data: bytes) -> None:
        """What `dump` gave, back into the objects."""
        self.restore(self._load(data))


def _ways(name: str, thing: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How to get the state of *thing*, and how to put one back."""
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return thing.state_dict, thing.load_state_dict
    if isinstance(thing, dict):

        def put_dict(values: Any) -> None:
            thing.clear()
            thing.update(values)

        return lambda: thing, put_dict
    if isinstance(thing, list | bytearray | array):

        def put_slice(values: Any) -> None:
            thing[:] = values

        return lambda: thing, put_slice
    if type(thing).__module__ == "numpy" and hasattr(thing, "shape"):

        def put_array(values: Any) -> None:
            thing[...] = values

        return lambda: thing, put_array
    raise TypeError(
        f"{name} is a {type(thing).__name__}, which cannot be saved and restored in place: give an object with"
        " state_dict and load_state_dict, a dict, a list or an array, or state(save=…, load=…)"
    )
