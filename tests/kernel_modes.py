"""Run kernels interpreted or compiled, and compare the two."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

import pytest

from levada import jit

Mode = Literal["interpreted", "compiled"]
MODES: tuple[Mode, ...] = ("interpreted", "compiled")


def use(mode: Mode) -> None:
    """Switch all kernels to *mode*."""
    if mode == "interpreted":
        jit.uninstall()
    elif not jit.install():
        pytest.skip("numba is not installed")


def active() -> Mode:
    """The current mode of all kernels."""
    return "compiled" if jit.is_compiled() else "interpreted"


class Kernels:
    """The kernels of one module, always run in one mode: `Kernels("fill", "compiled").fill_in_order(...)`."""

    def __init__(self, area: str, mode: Mode, package: str = "levada.kernels") -> None:
        self._module, self._mode = importlib.import_module(f"{package}.{area}"), mode

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = active()
            use(self._mode)
            try:
                return getattr(self._module, name)(*args, **kwargs)
            finally:
                use(before)

        return call


def both_modes(area: str, package: str = "levada.kernels") -> tuple[Kernels, Kernels]:
    """The kernels of one module, interpreted and compiled."""
    return Kernels(area, "interpreted", package), Kernels(area, "compiled", package)
