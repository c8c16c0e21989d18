"""The case of `levada allocate`: accepted fields, and one line per fault."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.allocate.case_file import Case, check, parse
from levada.errors import BadInput

CASE: dict[str, Any] = json.loads("""
{"policy": "elastic-tiresias", "options": {}, "now": 1000.0, "cluster": {"gpus": {"v100": 8}},
 "jobs": [{"id": "A", "submitted": 1, "min": 2, "max": 4, "desired": 2, "priority": 0, "weight": 1.0,
   "gpu_types": ["v100"], "scale_factor": 1, "first_started": null, "remaining_s": 0.0,
   "speedup": {"1": 1.0, "2": 2.0}, "throughput": {"v100": 3.5}, "steps_left": 1000,
   "elapsed_s": 10.0, "deadline_s": null, "entity": null}]}
""")


def lines(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(BadInput) as caught:
        check(raw)
    return [str(fault) for fault in caught.value.faults]


def with_job(**fields: Any) -> dict[str, Any]:
    return {"cluster": {"gpus": {"v100": 8}}, "jobs": [{"id": "A", **fields}]}


def test_documented_case() -> None:
    case = check(parse(json.dumps(CASE)))
    assert case.jobs[0].min == 2
    assert case.jobs[0].speedup == {"1": 1.0, "2": 2.0}
    assert case.cluster.gpus == {"v100": 8}


def test_minimal_case() -> None:
    job = check(with_job()).jobs[0]
    assert (job.submitted, job.min, job.max, job.desired, job.gpus_per_worker) == (0.0, 1, 1, None, 1)


def test_max_follows_min_and_desired() -> None:
    assert check(with_job(min=3)).jobs[0].max == 3
    assert check(with_job(desired=5)).jobs[0].max == 5


def test_nodes_and_quantities() -> None:
    node = {"name": "n1", "gpus": {"v100": 4}, "cpu": 16, "memory": "64Gi", "labels": {"rack": "r1"}}
    case = check({"cluster": {"nodes": [node]}, "jobs": [{"id": "A", "gpu_memory": 3072, "cpu": "500m"}]})
    assert case.cluster.nodes is not None
    assert (case.cluster.nodes[0].cpu, case.cluster.nodes[0].memory) == (16000, 65536)
    assert (case.jobs[0].gpu_memory, case.jobs[0].cpu) == (3072, 500)


def test_optional_fields() -> None:
    case = check({
        "id": "c1", "note": "ignored", "expected": {"A": 1},
        "cluster": {"gpus": {"v100": 0}, "prices": {"v100": 0.74}},
        "jobs": [
            {"id": "A", "entity": "team1", "queue": "q", "running": {"v100": 2}, "gpus_per_worker": 0.5},
            {"id": "B", "queue": "q", "gpus_per_worker": 0},
        ],
        "pairs": [{"jobs": ["A", "B"], "throughput": {"v100": [1.5, 2]}}],
        "entities": {"team1": {"weight": 2, "policy": "fifo"}},
        "queues": {"q": {"guaranteed": {"v100": 4}, "parent": "root"}, "root": {}},
        "options": {"seed": 3}, "state": {"anything": [1]},
    })  # fmt: skip
    assert case.pairs[0].throughput == {"v100": [1.5, 2]}
    assert case.queues["q"].parent == "root"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"min": 0}, "jobs[0].min: must be at least 1"),
        ({"min": 10**10}, "jobs[0].min: must be at most 1000000000"),
        ({"min": 1.5}, "jobs[0].min: must be a whole number"),
        ({"min": True}, "jobs[0].min: must be a whole number"),
        ({"min": "2"}, "jobs[0].min: must be a whole number"),
        ({"min": 3, "max": 2}, "jobs[0].max: must be at least min (3)"),
        ({"min": 2, "max": 4, "desired": 5}, "jobs[0].desired: must be between min (2) and max (4)"),
        ({"weight": 0}, "jobs[0].weight: must be above 0"),
        ({"weight": float("nan")}, "jobs[0].weight: must be a finite number"),
        ({"remaining_s": float("inf")}, "jobs[0].remaining_s: must be a finite number"),
        ({"remaining_s": -1}, "jobs[0].remaining_s: must be at least 0"),
        ({"gpu_types": ["a", "a"]}, "jobs[0].gpu_types: 'a' is given twice"),
        ({"gpus_per_worker": 1.5}, "jobs[0].gpus_per_worker: must be a whole number if above 1"),
        ({"gpu_memory": "3Gx"}, "jobs[0].gpu_memory: must be an amount of memory, e.g. 8Gi"),
        ({"running": {"a": 1, "b": 1}}, "jobs[0].running: must be of one GPU type"),
        ({"speedup": {"two": 1.0}}, "jobs[0].speedup: 'two' is not a number of workers"),
        ({"throughput": {"v100": -1}}, "jobs[0].throughput.v100: must be at least 0"),
        ({"sumbitted": 1}, "jobs[0].sumbitted: unknown field; did you mean submitted?"),
    ],
)
def test_fault_of_a_job(fields: dict[str, Any], line: str) -> None:
    assert line in lines(with_job(**fields))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"jobs": [{"id": "A"}, {"id": "A"}]}, "jobs[1].id: 'A' is the same as in jobs[0]"),
        ({"jobs": [{}]}, "jobs[0].id: is required"),
        ({"jobs": {}}, "jobs: must be a list"),
        ({"jobs": [3]}, "jobs[0]: must be a mapping"),
        ({"cluster": {}}, "cluster: must have gpus or nodes, and not both"),
        ({"cluster": {"gpus": {}, "nodes": []}}, "cluster: must have gpus or nodes, and not both"),
        ({"cluster": {"gpus": {"v100": -1}}}, "cluster.gpus.v100: must be at least 0"),
        ({"cluster": {"nodes": [{"name": "n"}, {"name": "n"}]}}, "cluster.nodes[1].name: 'n' is the same as in cluster.nodes[0]"),
        ({"optoins": {}}, "optoins: unknown field; did you mean options?"),
        ({"pairs": [{"jobs": ["A", "Z"], "throughput": {}}]}, "pairs[0].jobs[1]: 'Z' is not among jobs"),
        ({"pairs": [{"jobs": ["A", "A"], "throughput": {}}]}, "pairs[0].jobs: must be two different jobs"),
        ({"queues": {"a": {}}, "jobs": [{"id": "A", "queue": "b"}]}, "jobs[0].queue: 'b' is not among queues"),
        ({"queues": {"default": {"parent": "x"}}}, "queues.default.parent: 'x' is not among queues"),
        ({"queues": {"default": {"parent": "default"}}}, "queues.default.parent: must not form a cycle"),
    ],
)  # fmt: skip
def test_fault_of_a_case(changes: dict[str, Any], line: str) -> None:
    assert line in lines({**with_job(), **changes})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "{", '{"a": NaN}', '{"jobs": [{"id": "A", "id": "B"}]}', "{" * 10**5, '{"x":' + "[" * 10**5, "a: 1\n---\nb: 2"],
)  # fmt: skip
def test_invalid_text(text: str) -> None:
    with pytest.raises(BadInput):
        check(parse(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*Case.model_fields, "policies"]), json_values))
def test_random_input_is_a_case_or_bad_input(raw: dict[str, Any]) -> None:
    try:
        check(raw)
    except BadInput as error:
        assert error.faults
        assert all("\n" not in fault.text for fault in error.faults)


def test_one_fault_does_not_hide_another() -> None:
    raw = {
        "cluster": {"gpus": {"v100": 8}},
        "jobs": [{"id": "A", "entity": "t2"}, {"id": "A", "min": 4, "max": 2}],
        "entities": {"t1": {"policy": "fare"}},
    }
    assert lines(raw) == [
        "jobs[1].max: must be at least min (4)",
        "entities.t1.policy: must be 'fairness' or 'fifo'",
        "jobs[1].id: 'A' is the same as in jobs[0]",
        "jobs[0].entity: 't2' is not among entities",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"queues": {"p": {"guaranteed": {"v10": 6}}}},
         "queues.p.guaranteed.v10: the cluster has no such GPU type; did you mean v100?"),
        ({"queues": {"p": {"limit": {"a100x": 6}}}, "cluster": {"nodes": [{"name": "n", "gpus": {"h200": 2}}]}},
         "queues.p.limit.a100x: the cluster has no such GPU type; it has h200"),
        ({"jobs": [{"id": "A", "throughput": {"v10": 3}}]},
         "jobs[0].throughput.v10: the cluster has no such GPU type; did you mean v100?"),
        ({"pairs": [{"jobs": ["A", "B"], "throughput": {"v10": [1, 1]}}]},
         "pairs[0].throughput.v10: the cluster has no such GPU type; did you mean v100?"),
        ({"cluster": {"gpus": {"v100": 8}, "prices": {"V100": 2}}},
         "cluster.prices.V100: the cluster has no such GPU type; did you mean v100?"),
    ],
)  # fmt: skip
def test_unknown_gpu_type(changes: dict[str, Any], line: str) -> None:
    raw = {"cluster": {"gpus": {"v100": 8}}, "jobs": [{"id": "A"}, {"id": "B"}], **changes}
    assert lines(raw) == [line]


def test_speeds_and_prices_of_absent_gpu_types_are_allowed() -> None:
    """Users copy whole tables of speeds and prices."""
    speeds = {"v100": 8.0, "p100": 4.0, "k80": 2.0}
    case = check({"cluster": {"gpus": {"v100": 8}, "prices": speeds}, "jobs": [{"id": "A", "throughput": speeds}]})
    assert dict(case.jobs[0].throughput) == speeds
