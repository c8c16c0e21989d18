"""The objects of a simulation as plain data, with what they share, and back to the bit.

Reading calls nothing: data names classes of the simulator and of the user's own policy, whose instances are filled
without their constructors, and a few kinds of values. A file can therefore hold a wrong state, but no program.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any, NoReturn

import msgspec
import numpy as np

from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.names import Names
from levada.engine import Engine, persist
from levada.engine.queries import Queries
from levada.errors import LevadaError
from levada.plugins import find_policy
from levada.tables.jobtable import JobTable

#: Packages whose classes may be in a state: none of them reads or writes anything.
_PACKAGES = tuple(f"levada.{name}." for name in ("core", "tables", "engine", "perf", "placement", "policies", "solve"))
_MODULES = frozenset(
    f"levada.sim.{name}"
    for name in (
        *("arrivals", "counts", "ended", "failures", "ideal", "pace", "published_world", "segments", "serving"),
        *("simulation", "traces.trace", "turns", "use"),
    )
)
_PLAIN = frozenset({type(None), bool, float, str, bytes})
_COLUMNS = frozenset((*INT_COLUMNS, *FLOAT_COLUMNS))
_NEW: Any = object.__new__
_REDUCE: Any = object.__reduce__
_FEWEST, _MOST = -(2**63), 2**63 - 1


def _one_policy(name: str, options: Any) -> NoReturn:
    raise LevadaError(f"a simulation keeps its policy; it cannot change to {name}")


def dumps(state: Any, own: str = "") -> bytes:
    """The bytes of *state*; raises LevadaError where something in it cannot be written.

    *own* is the module of the user's policy: classes of its package may be in it, too.
    """
    writer = _Writer(own)
    root = writer.value(state)
    return msgspec.msgpack.encode((root, writer.nodes))


def loads(data: bytes, own: str = "") -> Any:
    """The state of these bytes; raises an error of any kind where they are none."""
    root, nodes = msgspec.msgpack.decode(data)
    return _Reader(nodes, own).value(root)


def _class(name: str, own: str) -> type:
    """The class of this name, `module:Class`; raises LevadaError unless it may be in a state."""
    module, _, attribute = name.partition(":")
    ours = module.startswith(_PACKAGES) or module in _MODULES
    package = own.partition(".")[0]
    theirs = bool(own) and package != "levada" and module.partition(".")[0] == package and module in sys.modules
    if ours or theirs:
        found = vars(import_module(module)).get(attribute)
        # A class that a module only imports belongs to another one, which may not be allowed.
        if isinstance(found, type) and found.__module__ == module:
            return found
    raise LevadaError(f"{name} has no place in the state of a simulation")


class _Writer:
    """Values are written as they are, or as the number of a node; a node is written once, however often it is used."""

    def __init__(self, own: str) -> None:
        self.nodes: list[Any] = []
        self._own = own
        self._number: dict[int, int] = {}
        self._keep: list[Any] = []  # so that no other object gets the id of one that was written

    def value(self, value: Any) -> Any:
        """What stands for *value*."""
        kind = type(value)
        if kind in _PLAIN or (kind is int and _FEWEST <= value <= _MOST):
            return value
        number = self._number.get(id(value))
        if number is None:
            number = self._number[id(value)] = len(self.nodes)
            self._keep.append(value)
            self.nodes.append(None)
            self.nodes[number] = self._node(value, kind)
        return [number]

    def _node(self, value: Any, kind: type) -> Any:
        simple = _WRITERS.get(kind)
        if simple is not None:
            return simple(self, value)
        if value is find_policy or value is _one_policy:
            return ["make_policy"]
        if isinstance(value, Enum):
            return ["enum", self._name(kind), value.value]
        if isinstance(value, np.generic):
            return ["scalar", value.dtype.str, value.tobytes()]
        if isinstance(value, msgspec.Struct):
            fields = [(name, self.value(getattr(value, name))) for name in value.__struct_fields__]
            return ["struct", self._name(kind), fields]
        if isinstance(value, Engine):
            return ["engine", [(name, self.value(each)) for name, each in persist.fields(value).items()]]
        if isinstance(value, Queries):
            return ["queries", self.value(value.engine)]
        if isinstance(value, JobTable):
            # Its columns are views into its two blocks.
            return ["table", [(name, self.value(each)) for name, each in vars(value).items() if name not in _COLUMNS]]
        if isinstance(value, tuple):
            return ["named", self._name(kind), [self.value(each) for each in value]]
        if isinstance(value, type) or not self._is_object(kind):
            raise LevadaError(f"{kind.__module__}.{kind.__qualname__} has no place in the state of a simulation")
        return ["object", self._name(kind), [(name, self.value(each)) for name, each in _attributes(value)]]

    @staticmethod
    def _is_object(kind: type) -> bool:
        # A subclass of dict, or of anything that keeps its data elsewhere, has more than attributes.
        return kind.__new__ is _NEW and kind.__reduce__ is _REDUCE

    def _name(self, kind: type) -> str:
        name = f"{kind.__module__}:{kind.__qualname__}"
        _class(name, self._own)
        return name

    def items(self, values: Any) -> list[Any]:
        """What stands for each of *values*."""
        return [self.value(each) for each in values]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    state = value.__getstate__()
    by_name, by_slot = state if isinstance(state, tuple) else (state, None)
    return [*(by_name or {}).items(), *(by_slot or {}).items()]


def _write_array(writer: _Writer, value: Any) -> Any:
    if value.dtype.kind not in "biufcSU":
        raise LevadaError(f"an array of {value.dtype} has no place in the state of a simulation")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return ["array", value.dtype.str, value.shape, order, value.flags.writeable, value.tobytes(order)]


def _write_generator(writer: _Writer, value: np.random.Generator) -> Any:
    if not isinstance(value.bit_generator, np.random.PCG64):
        raise LevadaError(f"a generator of {value.bit_generator} has no place in the state of a simulation")
    return ["generator", writer.value(value.bit_generator.state)]


_WRITERS: dict[type, Callable[[_Writer, Any], Any]] = {
    int: lambda writer, value: ["int", hex(value)],
    list: lambda writer, value: ["list", writer.items(value)],
    tuple: lambda writer, value: ["tuple", writer.items(value)],
    set: lambda writer, value: ["set", writer.items(value)],
    frozenset: lambda writer, value: ["frozenset", writer.items(value)],
    dict: lambda writer, value: ["dict", writer.items(value.keys()), writer.items(value.values())],
    deque: lambda writer, value: ["deque", writer.items(value), value.maxlen],
    range: lambda writer, value: ["range", value.start, value.stop, value.step],
    slice: lambda writer, value: ["slice", value.start, value.stop, value.step],
    itertools.count: lambda writer, value: ["count", writer.items(value.__reduce__()[1])],
    Names: lambda writer, value: ["names", list(value)],
    np.ndarray: _write_array,
    np.random.Generator: _write_generator,
}


class _Reader:
    """Makes each node once, however often it is used."""

    def __init__(self, nodes: list[Any], own: str) -> None:
        self._nodes, self._own = nodes, own
        self._made: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        """The value that was written so."""
        if not isinstance(value, list):
            return value
        (number,) = value
        if number not in self._made:
            self._made[number] = self._make(number, *self._nodes[number])
        return self._made[number]

    def _items(self, values: Any) -> list[Any]:
        return [self.value(each) for each in values]

    def _make(self, number: int, kind: str, *parts: Any) -> Any:
        match kind, *parts:
            # What can hold itself is there before what it holds.
            case "list", items:
                held: list[Any] = []
                self._made[number] = held
                held += self._items(items)
                return held
            case "dict", keys, values:
                mapping: dict[Any, Any] = {}
                self._made[number] = mapping
                for key, value in zip(keys, values, strict=True):
                    mapping[self.value(key)] = self.value(value)
                return mapping
            case "object", name, attributes:
                made: Any = object.__new__(_class(name, self._own))
                self._made[number] = made
                for attribute, value in attributes:
                    object.__setattr__(made, attribute, self.value(value))
                return made
            case "engine", fields:
                return persist.from_fields({name: self.value(value) for name, value in fields})
            case "queries", engine:
                return self.value(engine).query
            case "struct", name, fields:
                return self._struct(_class(name, self._own), fields)
            case "table", attributes:
                table = JobTable.__new__(JobTable)
                vars(table).update((attribute, self.value(value)) for attribute, value in attributes)
                return table.copy()
            case "array", dtype, shape, order, writeable, raw:
                array = np.frombuffer(bytearray(raw) if writeable else raw, _dtype(dtype))
                return array.reshape(shape, order=order)
            case "scalar", dtype, raw:
                return np.frombuffer(raw, _dtype(dtype))[0]
            case "names", items:
                return Names(items)
            case "tuple", items:
                return tuple(self._items(items))
            case "named", name, items:
                return tuple.__new__(self._kind_of(name, tuple), self._items(items))
            case "enum", name, value:
                return self._kind_of(name, Enum)(value)
            case "set", items:
                return set(self._items(items))
            case "frozenset", items:
                return frozenset(self._items(items))
            case "deque", items, most:
                return deque(self._items(items), most)
            case "range", start, stop, step:
                return range(start, stop, step)
            case "slice", start, stop, step:
                return slice(start, stop, step)
            case "count", items:
                return itertools.count(*self._items(items))
            case "int", digits:
                return int(digits, 16)
            case "generator", state:
                generator = np.random.Generator(np.random.PCG64())
                generator.bit_generator.state = self.value(state)
                return generator
            case ("make_policy",):
                return _one_policy
        raise LevadaError(f"{kind} has no place in the state of a simulation")

    def _kind_of(self, name: str, kind: type) -> Any:
        found = _class(name, self._own)
        if not issubclass(found, kind):
            raise LevadaError(f"{name} is no {kind.__name__}")
        return found

    def _struct(self, found: type, fields: Any) -> Any:
        if not issubclass(found, msgspec.Struct):
            raise LevadaError(f"{found.__name__} is no struct")
        return found(**{field: self.value(value) for field, value in fields})


def _dtype(text: str) -> Any:
    dtype = np.dtype(text)
    if dtype.kind not in "biufcSU":
        raise LevadaError(f"an array of {text} has no place in the state of a simulation")
    return dtype
