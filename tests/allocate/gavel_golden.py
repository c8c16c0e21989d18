"""Gavel's golden allocations as cases of `levada allocate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.allocate.decide import decide
from tests.peer_data import gavel_table

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "gavel_allocations.json").read_text())
#: How far from the optimum a value may be.
EXACT = 1e-6
#: Less is better.
MINIMISED = ("finish_time_rho", "makespan", "allox")


def case(data: dict[str, Any], policy: str, **more: Any) -> dict[str, Any]:
    """An instance of the golden file as a case."""
    types = data["worker_types"]
    jobs = [
        {
            "id": str(job["id"]),
            "scale_factor": job["scale_factor"],
            "weight": job["priority_weight"],
            "throughput": dict(zip(types, rates, strict=True)),
            "steps_left": job["num_steps_remaining"],
            "elapsed_s": job["time_since_start"],
            "deadline_s": job["SLO_seconds_remaining"],
        }
        for job, rates in zip(data["jobs"], data["throughputs"], strict=True)
    ]
    cluster = {"gpus": data["cluster_spec"], "prices": data["instance_costs"]}
    return {"policy": levada_name(policy), "now": data.get("now", 0.0), "cluster": cluster, "jobs": jobs, **more}


def levada_name(policy: str) -> str:
    """Gavel's name of a policy as ours."""
    return f"gavel-{policy}" if policy.startswith("fifo") else policy


def pairs(data: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pairs of a golden instance as those of a case."""
    ids = [str(job["id"]) for job in data["jobs"]]
    return [
        {
            "jobs": [ids[i] for i in row["pair"]],
            "throughput": dict(zip(data["worker_types"], row["throughput_by_worker_type"], strict=True)),
        }
        for row in rows
    ]


def pairs_from_table(data: dict[str, Any]) -> list[dict[str, Any]]:
    """All pairs of equal scale, with rates from the table that the data was made with."""
    table = gavel_table()
    keys = [str((job["job_type"], job["scale_factor"])) for job in data["jobs"]]
    rows = [
        {"pair": (a, b), "throughput_by_worker_type": [table[t][keys[a]][keys[b]] for t in data["worker_types"]]}
        for b in range(len(keys))
        for a in range(b)
        if data["jobs"][a]["scale_factor"] == data["jobs"][b]["scale_factor"]
    ]
    return pairs(data, rows)


def answered(document: dict[str, Any]) -> dict[str, Any]:
    """The answer to a case, whose shares must be feasible."""
    answer = decide(document)
    feasible(document, answer)
    return answer


def feasible(document: dict[str, Any], answer: dict[str, Any]) -> None:
    """No share exceeds 1, and no type is over capacity."""
    scale = {job["id"]: job.get("scale_factor", 1) for job in document["jobs"]}
    time = dict.fromkeys(scale, 0.0)
    used = dict.fromkeys(document["cluster"]["gpus"], 0.0)
    for name, share in answer["shares"].items():
        members = [name] if name in scale else name.split("+")
        assert len({scale[member] for member in members}) == 1
        for gpu_type, part in share.items():
            assert part >= 0
            used[gpu_type] += scale[members[0]] * part
            for member in members:
                time[member] += part
    assert max(time.values(), default=0.0) <= 1 + 1e-7
    assert all(used[name] <= gpus * (1 + 1e-7) for name, gpus in document["cluster"]["gpus"].items())


def assert_agrees(answer: dict[str, Any], policy: dict[str, Any]) -> None:
    """The value is Gavel's, or the independent optimum where Gavel ended short of it."""
    expected = policy["objective"]
    assert answer["objective"]["name"] == expected["formula"]
    best, value = expected.get("independent_optimum", expected["value"]), answer["objective"]["value"]
    assert value == pytest.approx(best, rel=EXACT)
    # Never worse than what Gavel itself reached.
    better = expected["value"] if expected["formula"].startswith(MINIMISED) else -expected["value"]
    mine = value if expected["formula"].startswith(MINIMISED) else -value
    assert mine <= better + EXACT * abs(better)


def levels(document: dict[str, Any], answer: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Each job's rate over its proportional rate, from the shares alone."""
    gpus = document["cluster"]["gpus"]
    result = []
    for job in document["jobs"]:
        proportional = sum(job["throughput"][name] * count for name, count in gpus.items()) / sum(gpus.values())
        reached = sum(job["throughput"][name] * part for name, part in answer["shares"][job["id"]].items())
        result.append(reached / proportional)
    return np.array(result)
