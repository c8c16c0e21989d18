"""Look up policies: built-in, from entry points, or classes in files.

This module reads files and executes them. A policy from a plug-in is used like a built-in one.
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
from levada.policies.registry import check_names, lookup, make, unknown

#: The entry point group of policies.
GROUP = "levada.policies"

_VALUES: dict[str, type] = {"name": str, "needs": Needs, "cadence": Cadence, "guards": Guards}
_A: dict[type, str] = {
    str: "a string",
    Needs: "Needs, e.g. Needs.NOTHING",
    Cadence: "a Cadence, e.g. ON_EVENTS",
    Guards: "Guards, e.g. ALL_GUARDS",
}
_METHODS = ("initial", "decide")


def find_policy(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """The policy with this name, alias or entry point, or of `path/to/file.py:Class`; raises BadInput."""
    if lookup(name) is not None:
        return make(name, options)
    return _create(find_class(name), name, options or {})


def find_class(name: str) -> type:
    """The validated class of a policy that is not built in; raises BadInput."""
    for entry in entry_points(group=GROUP, name=name):
        with _as_bad_input(f"{name}: {entry.value} cannot be loaded"):
            loaded = entry.load()
        return _policy_class(loaded, name)
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _policy_class(_attribute(_load_module(path), class_name), name)
    if name.endswith(".py"):
        classes = _classes(_load_module(name))
        raise BadInput.one(f"{name}: add the name of the class, e.g. {name}:{classes[0] if classes else 'Mine'}")
    raise BadInput.one(unknown(name, [entry.name for entry in entry_points(group=GROUP)]))


def options_of(policy_class: type) -> list[Parameter] | None:
    """The options of a policy's constructor; None if it accepts any."""
    try:
        parameters = list(signature(policy_class).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [
        parameter
        for parameter in parameters
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]


def describe_exception(error: BaseException) -> str:
    """Format an exception as `ZeroDivisionError: division by zero`."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def location_in(error: BaseException, policy_class: type) -> str:
    """Where *error* was raised, preferably in the file of a user's policy class, as `mine.py, line 3`."""
    frames = extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(policy_class.__module__), "__file__", None)
    own = [frame for frame in frames if frame.filename == file]
    # Built-in policies have several files; the innermost frame is the most useful.
    frame = own[-1] if own and not policy_class.__module__.startswith("levada.") else frames[-1]
    return f"{frame.filename}, line {frame.lineno}"


def _load_module(path: str) -> ModuleType:
    """Execute a file as a module. Not imported: this writes no cache file, and edits take effect immediately."""
    source = read_bytes(path)
    module = ModuleType(f"levada_policy_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A file may also call `sys.exit` or raise another BaseException.
        raise BadInput.one(f"{path}{_line(error, path)}: {describe_exception(error)}") from error
    return module


def _attribute(module: ModuleType, name: str) -> Any:
    value = vars(module).get(name)
    if value is None:
        classes = _classes(module)
        otherwise = f"it has {', '.join(classes)}" if classes else ""
        raise BadInput.one(f"{module.__file__}: no class {name!r}" + did_you_mean(name, classes, otherwise))
    return value


def _classes(module: ModuleType) -> list[str]:
    """The names of the classes that a module defines."""
    own = vars(module).items()
    return [name for name, value in own if isinstance(value, type) and value.__module__ == module.__name__]


def _policy_class(value: Any, name: str) -> type:
    if not isinstance(value, type):
        raise BadInput.one(f"{name} is not a class")
    missing = [field for field in (*_VALUES, *_METHODS) if not hasattr(value, field)]
    if missing:
        raise BadInput.one(f"{name} is not a policy: missing {', '.join(missing)}")
    wrong = [
        Fault("", f"{name} is not a policy: its {field} must be {_A[kind]}, not {getattr(value, field)!r}")
        for field, kind in _VALUES.items()
        if not isinstance(getattr(value, field), kind)
    ]
    wrong += [
        Fault("", f"{name} is not a policy: its {method} must be a method")
        for method in _METHODS
        if not callable(getattr(value, method))
    ]
    if wrong:
        raise BadInput(wrong)
    return value


def _create(policy_class: type, name: str, options: Mapping[str, Any]) -> AnyPolicy:
    parameters = options_of(policy_class)
    if parameters is not None:
        check_names(name, [parameter.name for parameter in parameters], options)
        required = [parameter for parameter in parameters if parameter.default is Parameter.empty]
        missing = [parameter.name for parameter in required if parameter.name not in options]
        if missing:
            raise BadInput([Fault(f"options.{option}", f"required by {name}") for option in missing])
    with _as_bad_input(f"{name} cannot be created"):
        policy: AnyPolicy = policy_class(**options)
    return policy


@contextmanager
def _as_bad_input(context: str) -> Iterator[None]:
    """Convert exceptions of foreign code, except Ctrl-C, to BadInput that starts with *context*."""
    try:
        yield
    except (KeyboardInterrupt, BadInput):
        raise
    except BaseException as error:
        raise BadInput.one(f"{context}: {describe_exception(error)}") from error


def _line(error: BaseException, path: str) -> str:
    """The line in the file at *path*, as `, line 3`; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename == path:
        number = error.lineno
    else:
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == path]
        number = frames[-1].lineno if frames else None
    return f", line {number}" if number else ""
