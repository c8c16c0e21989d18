"""Run a kernel compiled and interpreted and compare the results."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def equal_in_both_modes(modules: tuple[ModuleType, ModuleType], name: str, *args: Any) -> Any:
    """The result of both modes; asserts that results and changed arguments are bit-identical."""
    copies = [[_copied(arg) for arg in args] for _ in modules]
    one, other = (getattr(module, name)(*arguments) for module, arguments in zip(modules, copies, strict=True))
    for a, b in zip(_parts((one, *copies[0])), _parts((other, *copies[1])), strict=True):
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        else:
            assert (type(a), a) == (type(b), b)
    return one


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        copies = [_copied(part) for part in value]
        return type(value)(*copies) if hasattr(value, "_fields") else tuple(copies)
    return value.copy() if isinstance(value, np.ndarray) else value


def _parts(value: Any) -> list[Any]:
    return [part for item in value for part in _parts(item)] if isinstance(value, tuple) else [value]
