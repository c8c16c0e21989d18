"""The text of /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from levada.server.context import ServerTuning
from tests.server.http_server import Served, document, served
from tests.server.memory_service import MemoryKeys, MemoryService
from tests.timeouts import WAIT_S


def samples(up: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(up.ask("GET", "/metrics").text)
        for sample in family.samples
    }


def test_metrics_of_jobs_gpus_and_requests(up: Served) -> None:
    before = samples(up)
    jobs = up.ask("POST", "/api/v1/jobs", [document("a", workers=5), document("b", workers=3), document("c")]).json()
    up.ask("DELETE", f"/api/v1/jobs/{jobs['items'][1]['id']}")
    up.ask("GET", "/api/v1/jobs/nothing")
    metrics = samples(up)

    def value(name: str, **labels: str) -> float | None:
        key = name, tuple(sorted(labels.items()))
        return metrics[key] - before.get(key, 0) if name.endswith("_total") else metrics.get(key)

    assert value("levada_jobs", phase="Running", queue="default") == 1
    assert value("levada_jobs", phase="Pending", queue="default") == 1
    assert value("levada_job_gpus", gpu_type="a100", queue="default") == 5
    assert value("levada_gpus", gpu_type="a100") == 8
    assert value("levada_gpus_used", gpu_type="a100") == 5
    assert value("levada_nodes", phase="Ready") == 1
    assert value("levada_server_ready") == 1
    assert metrics["levada_decisions_total", (("policy", "elastic-fifo"),)] == 3
    assert metrics["levada_decisions_failed_total", (("policy", "elastic-fifo"),)] == 1
    assert metrics["levada_decision_seconds_total", (("policy", "elastic-fifo"),)] == 0.5
    assert value("levada_http_requests_total", method="GET", route="/api/v1/jobs/{name}", status="404") == 1
    assert value("levada_http_requests_total", method="POST", route="/api/v1/jobs", status="201") == 1
    ids = {job["id"] for job in jobs["items"]}
    with_ids = {name for name, labels in metrics if any(value in ids for _, value in labels)}
    assert with_ids == {"levada_job_info"}
    assert all(name.startswith("levada_") for name, _ in metrics)


def test_metrics_count_ended_jobs() -> None:
    with served(tuning=ServerTuning(metrics_s=0.0)) as up:
        jobs = up.ask("POST", "/api/v1/jobs", [document(name) for name in ("a", "b", "c")]).json()["items"]
        up.run(lambda: up.service.by_id[jobs[0]["id"]].update(running_s=90.0, waiting_s=10.0, gpu_seconds=360.0))
        up.run(lambda: up.service.end(jobs[0]["id"]))
        up.run(lambda: up.service.end(jobs[1]["id"], "Failed"))
        end = time.monotonic() + WAIT_S
        failed = ("levada_jobs_finished_total", (("phase", "Failed"), ("queue", "default")))
        while failed not in (metrics := samples(up)) and time.monotonic() < end:
            time.sleep(0.01)
    queue = (("queue", "default"),)
    assert metrics[failed] == 1
    assert metrics["levada_jobs_finished_total", (("phase", "Succeeded"), ("queue", "default"))] == 1
    assert metrics["levada_job_completion_seconds_sum", queue] == 100
    assert metrics["levada_job_waiting_seconds_count", queue] == 2
    assert metrics["levada_job_gpu_seconds_total", queue] == 360
    assert metrics["levada_events_total", (("type", "submitted"),)] == 3


def test_series_of_single_jobs_need_a_token(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", document("secret-model"))
    assert "secret-model" in up.ask("GET", "/metrics").text
    text = up.ask("GET", "/metrics", role=None).text
    assert "levada_jobs{" in text
    assert "levada_job_info" not in text
    assert "secret-model" not in text


def test_metrics_are_cached_for_concurrent_requests() -> None:
    class Counted(MemoryService):
        scrapes = 0

        async def living(self) -> Any:
            self.scrapes += 1
            await asyncio.sleep(0.05)
            async for some in super().living():
                yield some

    @asynccontextmanager
    async def backing() -> AsyncIterator[tuple[Any, Any]]:
        yield Counted(), MemoryKeys()

    with served(backing, tuning=ServerTuning(metrics_s=600.0)) as up, ThreadPoolExecutor(8) as crowd:
        texts = set(crowd.map(lambda _: up.ask("GET", "/metrics", role=None).text, range(40)))
        assert (len(texts), up.service.scrapes) == (1, 1)
        assert "levada_server_ready 1" in texts.pop()
