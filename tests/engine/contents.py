"""Everything that an object reaches, as values by path: where two are equal, not one byte has changed."""

from __future__ import annotations

import hashlib
import types
from typing import Any

import msgspec
import numpy as np

#: Code, not data: it has no value of its own that could change.
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
#: Follows from the other fields of an immutable object, and is computed at its first use.
_DERIVED = ("_dense",)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def contents(root: object) -> dict[str, str]:
    """Type and value of all that can be reached from *root*, by path. What is reached twice is entered once."""
    found: dict[str, str] = {}
    entered: dict[int, str] = {}
    kept: list[object] = []  # so that no id is used again while this runs

    def add(path: str, value: Any) -> None:
        kind = type(value).__qualname__
        if isinstance(value, _PLAIN):
            found[path] = f"{kind} {value!r}"
        elif isinstance(value, _CODE):
            found[path] = getattr(value, "__qualname__", kind)
        elif id(value) in entered:
            found[path] = f"as {entered[id(value)]}"
        else:
            entered[id(value)] = path
            kept.append(value)
            found[path] = kind
            if isinstance(value, np.ndarray):
                found[path] = f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
            elif isinstance(value, np.generic):
                found[path] = f"{kind} {value!r}"
            elif isinstance(value, np.random.Generator):
                add(f"{path}.state", value.bit_generator.state)
            else:
                add_elements(path, value)

    def add_elements(path: str, value: Any) -> None:
        if isinstance(value, dict | types.MappingProxyType):
            for place, (key, held) in enumerate(value.items()):
                add(f"{path}.key{place}", key)
                add(f"{path}[{key!r}]", held)
        elif isinstance(value, set | frozenset):
            for place, key in enumerate(sorted(value, key=repr)):
                add(f"{path}{{{place}}}", key)
        elif isinstance(value, list | tuple):
            for place, held in enumerate(value):
                add(f"{path}[{place}]", held)
        for name in value.__struct_fields__ if isinstance(value, msgspec.Struct) else _slots(value):
            add(f"{path}.{name}", getattr(value, name, None))
        for name, held in getattr(value, "__dict__", {}).items():
            add(f"{path}.{name}", held)

    add("", root)
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What is different, by path: before and after."""
    return {path: (before.get(path), after.get(path)) for path in before | after if before.get(path) != after.get(path)}


def _slots(value: object) -> list[str]:
    found = []
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        found += [names] if isinstance(names, str) else list(names)
    return [name for name in found if name not in ("__dict__", "__weakref__", *_DERIVED)]
