"""Policies by name: Levada's own, those of installed packages, and a class in a file of the user's.

This is the edge: it reads files and runs what is in them. A policy that is found is as good as a built-in one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from levada.errors import BadInput
from levada.policies.protocol import AnyPolicy, Cadence, Guards, Needs
from levada.policies.registry import make
from levada.policies.table import lookup, unknown

#: The group of entry points in which a package names its policies.
GROUP = "levada.policies"

_VALUES = {"name": str, "needs": Needs, "cadence": Cadence, "guards": Guards}
_METHODS = ("initial", "decide")


def find_policy(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """The policy of this name or alias, of this entry point, or of `path/to/file.py:Class`; raises BadInput."""
    options = options or {}
    if lookup(name) is not None:
        return make(name, options)
    for entry in entry_points(group=GROUP, name=name):
        try:
            found = entry.load()
        except Exception as error:
            raise BadInput.one(f"{name}: {entry.value} cannot be loaded: {_what(error)}") from error
        return _made(found, name, options)
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _made(_class_in(Path(path), class_name), name, options)
    if name.endswith(".py"):
        raise BadInput.one(f"{name}: say which class of it, as in {name}:Mine")
    raise BadInput.one(unknown(name))


def _class_in(path: Path, class_name: str) -> Any:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadInput.one(f"{path}: {error.strerror or 'cannot be read'}") from None
    # Compiled here and not imported: no cache is left beside the user's file, and an edit counts at once.
    module = ModuleType(f"levada_policy_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise BadInput.one(f"{path}{_line(error, path)}: {_what(error)}") from error
    try:
        return getattr(module, class_name)
    except AttributeError:
        raise BadInput.one(f"{path}: there is no {class_name!r} in it") from None


def _made(found: Any, name: str, options: Mapping[str, Any]) -> AnyPolicy:
    if not isinstance(found, type):
        raise BadInput.one(f"{name} is not a class")
    lacks = [field for field, kind in _VALUES.items() if not isinstance(getattr(found, field, None), kind)]
    lacks += [method for method in _METHODS if not callable(getattr(found, method, None))]
    if lacks:
        raise BadInput.one(f"{name} is not a policy: it lacks {', '.join(lacks)}")
    try:
        signature(found).bind(**options)
    except (TypeError, ValueError) as error:
        raise BadInput.one(f"{name}: {error}", "options") from None
    try:
        policy: AnyPolicy = found(**options)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput.one(f"{name} cannot be made: {_what(error)}") from error
    return policy


def _what(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException, path: Path) -> str:
    """Where in the file at *path* it went wrong, as `, line 3`; empty where nothing says so."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        number = error.lineno
    else:
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        number = frames[-1].lineno if frames else None
    return f", line {number}" if number else ""
