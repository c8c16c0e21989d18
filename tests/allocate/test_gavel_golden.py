"""Every share policy reaches Gavel's own results on Gavel's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.allocate.gavel_golden import EXACT, GOLDEN, answered, assert_agrees, case, levels, pairs, pairs_from_table

#: Names in the data that are no policies of their own.
_NOT_OURS = ("proportional",)
#: Gavel's own answer gives away more than there is: what counts is that ours is feasible.
_MENDED = ("fifo",)


def rows(policies: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The policies that have an answer of Gavel's."""
    return [
        (name, row)
        for name, row in policies.items()
        if name not in _NOT_OURS and "__by_job_type" not in name and not {"error", "skipped"} & row.keys()
    ]


PLAIN = [(data, name, row) for data in GOLDEN["instances"] for name, row in rows(data["policies"])]
PACKED = [
    (data, mode, name, row)
    for data in GOLDEN["packed_instances"]
    for mode, policies in data["policies"].items()
    for name, row in rows(policies)
]
SEQUENCES = [(data, name, steps) for data in GOLDEN["sequences"] for name, steps in data["policies"].items()]


@pytest.mark.parametrize(("data", "name", "row"), PLAIN, ids=[f"{data['id']}-{name}" for data, name, _ in PLAIN])
def test_plain(data: dict[str, Any], name: str, row: dict[str, Any]) -> None:
    document = case(data, name, pairs=pairs_from_table(data) if name == "gandiva" else [])
    answer = answered(document)
    if name not in _MENDED:
        assert_agrees(answer, row)
    if "independent_sorted_levels" in row:
        reached = levels(document, answer) if name.endswith("_perf") else np.array(_times(document, answer))
        scale = [job["scale_factor"] / job["weight"] for job in document["jobs"]]
        assert np.sort(reached * scale) == pytest.approx(row["independent_sorted_levels"], rel=EXACT)


def _times(document: dict[str, Any], answer: dict[str, Any]) -> list[float]:
    return [sum(answer["shares"][job["id"]].values()) for job in document["jobs"]]


@pytest.mark.parametrize(
    ("data", "mode", "name", "row"), PACKED, ids=[f"{data['id']}-{mode}-{name}" for data, mode, name, _ in PACKED]
)
def test_packed(data: dict[str, Any], mode: str, name: str, row: dict[str, Any]) -> None:
    answer = answered(case(data, name, pairs=pairs(data, data["pairs"][mode])))
    if name not in _MENDED:
        assert_agrees(answer, row)


@pytest.mark.parametrize(("data", "name", "steps"), SEQUENCES, ids=[f"{d['id']}-{name}" for d, name, _ in SEQUENCES])
def test_sequence(data: dict[str, Any], name: str, steps: list[dict[str, Any]]) -> None:
    """State passes from answer to answer; isolated time may come from the case."""
    state = None
    for step, row in zip(data["steps"], steps, strict=True):
        together = pairs_from_table(step) if name.endswith("packed") or name == "gandiva" else []
        document = case(step, name, pairs=together, state=state)
        answer = answered(document)
        state = answer["state"]
        if name in _MENDED:
            continue
        assert_agrees(answer, row)
        if "iso_cum" in row:
            for job, isolated_s in zip(document["jobs"], row["iso_cum"], strict=True):
                job["isolated_s"] = isolated_s
            assert_agrees(answered({**document, "state": None}), row)


@pytest.mark.parametrize("data", GOLDEN["hierarchical"], ids=[data["id"] for data in GOLDEN["hierarchical"]])
@pytest.mark.parametrize("name", ["max_min_fairness_water_filling", "max_min_fairness_water_filling_perf"])
def test_hierarchy(data: dict[str, Any], name: str) -> None:
    groups = data["entities"]
    entities = {group: {"weight": of["weight"], "policy": of["reweighting_policy"]} for group, of in groups.items()}
    document = case(data, name, entities=entities)
    owner = {str(job): group for group, of in groups.items() for job in of["jobs"]}
    for job in document["jobs"]:
        job["entity"] = owner[job["id"]]
    answer = answered(document)
    reached = levels(document, answer) if name.endswith("_perf") else np.array(_times(document, answer))
    sums = dict.fromkeys(groups, 0.0)
    for job, level in zip(document["jobs"], reached, strict=True):
        sums[job["entity"]] += level
    expected = data["policies"][name]
    assert sums == pytest.approx(expected["entity_sum_normalized"], rel=EXACT)
    assert reached == pytest.approx(expected["normalized_effective_throughput"], rel=EXACT, abs=1e-8)
