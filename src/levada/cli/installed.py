"""Policies of other packages that are installed here, found without importing any of them.

`importlib.metadata` would do as well, but importing it takes longer than everything that `levada policy ls` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

#: The group of entry points in which a package names its policies.
GROUP = "levada.policies"
_SUFFIX = ".dist-info"


class Installed(NamedTuple):
    """One policy as its package announces it."""

    name: str
    target: str  #: `module:Class`
    package: str  #: name and version


def installed() -> list[Installed]:
    """What all packages announce, in the order in which Python finds them; of one name the first."""
    found: dict[str, Installed] = {}
    for folder, package in _packages():
        for name, target in _announced(os.path.join(folder, "entry_points.txt")):
            found.setdefault(name, Installed(name, target, package))
    return list(found.values())


def _packages() -> Iterator[tuple[str, str]]:
    """The folder of each package's metadata, and its name and version."""
    for path in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(path or os.curdir))
        except OSError:
            continue  # a folder that is not there, or an archive
        for name in names:
            if name.endswith(_SUFFIX):
                yield os.path.join(path, name), name.removesuffix(_SUFFIX).replace("-", " ")


def _announced(path: str) -> Iterator[tuple[str, str]]:
    """The names and targets of our group in a file of entry points."""
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
            # What stands in brackets behind the class are extras that it needs.
            yield name.strip(), target.partition("[")[0].replace(" ", "")
