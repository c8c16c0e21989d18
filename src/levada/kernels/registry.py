"""The mark of a kernel: a function over arrays and numbers that may be compiled.

Kernels are plain Python, which is what runs unless `levada.jit` has replaced them by machine code. Other packages call
them through their module (`fill.give(...)`), never by an imported name, so that the replacement reaches every caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: The attribute that marks a kernel.
MARK = "__levada_kernel__"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Mark *function* as a kernel."""
    setattr(function, MARK, True)
    return function
