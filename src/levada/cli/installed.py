"""Policies of other installed packages, found without importing them.

`importlib.metadata` does the same, but importing it takes longer than all of `levada policy ls`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

#: The entry point group of policies.
GROUP = "levada.policies"
_SUFFIX = ".dist-info"


class Installed(NamedTuple):
    """An entry point of a policy."""

    name: str
    target: str  #: `module:Class`
    package: str  #: name and version


def installed() -> list[Installed]:
    """Return the policies of all packages, in the order of `sys.path`; the first one of each name."""
    policies: dict[str, Installed] = {}
    for folder, package in _packages():
        for name, target in _entry_points(os.path.join(folder, "entry_points.txt")):
            policies.setdefault(name, Installed(name, target, package))
    return list(policies.values())


def _packages() -> Iterator[tuple[str, str]]:
    """Yield the metadata folder of each package, and its name and version."""
    for path in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(path or os.curdir))
        except OSError:
            continue  # a folder that is not there, or an archive
        for name in names:
            if name.endswith(_SUFFIX):
                yield os.path.join(path, name), name.removesuffix(_SUFFIX).replace("-", " ")


def _entry_points(path: str) -> Iterator[tuple[str, str]]:
    """Yield names and targets of the group `levada.policies` in an `entry_points.txt`."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            # Brackets after the class name extras that it needs.
            yield name.strip(), target.partition("[")[0].replace(" ", "")
