"""States of engines and simulations as bytes. Only what Levada itself writes is read back: nothing else is called."""

from __future__ import annotations

import io
import pickle
from typing import Any

from levada.core.jobtable import FLOAT_COLUMNS, INT_COLUMNS, JobTable
from levada.errors import LevadaError

_COLUMNS = frozenset((*INT_COLUMNS, *FLOAT_COLUMNS))
#: Modules whose classes may be in a state, and the few names outside them.
_MODULES = ("levada.", "numpy._core.", "numpy.random.", "msgspec.")
_NAMES = frozenset(
    {
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
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
        ("functools", "partial"),
        ("itertools", "count"),
        ("_codecs", "encode"),
    }
)


def dumps(state: Any) -> bytes:
    """The bytes of *state*; raises LevadaError where something in it cannot be written down."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(state)
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

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, JobTable):
            return _table, ({name: each for name, each in vars(value).items() if name not in _COLUMNS},)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.".startswith(_MODULES) or (module, name) in _NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a state")


def _table(state: dict[str, Any]) -> JobTable:
    table = JobTable.__new__(JobTable)
    vars(table).update(state)
    return table.copy()
