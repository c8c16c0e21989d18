"""Properties of the backend under random operations, delays, failures and restarts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from levada.backends.kubernetes.client import ApiError
from levada.backends.kubernetes.names import HOSTNAME
from levada.backends.kubernetes.stamp import stamp_of
from levada.core import events as ev
from levada.core.plan import Op
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.api_rules import Object, is_gated, is_over
from tests.kubernetes.backend.fake_api import FakeApi
from tests.kubernetes.backend.fake_cluster import gpus_of
from tests.kubernetes.backend.scene import BackendScene, Watch, resize, start, stop
from tests.kubernetes.backend.virtual_time import run

NODES = ("n0", "n1", "n2")
MAKES = (jobs.batch_job, jobs.mpijob, jobs.pytorchjob, jobs.levada_job)
places = st.lists(st.sampled_from(NODES), min_size=1, max_size=6).filter(
    lambda nodes: max(Counter(nodes).values()) <= 4
)
#: What happens next, and how long after.
steps = st.tuples(
    st.one_of(
        st.tuples(st.just("to"), places),
        st.tuples(st.just("stop"), st.just([])),
        st.tuples(st.just("kill"), st.just([])),
        st.tuples(st.just("reopen"), st.just([])),
        st.tuples(st.just("repeat"), st.just([])),
        st.tuples(st.just("stale"), places),
        st.tuples(st.just("break"), st.just([])),
    ),
    st.floats(0.0, 3.0),
)


class FlakyApi(FakeApi):
    """Requests take time; some fail before they have an effect, and of some the answer is lost."""

    def __init__(self, seed: int, rate: float) -> None:
        super().__init__()
        self._random, self._rate = random.Random(seed), rate

    async def create(self, *arguments: Any) -> bytes:
        return await self._unreliable(super().create, *arguments)

    async def patch(self, *arguments: Any) -> bytes:
        return await self._unreliable(super().patch, *arguments)

    async def delete(self, *arguments: Any, **options: Any) -> None:
        await self._unreliable(super().delete, *arguments, **options)

    async def _unreliable(self, request: Any, *arguments: Any, **options: Any) -> Any:
        for number in range(2):
            await asyncio.sleep(self._random.uniform(0.0, 0.05))
            if self._random.random() < self._rate:
                raise ApiError(self._random.choice((0, 429, 500)), "overloaded")
            if number == 0:
                answer = await request(*arguments, **options)
        return answer


class Observer:
    """Checks each change of the cluster as it happens, by reading the API only."""

    def __init__(self, scene: BackendScene) -> None:
        self.scene = scene
        self.pinned: set[str] = set()
        #: Hooks run inside of requests, whose errors the backend handles: violations are collected.
        self.violations: list[str] = []
        scene.api.hooks.append(self.look)

    def look(self, kind: str, body: Object) -> None:
        """No node is overcommitted, and no pod is pinned where its job's grant has no place for it."""
        if body["kind"] != "Pod" or kind == "DELETED":
            return
        self.violations += [f"{node} is overcommitted" for node in NODES if self.scene.cluster.used(node) > 4]
        uid, node = body["metadata"]["uid"], (body["spec"].get("nodeSelector") or {}).get(HOSTNAME)
        if node is None or is_gated(body) or uid in self.pinned or not gpus_of(body):
            return
        self.pinned.add(uid)
        stamp = stamp_of(self.scene.object()["metadata"]["annotations"])
        granted = Counter(place.node for place in (stamp.places if stamp is not None else ()))
        if self.held()[node] > granted[node]:
            self.violations.append(f"{body['metadata']['name']} pinned to {node}: {self.held()} of {granted}")

    def held(self) -> Counter[str]:
        """Pods of the job that hold GPUs of a node, being deleted or not."""
        held: Counter[str] = Counter()
        for body in self.scene.api.objects.values():
            if body["kind"] == "Pod" and not is_gated(body) and not is_over(body) and gpus_of(body):
                held[(body["spec"].get("nodeSelector") or {}).get(HOSTNAME, "")] += 1
        return held


class Engine:
    """Issues operations as the engine does: one at a time, the next when the last is acknowledged or replaced."""

    def __init__(self, scene: BackendScene, watch: Watch) -> None:
        self.scene, self.watch = scene, watch
        self.generation = 0
        self.epoch = 1
        self.last: Op | None = None
        self.runs = False

    async def act(self, what: str, nodes: list[str]) -> None:
        """Do one step of a story."""
        match what:
            case "to":
                await self.settle()
                self.generation += 1
                make = resize if self.runs else start
                await self.apply(make(self.generation, *sorted(nodes)))
                self.runs = True
            case "stop":
                self.generation += 1
                await self.apply(stop(self.generation))
                self.runs = False
            case "repeat" if self.last is not None:
                await self.watch.backend.apply(self.last, self.scene.launch())
            case "stale" if self.generation > 1:
                await self.watch.backend.apply(resize(self.generation - 1, *nodes), self.scene.launch())
            case "kill":
                pods = [pod for pod in self.scene.cluster.pods() if pod["status"]["phase"] == "Running"]
                if pods and not pods[-1]["metadata"]["labels"].get("levada.dev/job"):
                    self.scene.cluster._delete(pods[-1])
            case "reopen":
                await self.reopen()
            case "break":
                self.scene.api.break_watches(ApiError(0, "connection lost"))

    async def apply(self, op: Op) -> None:
        self.last = op
        await self.watch.backend.apply(op, self.scene.launch())

    async def reopen(self) -> None:
        await self.watch.close()
        self.epoch += 1
        self.watch = await self.scene.open(self.epoch)
        if self.last is not None:
            await self.watch.backend.apply(self.last, self.scene.launch())

    async def settle(self) -> None:
        """Wait for the outcome of the last operation."""
        if self.last is not None:
            kinds = (ev.Running,) if self.runs else (ev.Released,)
            generation = self.last.generation
            await self.watch.until(lambda: any(self.watch.all(kind, generation) for kind in kinds), "an outcome")


@given(
    st.integers(0, 2**32), st.sampled_from((0.0, 0.1)), st.sampled_from(MAKES), st.lists(steps, min_size=1, max_size=8)
)
def test_any_story_keeps_the_rules_and_ends_as_commanded(seed: int, rate: float, make: Any, story: list[Any]) -> None:
    scene = BackendScene(seed, api=FlakyApi(seed, rate))
    scene.adopt(make())
    observer = Observer(scene)

    async def whole() -> None:
        engine = Engine(scene, await scene.open(1))
        for (what, nodes), delay in story:
            await engine.act(what, nodes)
            await asyncio.sleep(delay)
        await engine.settle()
        await asyncio.sleep(30)
        if engine.last is not None:
            wanted = [place.node for place in engine.last.grant.places] if engine.last.grant else []
            assert scene.nodes() == sorted(wanted)
            assert observer.held() == Counter(wanted)
        assert observer.violations == []
        await engine.watch.close()

    run(whole())


@given(
    st.integers(0, 2**32), st.sampled_from((jobs.batch_job, jobs.pytorchjob)), st.lists(places, min_size=2, max_size=5)
)
def test_survivors_keep_their_pods(seed: int, make: Any, targets: list[list[str]]) -> None:
    scene = BackendScene(seed)
    scene.adopt(make())

    async def whole() -> None:
        watch = await scene.open(1)
        await watch.backend.apply(start(1, *targets[0]), scene.launch())
        await watch.for_(ev.Running, 1)
        for generation, target in enumerate(targets[1:], 2):
            workers = watch.backend.workers("train-1")
            before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.cluster.pods()}
            staying = Counter(each.node for each in sorted(workers, key=lambda each: each.name)[: len(target)])
            await watch.backend.apply(resize(generation, *target), scene.launch())
            await watch.for_(ev.Running, generation)
            survivors = set(before.values()) & set(scene.workers())
            if not watch.all(ev.JobsRestarted, generation):
                assert len(survivors) == (staying & Counter(target)).total()
            assert scene.nodes() == sorted(target)
        await watch.close()

    run(whole())
