"""Encode a simulation as plain data with shared references, and decode it.

Decoding executes no code of the data: it names classes of the simulator and of the user's policy, whose instances are
filled without calling constructors, and a few types of values. A file can contain a wrong state, but no program.
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

from levada.core.foreign_use import ForeignUse
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.names import Names
from levada.engine import Engine, persist
from levada.engine.queries import Queries
from levada.errors import LevadaError
from levada.plugins import find_policy
from levada.tables.job_table import JobTable

#: Packages whose classes may be in a state; none of them does I/O.
_PACKAGES = tuple(
    f"levada.{name}." for name in ("compat", "core", "tables", "engine", "perf", "placement", "policies", "solve")
)
_MODULES = frozenset(
    f"levada.sim.{name}"
    for name in (
        *("arrivals", "completed", "failures", "ideal", "progress", "round_log"),
        *("serving", "simulation", "timeline", "traces.trace", "utilization"),
    )
)
_PLAIN = frozenset({type(None), bool, float, str, bytes})
_COLUMNS = frozenset((*INT_COLUMNS, *FLOAT_COLUMNS))
_NEW: Any = object.__new__
_REDUCE: Any = object.__reduce__
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


def _reject_policy(name: str, options: Any) -> NoReturn:
    raise LevadaError(f"a resumed simulation cannot change its policy to {name}")


def dumps(state: Any, own: str = "") -> bytes:
    """Encode *state*; raises LevadaError if it contains a type that cannot be encoded.

    *own* is the module of the user's policy: classes of its package are allowed, too.
    """
    writer = _Writer(own)
    root = writer.value(state)
    return msgspec.msgpack.encode((root, writer.nodes))


def loads(data: bytes, own: str = "") -> Any:
    """Decode a state; raises an exception of any type if *data* is invalid."""
    root, nodes = msgspec.msgpack.decode(data)
    return _Reader(nodes, own).value(root)


def _class(name: str, own: str) -> type:
    """Return the class `module:Class`; raises LevadaError if it is not allowed in a state."""
    module, _, attribute = name.partition(":")
    is_levadas = module.startswith(_PACKAGES) or module in _MODULES
    package = own.partition(".")[0]
    is_users = bool(own) and package != "levada" and module.partition(".")[0] == package and module in sys.modules
    if is_levadas or is_users:
        candidate = vars(import_module(module)).get(attribute)
        # An imported class belongs to another module, which may not be allowed.
        if isinstance(candidate, type) and candidate.__module__ == module:
            return candidate
    raise LevadaError(f"{name} is not allowed in a simulation checkpoint")


class _Writer:
    """Encodes simple values as themselves and others as the number of a node; each object becomes one node."""

    def __init__(self, own: str) -> None:
        self.nodes: list[Any] = []
        self._own = own
        self._number: dict[int, int] = {}
        self._keep: list[Any] = []  # keeps ids unique: a freed object's id could be reused

    def value(self, value: Any) -> Any:
        """Return the encoded form of *value*."""
        kind = type(value)
        if kind in _PLAIN or (kind is int and _MIN_INT <= value <= _MAX_INT):
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
        if value is find_policy or value is _reject_policy:
            return ["make_policy"]
        if isinstance(value, Enum):
            return ["enum", self._name(kind), value.value]
        if isinstance(value, np.generic):
            return ["scalar", value.dtype.str, value.tobytes()]
        if isinstance(value, msgspec.Struct):
            fields = [(name, self.value(getattr(value, name))) for name in value.__struct_fields__]
            return ["struct", self._name(kind), fields]
        if isinstance(value, Engine):
            return ["engine", self.value(value.query)]
        if isinstance(value, Queries):
            return ["queries", [(name, self.value(field)) for name, field in persist.fields(value).items()]]
        if isinstance(value, JobTable):
            # Its columns are views into its two blocks.
            stored = {name: field for name, field in vars(value).items() if name not in _COLUMNS}
            return ["table", [(name, self.value(field)) for name, field in stored.items()]]
        if isinstance(value, tuple):
            return ["named", self._name(kind), self.items(value)]
        if isinstance(value, type) or not self._is_object(kind):
            raise LevadaError(f"{kind.__module__}.{kind.__qualname__} is not allowed in a simulation checkpoint")
        return ["object", self._name(kind), [(name, self.value(field)) for name, field in _attributes(value)]]

    @staticmethod
    def _is_object(kind: type) -> bool:
        # A subclass of dict, or of a type with data outside its attributes, needs more.
        return kind.__new__ is _NEW and kind.__reduce__ is _REDUCE

    def _name(self, kind: type) -> str:
        name = f"{kind.__module__}:{kind.__qualname__}"
        _class(name, self._own)
        return name

    def items(self, values: Any) -> list[Any]:
        """Return the encoded form of each of *values*."""
        return [self.value(item) for item in values]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    state = value.__getstate__()
    by_name, by_slot = state if isinstance(state, tuple) else (state, None)
    return [*(by_name or {}).items(), *(by_slot or {}).items()]


def _write_array(writer: _Writer, value: Any) -> Any:
    if value.dtype.kind not in "biufcSU":
        raise LevadaError(f"an array of {value.dtype} is not allowed in a simulation checkpoint")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return ["array", value.dtype.str, value.shape, order, value.flags.writeable, value.tobytes(order)]


def _write_generator(writer: _Writer, value: np.random.Generator) -> Any:
    if not isinstance(value.bit_generator, np.random.PCG64):
        raise LevadaError(f"a generator of {value.bit_generator} is not allowed in a simulation checkpoint")
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
    ForeignUse: lambda writer, value: ["foreign", writer.items(value.values())],
    np.ndarray: _write_array,
    np.random.Generator: _write_generator,
}


class _Reader:
    """Decodes each node once, so that shared references are restored."""

    def __init__(self, nodes: list[Any], own: str) -> None:
        self._nodes, self._own = nodes, own
        self._decoded: dict[int, Any] = {}
        #: Engines by the id of their queries, which are in `_decoded`.
        self._engine_of: dict[int, Engine] = {}

    def value(self, value: Any) -> Any:
        """Decode a value."""
        if not isinstance(value, list):
            return value
        (number,) = value
        if number not in self._decoded:
            self._decoded[number] = self._decode(number, *self._nodes[number])
        return self._decoded[number]

    def items(self, values: Any) -> list[Any]:
        """Decode each of *values*."""
        return [self.value(item) for item in values]

    def _decode(self, number: int, kind: str, *parts: Any) -> Any:
        simple = _READERS.get(kind)
        if simple is not None:
            return simple(self, *parts)
        match kind, *parts:
            # Containers that can contain themselves are registered before their content is decoded.
            case "list", items:
                elements: list[Any] = []
                self._decoded[number] = elements
                elements += self.items(items)
                return elements
            case "dict", keys, values:
                mapping: dict[Any, Any] = {}
                self._decoded[number] = mapping
                for key, value in zip(keys, values, strict=True):
                    mapping[self.value(key)] = self.value(value)
                return mapping
            case "object", name, attributes:
                instance: Any = object.__new__(_class(name, self._own))
                self._decoded[number] = instance
                for attribute, value in attributes:
                    object.__setattr__(instance, attribute, self.value(value))
                return instance
            case "engine", query:
                return self._engine_of[id(self.value(query))]
            case "queries", fields:
                engine = persist.from_fields({name: self.value(value) for name, value in fields})
                self._engine_of[id(engine.query)] = engine
                return engine.query
            case "struct", name, fields:
                cls = self._subclass(name, msgspec.Struct)
                return cls(**{field: self.value(value) for field, value in fields})
            case "named", name, items:
                return tuple.__new__(self._subclass(name, tuple), self.items(items))
            case "enum", name, value:
                return self._subclass(name, Enum)(value)
        raise LevadaError(f"{kind} is not allowed in a simulation checkpoint")

    def _subclass(self, name: str, kind: type) -> Any:
        cls = _class(name, self._own)
        if not issubclass(cls, kind):
            raise LevadaError(f"{name} is not a subclass of {kind.__name__}")
        return cls


def _read_table(reader: _Reader, attributes: Any) -> JobTable:
    table = JobTable.__new__(JobTable)
    vars(table).update((attribute, reader.value(value)) for attribute, value in attributes)
    return table.copy()


def _read_array(reader: _Reader, dtype: str, shape: Any, order: Any, writeable: bool, raw: bytes) -> Any:
    return np.frombuffer(bytearray(raw) if writeable else raw, _dtype(dtype)).reshape(shape, order=order)


def _read_generator(reader: _Reader, state: Any) -> np.random.Generator:
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = reader.value(state)
    return generator


_READERS: dict[str, Callable[..., Any]] = {
    "int": lambda reader, digits: int(digits, 16),
    "tuple": lambda reader, items: tuple(reader.items(items)),
    "set": lambda reader, items: set(reader.items(items)),
    "frozenset": lambda reader, items: frozenset(reader.items(items)),
    "deque": lambda reader, items, most: deque(reader.items(items), most),
    "range": lambda reader, start, stop, step: range(start, stop, step),
    "slice": lambda reader, start, stop, step: slice(start, stop, step),
    "count": lambda reader, items: itertools.count(*reader.items(items)),
    "names": lambda reader, items: Names(items),
    "foreign": lambda reader, items: ForeignUse(reader.items(items)),
    "scalar": lambda reader, dtype, raw: np.frombuffer(raw, _dtype(dtype))[0],
    "make_policy": lambda reader: _reject_policy,
    "table": _read_table,
    "array": _read_array,
    "generator": _read_generator,
}


def _dtype(text: str) -> Any:
    dtype = np.dtype(text)
    if dtype.kind not in "biufcSU":
        raise LevadaError(f"an array of {text} is not allowed in a simulation checkpoint")
    return dtype
