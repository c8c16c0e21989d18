"""Selection of kernels."""

from __future__ import annotations

from levada import jit


def use_fastest() -> str:
    """Use compiled kernels if numba is installed; returns the name of the implementation."""
    return "compiled" if jit.install() else "interpreted"
