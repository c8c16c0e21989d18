"""Which kernels a benchmark runs on."""

from __future__ import annotations

from levada import jit


def use_fastest() -> str:
    """Take compiled kernels where numba is installed; the name of what runs now."""
    return "compiled" if jit.install() else "interpreted"
