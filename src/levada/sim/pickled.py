"""States of engines and simulations as bytes. Only what Levada itself writes is read back: nothing else is called."""

from __future__ import annotations

import io
import pickle
from typing import Any

from levada.core.jobtable import FLOAT_COLUMNS, INT_COLUMNS, JobTable
from levada.errors import LevadaError

_COLUMNS = frozenset((*INT_COLUMNS, *FLOAT_COLUMNS))
#: Packages of ours whose classes may be in a state.
_PACKAGES = tuple(f"levada.{name}." for name in ("core", "engine", "perf", "placement", "policies", "solve"))
#: What else may be: a few classes, and the functions that make arrays, generators and structs anew.
_NAMES = frozenset(
    {
        ("levada.sim.pickled", "_table"),
        ("levada.sim.pickled", "_nothing"),
        ("msgspec._utils", "rebuild"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.random._pickle", "__generator_ctor"),
        ("numpy.random._pickle", "__bit_generator_ctor"),
        ("numpy.random._pcg64", "PCG64"),
        ("numpy.random.bit_generator", "SeedSequence"),
        ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "slice"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "object"),
        ("builtins", "range"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("collections", "Counter"),
        ("copyreg", "_reconstructor"),
        ("itertools", "count"),
        ("_codecs", "encode"),
    }
)


def dumps(state: Any, *, without: Any = None) -> bytes:
    """The bytes of *state*; raises LevadaError where something in it cannot be written down.

    Where *without* is in it, None is written: whoever reads it puts it back.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, without).dump(state)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LevadaError(f"the state of this policy cannot be written down: {error}") from error
    return buffer.getvalue()


def loads(data: bytes, *, trusted: bool = False) -> Any:
    """The state of these bytes; raises whatever bytes that are none make it raise.

    *trusted*: classes of the user's own (a policy in a file) may be in it, too.
    """
    return pickle.loads(data) if trusted else _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    """Knows that the columns of a job table are views into its two blocks."""

    def __init__(self, buffer: io.BytesIO, without: Any) -> None:
        super().__init__(buffer, protocol=5)
        self._without = without

    def reducer_override(self, value: Any) -> Any:
        if self._without is not None and value is self._without:
            return _nothing, ()
        if isinstance(value, JobTable):
            return _table, ({name: each for name, each in vars(value).items() if name not in _COLUMNS},)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Finds classes of ours and few other names: whatever is found, bytes can call."""

    def find_class(self, module: str, name: str) -> Any:
        # A name with dots would lead from what is allowed to all that it imports.
        if "." not in name:
            if (module, name) in _NAMES:
                return super().find_class(module, name)
            if module.startswith(_PACKAGES):
                found = super().find_class(module, name)
                if isinstance(found, type) and found.__module__ == module:
                    return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a state")


def _nothing() -> None:
    """What was left out."""


def _table(state: dict[str, Any]) -> JobTable:
    table = JobTable.__new__(JobTable)
    vars(table).update(state)
    return table.copy()
