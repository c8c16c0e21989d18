"""Policies by name: Levada's own, those of installed packages, and a class in a file of the user's.

This is the edge: it reads files and runs what is in them. A policy that is found is as good as a built-in one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from inspect import Parameter, signature
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.read import read_bytes
from levada.policies.protocol import AnyPolicy, Cadence, Guards, Needs
from levada.policies.registry import check_names, make
from levada.policies.table import lookup, unknown

#: The group of entry points in which a package names its policies.
GROUP = "levada.policies"

_VALUES: dict[str, type] = {"name": str, "needs": Needs, "cadence": Cadence, "guards": Guards}
_A: dict[type, str] = {
    str: "a text",
    Needs: "Needs, as Needs.NOTHING is",
    Cadence: "a Cadence, as ON_EVENTS is",
    Guards: "Guards, as ALL_GUARDS is",
}
_METHODS = ("initial", "decide")


def find_policy(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """The policy of this name or alias, of this entry point, or of `path/to/file.py:Class`; raises BadInput."""
    if lookup(name) is not None:
        return make(name, options)
    return _made(find_class(name), name, options or {})


def find_class(name: str) -> type:
    """The class of a policy that is not in the table, checked to be one; raises BadInput."""
    for entry in entry_points(group=GROUP, name=name):
        with _one_line(f"{name}: {entry.value} cannot be loaded"):
            found = entry.load()
        return _policy_class(found, name)
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _policy_class(_named(_module(path), class_name), name)
    if name.endswith(".py"):
        classes = _classes(_module(name))
        raise BadInput.one(f"{name}: say which class of it, as in {name}:{classes[0] if classes else 'Mine'}")
    raise BadInput.one(unknown(name, [entry.name for entry in entry_points(group=GROUP)]))


def options_of(found: type) -> list[Parameter] | None:
    """The options that a policy's constructor takes; None where it takes any."""
    try:
        parameters = list(signature(found).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [one for one in parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]


def in_words(error: BaseException) -> str:
    """An exception as `ZeroDivisionError: division by zero`."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_in(error: BaseException, found: type) -> str:
    """Where in the file of a user's policy class *error* arose, or where at all, as `mine.py, line 3`."""
    frames = extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(found.__module__), "__file__", None)
    own = [frame for frame in frames if frame.filename == file]
    # Levada's own policies are spread over files; there the innermost place says most.
    frame = own[-1] if own and not found.__module__.startswith("levada.") else frames[-1]
    return f"{frame.filename}, line {frame.lineno}"


def _module(path: str) -> ModuleType:
    """What is in the file; compiled here and not imported: no cache is left beside it, and an edit counts at once."""
    source = read_bytes(path)
    module = ModuleType(f"levada_policy_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A file may also end the process or raise what is no Exception.
        raise BadInput.one(f"{path}{_line(error, path)}: {in_words(error)}") from error
    return module


def _named(module: ModuleType, name: str) -> Any:
    found = vars(module).get(name)
    if found is None:
        classes = _classes(module)
        otherwise = f"it has {', '.join(classes)}" if classes else ""
        raise BadInput.one(f"{module.__file__}: there is no {name!r} in it" + did_you_mean(name, classes, otherwise))
    return found


def _classes(module: ModuleType) -> list[str]:
    """The names of the classes that a module defines itself."""
    own = vars(module).items()
    return [name for name, value in own if isinstance(value, type) and value.__module__ == module.__name__]


def _policy_class(found: Any, name: str) -> type:
    if not isinstance(found, type):
        raise BadInput.one(f"{name} is not a class")
    lacks = [field for field in (*_VALUES, *_METHODS) if not hasattr(found, field)]
    if lacks:
        raise BadInput.one(f"{name} is not a policy: it lacks {', '.join(lacks)}")
    wrong = [
        Fault("", f"{name} is not a policy: its {field} must be {_A[kind]}, not {getattr(found, field)!r}")
        for field, kind in _VALUES.items()
        if not isinstance(getattr(found, field), kind)
    ]
    wrong += [
        Fault("", f"{name} is not a policy: its {method} must be a method")
        for method in _METHODS
        if not callable(getattr(found, method))
    ]
    if wrong:
        raise BadInput(wrong)
    return found


def _made(found: type, name: str, options: Mapping[str, Any]) -> AnyPolicy:
    parameters = options_of(found)
    if parameters is not None:
        check_names(name, [parameter.name for parameter in parameters], options)
        lacks = [one.name for one in parameters if one.default is Parameter.empty and one.name not in options]
        if lacks:
            raise BadInput([Fault(f"options.{option}", f"{name} needs it") for option in lacks])
    with _one_line(f"{name} cannot be made"):
        policy: AnyPolicy = found(**options)
    return policy


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turns whatever somebody's code raises, except Ctrl-C, into BadInput that begins with *what*."""
    try:
        yield
    except (KeyboardInterrupt, BadInput):
        raise
    except BaseException as error:
        raise BadInput.one(f"{what}: {in_words(error)}") from error


def _line(error: BaseException, path: str) -> str:
    """Where in the file at *path* it went wrong, as `, line 3`; empty where nothing says so."""
    if isinstance(error, SyntaxError) and error.filename == path:
        number = error.lineno
    else:
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == path]
        number = frames[-1].lineno if frames else None
    return f", line {number}" if number else ""
