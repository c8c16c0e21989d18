"""Compile the kernels with numba and cache their machine code.

Kernels are plain Python functions. `install` replaces them in their modules by compiled ones. Both give the same bytes,
so the replacement may happen at any time, also while kernels run.

The cache has one folder per version of numba and Python. File names contain a digest of the sources of a kernel: its
module, the modules that it imports, and the table layout. So several versions of Levada can share a cache, and a stale
entry is never loaded. numba's own cache checks only the file of a function, not the functions that it calls.
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
from levada.compat.gavel import kernels as gavel_kernels
from levada.core import layout
from levada.kernels.registry import MARK

#: Prefix of the marker file of a complete cache; a digest of all kernels follows.
_COMPLETE = "complete-"
#: The packages that contain kernels.
_PACKAGES = (kernels, gavel_kernels)
#: How kernels import each other: a package and names of modules, or a module and names in it.
_IMPORT = re.compile(
    rf"^from ({'|'.join(package.__name__ for package in _PACKAGES)})(?:\.(\w+))? import (.*)", re.MULTILINE
)
#: What reading or writing a cache may end in: no right to, a full disk, a file that was cut off.
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)

#: From this many jobs on, a simulation is faster if it loads, or even compiles, the kernels first.
_WORTH_LOADING, _WORTH_COMPILING = 100, 10_000
#: An interpreted scan of this many jobs and devices takes some milliseconds.
_LARGE_STATE = 500

#: Format of the cache entries; part of the digest.
_FORMAT = "machine code, bitcode, environments with constants"
#: Constants that are compiled into kernels, by value: some are defined in other modules of the core.
_LAYOUT = _FORMAT + repr(sorted((name, value) for name, value in vars(layout).items() if name.isupper()))

#: The replaced interpreted kernels by module and name; empty while kernels are interpreted.
_replaced: dict[tuple[str, str], FunctionType] = {}
#: Compiled kernels by interpreted ones, and whether they compile signatures that the cache lacks.
_dispatchers: dict[FunctionType, object] = {}
_dispatchers_compile = [True]


def is_available() -> bool:
    """Whether numba is installed."""
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # its entry in `sys.modules` is None
        return False


def is_compiled() -> bool:
    """Whether compiled kernels are installed in this process."""
    return bool(_replaced)


def is_ready() -> bool:
    """Whether kernels can be loaded from the cache without compiling anything."""
    return is_available() and _completion().exists()


def mark_ready() -> None:
    """Record that the cache contains every kernel and signature that Levada calls."""
    with contextlib.suppress(OSError):  # a read-only folder
        _completion().touch()


def _completion() -> Path:
    parts = "".join(_digest(module) for module in _module_names())
    return cache_folder() / (_COMPLETE + hashlib.sha256(parts.encode()).hexdigest()[:16])


def cache_folder() -> Path:
    """The folder of the machine code: below $LEVADA_KERNEL_CACHE, or in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = os.environ.get("LEVADA_KERNEL_CACHE") or os.path.join(home, "levada", "kernels")
    version = metadata.version("numba") if is_available() else "none"
    return Path(root, f"numba-{version}-python-{sys.version_info[0]}.{sys.version_info[1]}")


def choose(jobs: int | None) -> None:
    """Install or uninstall compiled kernels for a simulation of *jobs* jobs; None = unknown.

    Loading machine code takes about 1 s, compiling it 2 to 3 minutes. The results are the same.
    """
    if jobs is None or jobs >= _WORTH_COMPILING or (jobs >= _WORTH_LOADING and is_ready()):
        install()
    else:
        uninstall()


def is_worth_loading(size: int) -> bool:
    """Whether compiled kernels noticeably speed up a server with *size* jobs and devices."""
    return size >= _LARGE_STATE


def install(*, compiles: bool = True) -> bool:
    """Replace all kernels by compiled ones; False if numba is not installed.

    A call with types that the cache does not contain compiles the kernel, which takes seconds. With *compiles* False,
    such a call is interpreted instead, so that it does not block.
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
    """Restore the interpreted kernels."""
    for (module, name), function in _replaced.items():
        setattr(sys.modules[module], name, function)
    _replaced.clear()


def _module_names() -> Iterator[str]:
    for package in _PACKAGES:
        for info in pkgutil.iter_modules(package.__path__):
            yield f"{package.__name__}.{info.name}"


def _modules() -> Iterator[ModuleType]:
    return map(importlib.import_module, _module_names())


def _kernels() -> Iterator[FunctionType]:
    """All kernels, each once."""
    for module in _modules():
        for value in list(vars(module).values()):
            if isinstance(value, FunctionType) and hasattr(value, MARK) and value.__module__ == module.__name__:
                yield value


@cache
def _digest(module: str) -> str:
    """Return a digest of the sources that the kernels of a module are made of."""
    sources = {module: _source(module)}
    waiting = [module]
    while waiting:
        for package, imported, names in _IMPORT.findall(sources[waiting.pop()]):
            for name in [imported] if imported else re.findall(r"\w+(?= as|,|$)", names):
                full_name = f"{package}.{name}"
                if full_name not in sources:
                    sources[full_name] = _source(full_name)
                    waiting.append(full_name)
    text = "\0".join(f"{name}\0{source}" for name, source in sorted(sources.items()))
    return hashlib.sha256((text + _LAYOUT).encode()).hexdigest()[:16]


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return Path(sys.modules[package].__path__[0], f"{name}.py").read_text()


# numba is only partly typed: the modules imported below are not. Importing it takes 0.5 s, so these functions do it on
# demand.


def _locator_class() -> type:
    """The class that says where numba stores a kernel."""
    caching: Any = importlib.import_module("numba.core.caching")
    folder = str(cache_folder())

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        """Stores all kernels in one folder."""

        def __init__(self, function: FunctionType) -> None:
            self._digest = _digest(function.__module__)

        @classmethod
        def from_function(cls, py_func: FunctionType, _py_file: str) -> Locator:
            return cls(py_func)

        def get_cache_path(self) -> str:
            return folder

        def get_source_stamp(self) -> str:
            return self._digest

        def get_disambiguator(self) -> str:
            return self._digest

    return Locator


def _library_class() -> Callable[..., Any]:
    """The class of machine code that was loaded from the cache."""
    codegen: Any = importlib.import_module("numba.core.codegen")

    class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
        """Machine code from the cache; parses its bitcode when a caller is compiled."""

        _shared_module: object

        def __init__(self, context: Any, name: str, machine_code: bytes, bitcode: bytes, symbols: list[str]) -> None:
            super().__init__(context, name)
            self._bitcode = bitcode
            self.enable_object_caching()
            self._set_compiled_object(machine_code)
            self._finalize_final_module()
            context._engine._defined_symbols.update(symbols)

        def _get_module_for_linking(self) -> object:
            if self._shared_module is None:
                self._shared_module = codegen.ll.parse_bitcode(self._bitcode)
            return self._shared_module

    return Library


def _results_class() -> type:
    """The class that converts compiled kernels to cache entries and back."""
    caching: Any = importlib.import_module("numba.core.caching")
    compiler: Any = importlib.import_module("numba.core.compiler")
    load_library = _library_class()

    class Results(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (_locator_class(),)

        def reduce(self, data: Any) -> object:
            """Omit environments without constants.

            Machine code does not use them, and each imports its module.
            """
            *payload, environments = data._reduce()
            return *payload, tuple(environment for environment in environments if environment.consts)

        def rebuild(self, target_context: Any, payload: Any) -> object:
            """Like `CompileResult._rebuild`, with our library class."""
            (name, _, (code, bitcode)), function, own, signature, objectmode, lifted, _, _, others = payload
            symbols = [function.llvm_cpython_wrapper_name, function.env_name, *(other.env_name for other in others)]
            library = load_library(target_context.codegen(), name, code, bitcode, symbols)
            entry_point = target_context.get_executable(library, function, own)
            for other in others:
                library.codegen.set_env(other.env_name, other)
            return compiler.compile_result(
                target_context=target_context,
                typing_context=target_context.typing_context,
                library=library,
                environment=own,
                entry_point=entry_point,
                fndesc=function,
                signature=signature,
                objectmode=objectmode,
                lifted=lifted,
                referenced_envs=others,
            )

    return Results


def _cache_class() -> Callable[[FunctionType], Any]:
    """The class of the cache of one kernel."""
    caching: Any = importlib.import_module("numba.core.caching")
    nrt: Any = importlib.import_module("numba.core.runtime")

    class Cache(caching.Cache):  # type: ignore[misc]
        _impl_class = _results_class()

        def load_overload(self, sig: object, target_context: object) -> object:
            # numba's own method loads its compiler, which takes longer than loading the machine code of all kernels.
            nrt.rtsys.initialize(target_context)
            return self._load_overload(sig, target_context)

        def _load_overload(self, sig: object, target_context: object) -> object:
            try:
                return super()._load_overload(sig, target_context)
            except _UNREADABLE:
                return None

        def save_overload(self, sig: object, data: object) -> None:
            with contextlib.suppress(*_UNREADABLE):  # the compiled kernel stays in this process
                super().save_overload(sig, data)

    return Cache


def _dispatcher_factory(compiles: bool) -> Callable[[FunctionType], object]:
    """A function that compiles a kernel."""
    registry: Any = importlib.import_module("numba.core.registry")
    make_cache = _cache_class()

    class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
        """A compiled kernel."""

        def enable_caching(self) -> None:
            self._cache = make_cache(self.py_func)

        def cached_signatures(self) -> list[Any]:
            """The argument types for which the cache contains this kernel."""
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
        dispatcher = Kernel(function, targetoptions={"nopython": True, "boundscheck": None})
        dispatcher.enable_caching()
        return dispatcher

    return make
