"""The decorator of kernels: functions over arrays that may be compiled.

Kernels are plain Python until `levada.jit` replaces them by machine code. Other packages call them through their module
(`fill.fill_in_order(...)`), never by an imported name, so that the replacement reaches every caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Attribute of marked functions.
MARK = "__levada_kernel__"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Mark *function* as a kernel."""
    setattr(function, MARK, True)
    return function
