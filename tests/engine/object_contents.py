"""All values reachable from an object by path, to prove that nothing has changed."""

from __future__ import annotations

import hashlib
import types
from typing import Any

import msgspec
import numpy as np

#: Code, not data.
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
#: Derived from other fields of an immutable object at first use.
_DERIVED = ("_dense",)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def contents(root: object) -> dict[str, str]:
    """Type and value of everything reachable from *root* by path; each object once."""
    values: dict[str, str] = {}
    entered: dict[int, str] = {}
    references: list[object] = []  # keeps objects alive, so that ids stay unique

    def add(path: str, value: Any) -> None:
        kind = type(value).__qualname__
        if isinstance(value, _PLAIN):
            values[path] = f"{kind} {value!r}"
        elif isinstance(value, _CODE):
            values[path] = getattr(value, "__qualname__", kind)
        elif id(value) in entered:
            values[path] = f"as {entered[id(value)]}"
        else:
            entered[id(value)] = path
            references.append(value)
            values[path] = kind
            if isinstance(value, np.ndarray):
                values[path] = f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
            elif isinstance(value, np.generic):
                values[path] = f"{kind} {value!r}"
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
    return values


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Different values by path: before and after."""
    return {path: (before.get(path), after.get(path)) for path in before | after if before.get(path) != after.get(path)}


def _slots(value: object) -> list[str]:
    values = []
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        values += [names] if isinstance(names, str) else list(names)
    return [name for name in values if name not in ("__dict__", "__weakref__", *_DERIVED)]
