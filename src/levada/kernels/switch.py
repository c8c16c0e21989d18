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

_name: list[str] = ["numpy"]


class _Loaded(dict[str, ModuleType]):
    """Modules by area; the one of an area that nobody has asked for is loaded then."""

    def __missing__(self, area: str) -> ModuleType:
        module = self[area] = import_module(f"levada.kernels.{area}_{_name[0]}")
        return module


#: The implementation of each area that runs now. A dictionary: it is asked some thirty times for each job simulated.
kernels = _Loaded()


def use(implementation: Literal["numpy", "numba"]) -> None:
    """Makes every kernel run in *implementation*; raises ImportError where numba is not installed."""
    modules = {area: import_module(f"levada.kernels.{area}_{implementation}") for area in AREAS}
    kernels.update(modules)
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
