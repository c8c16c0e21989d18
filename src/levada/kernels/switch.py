"""Which implementation of the kernels runs in this process.

numba takes half a second to load, so a short command stays with numpy; the simulator, the server and the benchmarks
ask for the fast one. Both answer alike to the byte; only of several equally good shares of a linear program each solver
may find another.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Literal

AREAS = (
    "attained",
    "checks",
    "choose",
    "classes",
    "drive",
    "fill",
    "place",
    "rates",
    "rounds",
    "state",
    "steps",
    "view",
)

_active: dict[str, ModuleType] = {}
_name: list[str] = ["numpy"]


def use(implementation: Literal["numpy", "numba"]) -> None:
    """Makes every kernel run in *implementation*; raises ImportError where numba is not installed."""
    modules = {area: import_module(f"levada.kernels.{area}_{implementation}") for area in AREAS}
    _active.update(modules)
    _name[0] = implementation


def use_fastest() -> str:
    """Takes numba where it is installed; the name of what runs now."""
    try:
        use("numba")
    except ImportError:
        use("numpy")
    return _name[0]


def active() -> str:
    """The name of the implementation that runs."""
    return _name[0]


def kernels(area: str) -> ModuleType:
    """The implementation of one area that runs now."""
    module = _active.get(area)
    if module is None:
        module = _active[area] = import_module(f"levada.kernels.{area}_{_name[0]}")
    return module
