"""Caches of objects with indices.

Older versions never replace newer ones, and deleted objects do not come back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from levada.backends.kubernetes.objects import AnyObject, ObjectMetadata

T = TypeVar("T", bound=AnyObject)
#: Uids of deleted objects that are remembered, so that a late answer to a write does not bring one back.
_TOMBSTONES = 10_000


class Cache(Generic[T]):
    """Objects by (namespace, name), with indices. Older versions never replace newer ones."""

    def __init__(self, indices: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None) -> None:
        self.objects: dict[tuple[str, str], T] = {}
        self._functions = dict(indices or {})
        self._indices: dict[str, dict[Hashable, dict[tuple[str, str], T]]] = {
            name: defaultdict(dict) for name in self._functions
        }
        self._tombstones: dict[str, None] = {}

    def get(self, namespace: str, name: str) -> T | None:
        """One object."""
        return self.objects.get((namespace, name))

    def by(self, index: str, value: Hashable) -> list[T]:
        """The objects with this value of an index, ordered by key."""
        found = self._indices[index].get(value)
        return [found[key] for key in sorted(found)] if found else []

    def put(self, new: T) -> tuple[T | None, bool]:
        """Store an object unless it is outdated; returns the one before, and whether it was stored."""
        old = self.objects.get(new.key)
        if new.metadata.uid in self._tombstones or (old is not None and is_outdated(old.metadata, new.metadata)):
            return old, False
        if old is not None:
            self._unindex(old)
            if old.metadata.uid != new.metadata.uid:
                self._bury(old.metadata.uid)
        self.objects[new.key] = new
        for name, function in self._functions.items():
            for value in function(new):
                self._indices[name][value][new.key] = new
        return old, True

    def remove(self, key: tuple[str, str], uid: str = "") -> T | None:
        """Remove an object and return it; with *uid* only if it still has that."""
        old = self.objects.get(key)
        if old is None or (uid and old.metadata.uid != uid):
            self._bury(uid)
            return None
        del self.objects[key]
        self._unindex(old)
        self._bury(old.metadata.uid)
        return old

    def _unindex(self, old: T) -> None:
        for name, function in self._functions.items():
            index = self._indices[name]
            for value in function(old):
                index[value].pop(old.key, None)
                if not index[value]:
                    del index[value]

    def _bury(self, uid: str) -> None:
        if uid:
            self._tombstones[uid] = None
            while len(self._tombstones) > _TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]


def is_outdated(old: ObjectMetadata, new: ObjectMetadata) -> bool:
    """Whether *new* is an earlier version; versions are numbers that grow (Kubernetes 1.35)."""
    versions = old.resource_version, new.resource_version
    if all(version.isdecimal() for version in versions):
        return int(versions[1]) < int(versions[0])
    return False
