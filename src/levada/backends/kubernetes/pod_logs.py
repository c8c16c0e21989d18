"""Logs of the pods of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from levada.backends.kubernetes.client import ApiError, KubernetesApi
from levada.backends.kubernetes.objects import PodObject, unix_time
from levada.backends.protocol import LogLine


async def pod_logs(
    api: KubernetesApi, pods: Sequence[PodObject], *, tail: int | None, follow: bool, previous: bool
) -> AsyncIterator[LogLine]:
    """The lines of these pods: one pod after the other, or as they come with *follow*."""
    if not follow:
        for pod in pods:
            async for line in _lines(api, pod, tail, follow, previous):
                yield line
        return
    queue: asyncio.Queue[LogLine | None] = asyncio.Queue()

    async def read(pod: PodObject) -> None:
        try:
            async for line in _lines(api, pod, tail, follow, previous):
                queue.put_nowait(line)
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(read(pod)) for pod in pods]
    try:
        open_pods = len(tasks)
        while open_pods:
            read_line = await queue.get()
            if read_line is None:
                open_pods -= 1
            else:
                yield read_line
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lines(
    api: KubernetesApi, pod: PodObject, tail: int | None, follow: bool, previous: bool
) -> AsyncIterator[LogLine]:
    name = pod.metadata.name
    try:
        async for line in api.logs(pod.metadata.namespace, name, tail=tail, follow=follow, previous=previous):
            stamp, _, text = line.partition(" ")
            at = 0.0
            with suppress(ValueError):
                at = unix_time(stamp)
            yield LogLine(worker=name, at=at, text=text if at else line)
    except ApiError as error:
        yield LogLine(worker=name, at=0.0, text=f"[no logs of {name}: {error}]")
