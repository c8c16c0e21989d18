"""Routes and output of VodaScheduler."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from levada.compat.voda.routes import duration
from tests.server.http_server import Served

MPIJOB = """
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata:
  name: tensorflow2-keras-mnist-elastic
spec:
  slotsPerWorker: 1
  cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
            - name: main
              image: example/horovod
              env:
                - {name: NUM_PROC, value: "2"}
                - {name: MIN_NUM_PROC, value: "1"}
                - {name: MAX_NUM_PROC, value: "4"}
                - {name: EPOCHS, value: "10"}
              command: [horovodrun, python, train.py]
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {vodascheduler/accelerator: a100}
          containers:
            - name: main
              image: example/horovod
"""


def test_a_training_job_is_created_listed_and_deleted(up: Served) -> None:
    created = up.ask("POST", "/training", raw=MPIJOB.encode(), role="user")
    assert created.status == 200
    assert created.headers["content-type"].startswith("text/plain")
    match = re.fullmatch(
        r"Training job created: (tensorflow2-keras-mnist-elastic-\d{8}-\d{6}-\w{4})\n"
        r"View your logs by:\n    levada logs \1",
        created.text,
    )
    assert match
    name = match[1]
    header, row, end = up.ask("GET", "/training").text.split("\n")
    assert header == (
        f"{'NAME':60} {'STATUS':10} {'WORKERS':10} {'SCHEDULER':25} {'WAITING':10} {'RUNNING':10} {'TOTAL':10}"
    )
    assert row == f"{name:60} {'Running':10} {'1':10} {'a100':25} {'0s':10} {'0s':10} {'0s':10}"
    assert end == ""
    gone = up.ask("DELETE", "/training", raw=json.dumps(name).encode(), role="user")
    assert (gone.status, gone.text) == (200, f"Training job deleted: {name}")
    assert up.ask("GET", "/training").text.count("\n") == 1


def test_rows_are_sorted_and_json_is_accepted(up: Served) -> None:
    for name in ("zebra", "ant"):
        job: dict[str, Any] = {
            "apiVersion": "levada.dev/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"run": {"command": ["true"]}},
        }
        assert up.ask("POST", "/training", raw=json.dumps(job).encode()).status == 200
    names = [line.split("-")[0] for line in up.ask("GET", "/training").text.splitlines()[1:]]
    assert names == ["ant", "zebra"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/training", b"", 400, "must be an MPIJob"),
        ("POST", "/training", b"kind: MPIJob", 400, "apiVersion"),
        ("POST", "/training", b"a: [", 400, "not YAML"),
        ("POST", "/training", b"\xff", 400, "not UTF-8"),
        ("DELETE", "/training", b'"nothing"', 404, "not found"),
        ("DELETE", "/training", b"nothing", 404, "not found"),
        ("DELETE", "/training", b'{"Offset":', 400, "not JSON"),
        ("DELETE", "/training", b"[1]", 400, "name of a job"),
        ("PUT", "/algorithm", b'"Magic"', 400, "no policy 'Magic'"),
        ("PUT", "/algorithm", b"FIFO", 400, "not JSON"),
        ("PUT", "/algorithm", b"7", 400, "JSON string"),
        ("PUT", "/ratelimit", b'"7"', 400, "whole seconds"),
        ("PUT", "/ratelimit", b"-1", 400, "whole seconds"),
        ("PUT", "/ratelimit", b"true", 400, "whole seconds"),
        ("POST", "/allocation", b"[]", 400, "NumGpu"),
        ("POST", "/allocation", b'{"NumGpu": 1, "AlgorithmName": "Magic", "ReadyJobs": []}', 400, "no policy"),
        ("POST", "/allocation", b"{", 400, "not JSON"),
        ("POST", "/allocation", b"[" * 500 + b"]" * 500, 400, "nested too deeply"),
        ("POST", "/training", b"[" * 100 + b"]" * 100, 400, "nested too deeply"),
        ("POST", "/training", b"a: " + b"[" * 100 + b"]" * 100, 400, "nested too deeply"),
        ("POST", "/training", b"[" * 1000, 400, "nested too deeply"),
    ],
)
def test_errors_are_plain_text(up: Served, method: str, path: str, body: bytes, status: int, text: str) -> None:
    response = up.ask(method, path, raw=body)
    assert (response.status, response.headers["content-type"]) == (status, "text/plain; charset=utf-8")
    assert text in response.text


def test_the_algorithm_and_the_rate_limit(up: Served) -> None:
    response = up.ask("PUT", "/algorithm", raw=b'"ElasticTiresias"', role="operator")
    assert response.text == "Scheduler: default\nScheduling Algorithm: ElasticTiresias"
    assert up.ask("GET", "/api/v1/policies/current").json()["name"] == "ElasticTiresias"
    response = up.ask("PUT", "/ratelimit", raw=b"45", role="operator")
    assert response.text == "Scheduler: default\nRe-scheduling ratelimit (sec): 45"
    assert up.ask("GET", "/api/v1/policies/current").json()["rate_limit_s"] == 45


def _ready(name: str, second: int, least: int, most: int, **info: Any) -> dict[str, Any]:
    return {
        "job_name": name,
        "job_category": name,
        "priority": 0,
        "submit_timestamp": f"2021-10-15T03:50:{second:02d}Z",
        "config": {"num_proc": least, "min_num_proc": least, "max_num_proc": most, "epochs": 10},
        "time_metrics": {"first_start_timestamp": "9999-12-31T23:59:59Z"},
        "job_info": info,
    }


@pytest.mark.parametrize(
    ("algorithm", "gpus", "jobs", "expected"),
    [
        # Examples of its documentation.
        ("FIFO", 8, [_ready("A", 1, 2, 2), _ready("B", 2, 3, 3), _ready("C", 3, 4, 4)], {"A": 2, "B": 3, "C": 0}),
        (
            "ElasticFIFO",
            8,
            [_ready("A", 1, 1, 8), _ready("B", 2, 1, 2), _ready("C", 3, 2, 4)],
            {"A": 3, "B": 2, "C": 3},
        ),
        (
            "SRJF",
            4,
            [
                _ready("A", 1, 2, 2, estimated_remainning_time_sec=300),
                _ready("B", 2, 1, 1, estimated_remainning_time_sec=100),
                _ready("C", 3, 2, 2, estimated_remainning_time_sec=200),
            ],
            {"A": 0, "B": 1, "C": 2},
        ),
        ("FIFO", 8, [], {}),
    ],
)
def test_allocation(up: Served, algorithm: str, gpus: int, jobs: list[Any], expected: dict[str, int]) -> None:
    request = {"SchedulerID": "a100", "NumGpu": gpus, "AlgorithmName": algorithm, "ReadyJobs": jobs}
    response = up.ask("POST", "/allocation", request, role="viewer")
    assert (response.status, response.json()) == (200, expected)


def test_durations_have_the_format_of_go() -> None:
    assert [duration(s) for s in (0, 28, 65, 3600, 10862)] == ["0s", "28s", "1m5s", "1h0m0s", "3h1m2s"]
