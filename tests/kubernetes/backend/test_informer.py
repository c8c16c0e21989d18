"""Informers: first state, breaks, expired versions, missing kinds, late answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from levada.backends.kubernetes.cache import Cache
from levada.backends.kubernetes.client import PODS, ApiError
from levada.backends.kubernetes.informer import Informer, Scope
from levada.backends.kubernetes.objects import ObjectMetadata, PodObject
from tests.kubernetes.backend.fake_api import FakeApi
from tests.kubernetes.backend.virtual_time import run

POD = {"spec": {"containers": []}}


class InformerScene:
    """An informer of pods, and the changes that it reported."""

    def __init__(self, **fields: Any) -> None:
        self.api = FakeApi()
        for name, value in fields.items():
            setattr(self.api, name, value)
        self.changes: list[tuple[str | None, str | None]] = []
        self.connected: list[bool] = []
        for name in ("a", "b"):
            self.add(name)

    def add(self, name: str) -> None:
        self.api.add(PODS, "ns", {"metadata": {"name": name}, **POD})

    def remove(self, name: str) -> None:
        self.api.remove(PODS, "ns", name)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            self.informer = Informer(
                self.api, PODS, PodObject, self._changed, connected=self.connected.append, scope=Scope(optional=True)
            )
            task = asyncio.create_task(self.informer.run())
            await self.informer.synced.wait()
            await story()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        run(whole())

    def _changed(self, old: PodObject | None, new: PodObject | None) -> None:
        self.changes.append((old and old.metadata.name, new and new.metadata.name))

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.informer.cache.objects)


@pytest.mark.parametrize("streams", [True, False])
def test_first_state_is_streamed_or_listed(streams: bool) -> None:
    scene = InformerScene(streams=streams)

    async def story() -> None:
        assert scene.names == ["a", "b"]
        scene.add("c")
        await asyncio.sleep(1)
        assert scene.names == ["a", "b", "c"]

    scene.run(story)


def test_list_is_paged() -> None:
    scene = InformerScene(streams=False)
    for number in range(1200):
        scene.add(f"pod-{number:04}")

    async def story() -> None:
        assert len(scene.names) == 1202

    scene.run(story)


def test_watch_continues_after_a_break_without_a_new_list() -> None:
    scene = InformerScene()

    async def story() -> None:
        scene.api.break_watches()
        scene.remove("a")
        scene.add("c")
        before = len(scene.changes)
        await asyncio.sleep(60)
        assert scene.names == ["b", "c"]
        assert len(scene.changes) - before == 2

    scene.run(story)


def test_expired_version_starts_again_and_finds_deletions() -> None:
    scene = InformerScene()

    async def story() -> None:
        scene.api.break_watches(ApiError(0, "connection lost"))
        scene.remove("a")
        scene.add("c")
        scene.api.expired = scene.api.version
        await asyncio.sleep(60)
        assert scene.names == ["b", "c"]
        assert ("a", None) in scene.changes

    scene.run(story)


def test_missing_kind_counts_as_empty_until_it_appears() -> None:
    scene = InformerScene(missing={"pods"})

    async def story() -> None:
        assert scene.names == []
        assert not scene.informer.is_available
        scene.api.missing.clear()
        await asyncio.sleep(100)
        assert scene.names == ["a", "b"]
        assert scene.informer.is_available

    scene.run(story)


def test_lost_right_to_read_keeps_the_known_objects() -> None:
    scene = InformerScene()

    def forbidden(verb: str, resource: object) -> None:
        raise ApiError(403, "pods is forbidden")

    async def story() -> None:
        scene.api.fault = forbidden
        scene.api.break_watches(ApiError(0, "connection lost"))
        await asyncio.sleep(200)
        assert scene.names == ["a", "b"]
        scene.api.fault = lambda _verb, _resource: None
        scene.add("c")
        await asyncio.sleep(100)
        assert scene.names == ["a", "b", "c"]

    scene.run(story)


def test_outage_is_reported_and_ends() -> None:
    scene = InformerScene()

    def away(verb: str, resource: object) -> None:
        raise ApiError(0, "connection refused")

    async def story() -> None:
        scene.api.fault = away
        scene.api.break_watches(ApiError(0, "connection lost"))
        await asyncio.sleep(100)
        assert scene.connected[-1] is False
        scene.api.fault = lambda _verb, _resource: None
        scene.add("c")
        await asyncio.sleep(100)
        assert scene.connected[-1] is True
        assert scene.names == ["a", "b", "c"]

    scene.run(story)


def test_silent_watch_is_opened_again() -> None:
    scene = InformerScene()

    async def story() -> None:
        watches = []
        scene.api.fault = lambda verb, _: watches.append(verb)
        await asyncio.sleep(1000)
        assert len(watches) >= 3

    scene.run(story)


def pod(name: str, version: int, uid: str = "u") -> PodObject:
    return PodObject(metadata=ObjectMetadata(name=name, namespace="ns", uid=uid, resource_version=str(version)))


def test_older_version_does_not_replace_a_newer_one() -> None:
    cache: Cache[PodObject] = Cache()
    cache.put(pod("a", 5))
    assert cache.put(pod("a", 4))[1] is False
    assert cache.put(pod("a", 10))[1] is True


def test_late_answer_does_not_bring_back_a_deleted_object() -> None:
    cache: Cache[PodObject] = Cache()
    cache.put(pod("a", 5))
    cache.remove(("ns", "a"), "u")
    assert cache.put(pod("a", 7))[1] is False
    assert cache.put(pod("a", 8, uid="another"))[1] is True
    assert cache.remove(("ns", "a"), "u") is None, "a late deletion of the old one"
    assert cache.get("ns", "a") is not None


def test_index_follows_changes() -> None:
    cache: Cache[PodObject] = Cache({"node": lambda each: [each.node]})
    cache.put(pod("a", 1))
    assert [each.metadata.name for each in cache.by("node", "")] == ["a"]
    moved = msgspec.structs.replace(pod("a", 2), spec=msgspec.convert({"nodeName": "n1"}, type(pod("a", 1).spec)))
    cache.put(moved)
    assert cache.by("node", "") == []
    assert cache.by("node", "n1") == [moved]
    cache.remove(("ns", "a"))
    assert cache.by("node", "n1") == []
