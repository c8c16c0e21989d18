"""Compile the kernels with numba and keep their machine code in a cache.

Kernels are plain Python functions, and run as such until `install` replaces them in their modules by compiled ones.
Compiled and interpreted kernels give the same bytes, so the replacement may happen at any time, also while they run.

Machine code is kept in a folder for each version of numba and Python, in files named after a digest of the sources that
a kernel is made of: its module, those that it imports, and the table layout. So versions of Levada live side by side,
and a stale entry cannot be loaded. numba's own cache looks only at the file of a function, not at what that calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import pickle
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from levada import kernels
from levada.core import layout
from levada.kernels.registry import MARK

#: With a digest of all kernels: the name of a file that says that the cache holds what this version calls.
_COMPLETE = "complete-"
#: How kernels import each other.
_IMPORT = re.compile(r"^from levada\.kernels(?:\.(\w+))? import (.*)", re.MULTILINE)
#: What reading or writing a cache may end in: no right to, a full disk, a file that was cut off.
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)

#: So many jobs take longer to simulate with interpreted kernels than it takes to load, or to compile, the others.
_WORTH_LOADING, _WORTH_COMPILING = 100, 10_000
#: A scan of so many jobs and devices takes some milliseconds when interpreted.
_LARGE_STATE = 500

#: The constants that kernels are compiled with. Their values: some come from other modules of the core.
_LAYOUT = repr(sorted((name, value) for name, value in vars(layout).items() if name.isupper()))

#: Per module and name the interpreted kernel that was replaced; empty while kernels are interpreted.
_replaced: dict[tuple[str, str], FunctionType] = {}
#: Compiled kernels by interpreted ones, and whether they compile what the cache does not hold.
_dispatchers: dict[FunctionType, object] = {}
_dispatchers_compile = [True]


def is_available() -> bool:
    """Whether numba is installed."""
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # its place in `sys.modules` is blocked
        return False


def is_compiled() -> bool:
    """Whether compiled kernels are installed in this process."""
    return bool(_replaced)


def is_ready() -> bool:
    """Whether kernels can be loaded from the cache without compiling anything."""
    return is_available() and _completion().exists()


def mark_ready() -> None:
    """Record that the cache holds everything that Levada's own code calls."""
    with contextlib.suppress(OSError):  # a read-only folder
        _completion().touch()


def _completion() -> Path:
    parts = "".join(_digest(info.name) for info in pkgutil.iter_modules(kernels.__path__))
    return cache_folder() / (_COMPLETE + hashlib.sha256(parts.encode()).hexdigest()[:16])


def cache_folder() -> Path:
    """Where machine code is kept: below $LEVADA_KERNEL_CACHE, or in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = os.environ.get("LEVADA_KERNEL_CACHE") or os.path.join(home, "levada", "kernels")
    version = metadata.version("numba") if is_available() else "none"
    return Path(root, f"numba-{version}-python-{sys.version_info[0]}.{sys.version_info[1]}")


def choose(jobs: int | None) -> None:
    """Decide how kernels run in a process that simulates so many *jobs*; None where that is not known.

    Both ways give the same bytes. Loading machine code takes about a second, compiling it two or three minutes.
    """
    if jobs is None or jobs >= _WORTH_COMPILING or (jobs >= _WORTH_LOADING and is_ready()):
        install()
    else:
        uninstall()


def is_worth_loading(size: int) -> bool:
    """Whether a server with a state of this *size*, in jobs and devices, decides noticeably faster when compiled."""
    return size >= _LARGE_STATE


def install(*, compiles: bool = True) -> bool:
    """Replace all kernels by compiled ones; False where numba is not installed.

    A kernel that is called with types that the cache does not hold is compiled then, which takes seconds. Unless it
    *compiles*: then such a call is interpreted, so that it blocks nobody.
    """
    if not is_available():
        return False
    if not _replaced:
        if not _dispatchers or _dispatchers_compile[0] != compiles:
            make = _dispatcher_factory(compiles)
            _dispatchers.update({function: make(function) for function in _kernels()})
            _dispatchers_compile[0] = compiles
        for module in _modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value in _dispatchers:
                    _replaced[module.__name__, name] = value
                    setattr(module, name, _dispatchers[value])
    return True


def uninstall() -> None:
    """Go back to interpreted kernels."""
    for (module, name), function in _replaced.items():
        setattr(sys.modules[module], name, function)
    _replaced.clear()


def _modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(kernels.__path__):
        yield importlib.import_module(f"{kernels.__name__}.{info.name}")


def _kernels() -> Iterator[FunctionType]:
    """Every kernel, once."""
    for module in _modules():
        for value in list(vars(module).values()):
            if isinstance(value, FunctionType) and hasattr(value, MARK) and value.__module__ == module.__name__:
                yield value


@cache
def _digest(area: str) -> str:
    """A digest of what the kernels of a module are made of."""
    sources = {area: _source(area)}
    waiting = [area]
    while waiting:
        for module, names in _IMPORT.findall(sources[waiting.pop()]):
            for name in [module] if module else re.findall(r"\w+(?= as|,|$)", names):
                if name not in sources:
                    sources[name] = _source(name)
                    waiting.append(name)
    text = "\0".join(f"{name}\0{source}" for name, source in sorted(sources.items()))
    return hashlib.sha256((text + _LAYOUT).encode()).hexdigest()[:16]


def _source(area: str) -> str:
    return Path(kernels.__path__[0], f"{area}.py").read_text()


def _dispatcher_factory(compiles: bool) -> Callable[[FunctionType], object]:
    """How to make a compiled kernel. numba takes half a second to import, so this happens only on demand."""
    # numba has types for a part of its own; this is not in it.
    caching: Any = importlib.import_module("numba.core.caching")
    registry: Any = importlib.import_module("numba.core.registry")
    folder = str(cache_folder())

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        """All kernels are in one folder."""

        def __init__(self, function: FunctionType) -> None:
            self._digest = _digest(function.__module__.rpartition(".")[2])

        @classmethod
        def from_function(cls, py_func: FunctionType, _py_file: str) -> Locator:
            return cls(py_func)

        def get_cache_path(self) -> str:
            return folder

        def get_source_stamp(self) -> str:
            return self._digest

        def get_disambiguator(self) -> str:
            return self._digest

    class Results(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (Locator,)

    class Cache(caching.Cache):  # type: ignore[misc]
        _impl_class = Results

        def _load_overload(self, sig: object, target_context: object) -> object:
            try:
                return super()._load_overload(sig, target_context)
            except _UNREADABLE:
                return None

        def save_overload(self, sig: object, data: object) -> None:
            with contextlib.suppress(*_UNREADABLE):  # this process keeps what it compiled
                super().save_overload(sig, data)

    class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
        """A compiled kernel."""

        def enable_caching(self) -> None:
            self._cache = Cache(self.py_func)

        def cached_signatures(self) -> list[Any]:
            """The types that the cache holds this kernel for."""
            magic = self.targetctx.codegen().magic_tuple()
            with contextlib.suppress(*_UNREADABLE):
                return [key[0] for key in self._cache._cache_file._load_index() if key[1] == magic]
            return []

        def _compile_for_args(self, *args: object, **kws: object) -> object:
            if not compiles:
                types = tuple(self.typeof_pyval(value) for value in args)
                if types not in self.cached_signatures():
                    return self.py_func
            return super()._compile_for_args(*args, **kws)

    def make(function: FunctionType) -> object:
        made = Kernel(function, targetoptions={"nopython": True, "boundscheck": None})
        made.enable_caching()
        return made

    return make
