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
    """Make all kernels run in *mode* from now on."""
    if mode == "interpreted":
        jit.uninstall()
    elif not jit.install():
        pytest.skip("numba is not installed")


def active() -> Mode:
    """The mode that kernels run in."""
    return "compiled" if jit.is_compiled() else "interpreted"


class Kernels:
    """The kernels of one module, always run in one mode: `Kernels("fill", "compiled").give(...)`."""

    def __init__(self, area: str, mode: Mode) -> None:
        self._module, self._mode = importlib.import_module(f"levada.kernels.{area}"), mode

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = active()
            use(self._mode)
            try:
                return getattr(self._module, name)(*args, **kwargs)
            finally:
                use(before)

        return call


def both_modes(area: str) -> tuple[Kernels, Kernels]:
    """The kernels of one module, interpreted and compiled."""
    return Kernels(area, "interpreted"), Kernels(area, "compiled")
