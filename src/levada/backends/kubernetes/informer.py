"""Informers: caches of one kind of object each, kept current by a watch.

An informer streams the first state (`sendInitialEvents`), or lists it in pages where the server refuses that. It
continues from the last resourceVersion after a break, and starts from nothing when that has expired (410).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Generic

import msgspec

from levada.backends.kubernetes.cache import Cache, T, is_outdated
from levada.backends.kubernetes.client import ApiError, KubernetesApi, Resource
from levada.backends.kubernetes.objects import ObjectMetadata
from levada.backends.kubernetes.work import backoff

#: Called with the object before and after a change; None = it did not or does not exist.
Changed = Callable[[T | None, T | None], None]
_log = logging.getLogger(__name__)
_INITIAL_END = "k8s.io/initial-events-end"
_PAGE = "500"
#: The server ends a watch after this time, and sends a bookmark about every 60 s before.
_WATCH_S = (300, 600)
#: A watch without a line for this time is broken.
_SILENCE_S = 150.0
#: A kind that the server does not know is looked for again after this time.
_MISSING_S = 60.0


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Bookmark(msgspec.Struct):
    metadata: ObjectMetadata


class _PageMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _PageMetadata
    items: list[msgspec.Raw]


class Scope(msgspec.Struct, frozen=True):
    """Which objects of a kind an informer reads."""

    #: Empty = all namespaces.
    namespace: str = ""
    #: `labelSelector`, `fieldSelector`.
    params: Mapping[str, str] = {}
    #: A server that does not know the kind counts as having no objects.
    optional: bool = False
    #: So does one that does not let Levada read it. Never for jobs: objects that vanish are cancelled jobs.
    may_be_forbidden: bool = False


EVERYTHING = Scope()


class Informer(Generic[T]):
    """Keeps a cache of one kind of object current; `changed` is called after each change of the cache."""

    def __init__(
        self,
        api: KubernetesApi,
        resource: Resource,
        cls: type[T],
        changed: Changed[T],
        *,
        cache: Cache[T] | None = None,
        scope: Scope = EVERYTHING,
        connected: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.resource = resource
        self.cache: Cache[T] = Cache() if cache is None else cache
        #: Set once the cache has had the whole state, or the kind is known to be missing.
        self.synced = asyncio.Event()
        #: Whether the server knows this kind.
        self.is_available = True
        self._api, self._changed, self._connected = api, changed, connected
        self._decoder = msgspec.json.Decoder(cls)
        self._scope = scope
        #: The version to continue from; empty = start from nothing.
        self._version = ""
        self._may_stream = True
        #: Whether the last watch delivered anything, and the keys of the initial state so far.
        self._heard = False
        self._initial: set[tuple[str, str]] | None = None

    async def run(self) -> None:
        """Follow the server until cancelled; failures are retried with a growing delay."""
        failures = 0
        while True:
            try:
                await self._follow()
                failures = 0
            except ApiError as error:
                scope = self._scope
                if (scope.optional and error.code == 404) or (scope.may_be_forbidden and error.code == 403):
                    self._is_missing(error)
                    await asyncio.sleep(_MISSING_S * random.uniform(0.75, 1.25))
                    continue
                if error.is_expired:
                    self._version = ""
                elif self._may_stream and error.code in (400, 422):
                    self._may_stream = False
                    continue
                elif error.is_away and error.code and not self._heard:
                    self._version = ""  # e.g. 504: the server does not know this version
                failures = 1 if self._heard else failures + 1
                if failures == 1:
                    level = logging.WARNING if error.code in (401, 403) else logging.INFO
                    _log.log(level, "watch of %s ended: %s", self.resource.plural, error)
                self._connected(not error.is_away)
                await asyncio.sleep(backoff(failures))

    def put(self, content: bytes) -> T:
        """Store the answer to a write, so that the cache is never behind Levada's own writes."""
        new = self._decoder.decode(content)
        self._store(new)
        return new

    async def _follow(self) -> None:
        """Watch once, from the last version or from nothing."""
        self._heard = False
        params = dict(self._scope.params)
        if not self._version and not self._may_stream:
            await self._list()
        if self._version:
            params["resourceVersion"] = self._version
        else:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self._initial = set()
        params |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(random.randint(*_WATCH_S))}
        try:
            async for line in self._api.watch(self.resource, self._scope.namespace, params, _SILENCE_S):
                if line:
                    self._take(line)
                else:
                    self._connected(True)
        except ApiError as error:
            if error.code == 0 and not self._heard:
                self._version = ""  # a watch from a future version never sends a line
            raise
        finally:
            self._initial = None

    def _take(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Line)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise ApiError(status.code or 500, status.message)
        self._heard = True
        if event.type == "BOOKMARK":
            bookmark = msgspec.json.decode(event.object, type=_Bookmark).metadata
            if self._initial is not None and bookmark.annotations.get(_INITIAL_END) == "true":
                self._has_all(self._initial, bookmark.resource_version)
                self._initial = None
            self._advance(bookmark.resource_version)
            return
        found = self._decode(event.object)
        if found is None:
            return
        if event.type == "DELETED":
            old = self.cache.remove(found.key, found.metadata.uid)
            if old is not None:
                self._changed(old, None)
        else:
            if self._initial is not None:
                self._initial.add(found.key)
            self._store(found)
        self._advance(found.metadata.resource_version)

    def _advance(self, version: str) -> None:
        # Initial events come in no order: their versions are no place to continue from.
        if self._initial is None:
            self._version = version

    def _decode(self, content: msgspec.Raw) -> T | None:
        try:
            return self._decoder.decode(content)
        except msgspec.ValidationError as error:
            _log.warning("ignoring an object of %s: %s", self.resource.plural, error)
            return None

    def _store(self, new: T) -> None:
        old, stored = self.cache.put(new)
        if stored:
            self._changed(old, new)

    async def _list(self) -> None:
        keys: set[tuple[str, str]] = set()
        params = {**self._scope.params, "limit": _PAGE}
        while True:
            page = msgspec.json.decode(await self._api.list(self.resource, self._scope.namespace, params), type=_Page)
            for item in page.items:
                found = self._decode(item)
                if found is not None:
                    keys.add(found.key)
                    self._store(found)
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        self._version = page.metadata.resource_version
        self._has_all(keys, self._version)
        self._heard = True

    def _has_all(self, keys: set[tuple[str, str]], version: str) -> None:
        """Remove objects that are not in the whole state of this version; those of later writes stay."""
        self.is_available = True
        state = ObjectMetadata(resource_version=version)
        for key, known in list(self.cache.objects.items()):
            if key not in keys and not is_outdated(known.metadata, state):
                self._changed(self.cache.remove(key), None)
        self.synced.set()

    def _is_missing(self, error: ApiError) -> None:
        if self.is_available:
            _log.info("cannot read %s: %s", self.resource.plural, error)
        self._has_all(set(), "")
        self.is_available = False
        self._connected(True)
