"""Answers with shares: format, properties, and rejected cases."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.allocate.decide import decide
from levada.cli.allocate import as_table
from levada.errors import BadInput
from levada.policies.catalog import POLICIES
from tests.allocate.gavel_golden import answered, levels

SHARING = [record.name for record in POLICIES if record.shares]
CHOOSING = [record.name for record in POLICIES if record.shares and any(o.name == "shares" for o in record.options)]
PACKING = [name for name in SHARING if "packed" in name or name == "gandiva"]

RATE = st.sampled_from([0.0, 0.5, 2.0, 3.5, 9.0, 40.0])
JOB = st.fixed_dictionaries(
    {
        "throughput": st.fixed_dictionaries({"v100": RATE, "k80": RATE}),
        "steps_left": st.sampled_from([1, 500, 2e5, 7e5]),
        "elapsed_s": st.sampled_from([0, 600.0, 90000.0]),
        "weight": st.sampled_from([0.5, 1, 5]),
    },
    optional={"deadline_s": st.sampled_from([-1.0, 30.0, 1e6]), "isolated_s": st.sampled_from([0, 5000.0])},
)


@st.composite
def cases(
    draw: st.DrawFn, *, scales: tuple[int, ...] = (1, 2, 4), least: int = 0, runs: bool = False
) -> dict[str, Any]:
    """A case for any share policy; with *runs*, every job can run on every type."""
    jobs = [{"id": f"j{i}", **job} for i, job in enumerate(draw(st.lists(JOB, min_size=least, max_size=5)))]
    for job in jobs:
        job["scale_factor"] = draw(st.sampled_from(scales))
        if runs:
            job["throughput"] = {name: max(rate, 0.25) for name, rate in job["throughput"].items()}
    pairs = [
        {"jobs": [a["id"], b["id"]], "throughput": {"v100": [draw(RATE), draw(RATE)], "k80": [draw(RATE), draw(RATE)]}}
        for i, a in enumerate(jobs)
        for b in jobs[:i]
        if a["scale_factor"] == b["scale_factor"] and draw(st.booleans())
    ]
    smallest = max(scales) if runs else 0
    count = st.integers(smallest, 8)
    gpus = {"v100": draw(count), "k80": draw(count)}
    return {"cluster": {"gpus": gpus, "prices": {"v100": 3.0}}, "jobs": jobs, "pairs": pairs, "now": 100.0}


# --- what always holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SHARING)
@given(data=st.data())
def test_shares_are_feasible_and_answers_repeat(policy: str, data: st.DataObject) -> None:
    scales = (1,) if policy == "allox" else (1, 2, 4)
    given_case = {**data.draw(cases(scales=scales)), "policy": policy}
    answer = answered(given_case)
    text = json.dumps(answer, allow_nan=False)
    assert json.dumps(decide(given_case)) == text
    assert list(answer["reasons"]) == [job["id"] for job in given_case["jobs"]]
    # It goes on from what it printed, with everything as it was.
    answered({**given_case, "state": json.loads(text)["state"]})
    for job in given_case["jobs"]:
        for name in answer["shares"][job["id"]]:
            assert job["throughput"][name] > 0


@given(cases(least=1, runs=True))
def test_fair_shares_are_no_worse_than_equal_pieces(given_case: dict[str, Any]) -> None:
    fair = answered({**given_case, "policy": "max_min_fairness_perf"})
    pieces = answered({**given_case, "policy": "isolated"})
    factor = np.array([job["scale_factor"] / job["weight"] for job in given_case["jobs"]])
    assert fair["objective"]["value"] >= (factor * levels(given_case, pieces)).min() * (1 - 1e-6)


@pytest.mark.parametrize(
    "policy", ["max_min_fairness_perf", "max_min_fairness_water_filling", "finish_time_fairness_perf"]
)
@given(given_case=cases(least=2, runs=True), order=st.randoms())
def test_the_order_of_jobs_changes_no_level(policy: str, given_case: dict[str, Any], order: Any) -> None:
    shuffled = list(given_case["jobs"])
    order.shuffle(shuffled)
    first = answered({**given_case, "policy": policy, "pairs": []})
    second = answered({**given_case, "policy": policy, "pairs": [], "jobs": shuffled})
    assert second["objective"]["value"] == pytest.approx(first["objective"]["value"], rel=1e-6)
    if policy.startswith("max_min"):
        by_job = dict(zip([job["id"] for job in shuffled], reached(shuffled, second, policy), strict=True))
        mine = [by_job[job["id"]] for job in given_case["jobs"]]
        assert mine == pytest.approx(reached(given_case["jobs"], first, policy), rel=1e-6, abs=1e-9)


def reached(jobs: list[dict[str, Any]], answer: dict[str, Any], policy: str) -> list[float]:
    """What each job reaches, as its policy sees it."""
    aware = policy.endswith("_perf")
    return [
        sum((job["throughput"][name] if aware else 1.0) * part for name, part in answer["shares"][job["id"]].items())
        for job in jobs
    ]


@pytest.mark.parametrize("policy", PACKING)
@given(given_case=cases(least=2))
def test_a_pair_is_the_same_from_both_sides(policy: str, given_case: dict[str, Any]) -> None:
    turned = [
        {"jobs": pair["jobs"][::-1], "throughput": {name: both[::-1] for name, both in pair["throughput"].items()}}
        for pair in given_case["pairs"]
    ]
    first = answered({**given_case, "policy": policy})
    second = answered({**given_case, "policy": policy, "pairs": turned})
    assert first["objective"] == second["objective"]
    spelt = {"+".join(pair["jobs"]): "+".join(pair["jobs"][::-1]) for pair in given_case["pairs"]}
    assert {spelt.get(name, name): share for name, share in first["shares"].items()} == second["shares"]


@given(cases(least=1, runs=True))
def test_packing_is_no_worse_than_running_alone(given_case: dict[str, Any]) -> None:
    for policy in ("max_min_fairness", "min_total_duration"):
        alone = answered({**given_case, "policy": f"{policy}_perf"})["objective"]["value"]
        packed = answered({**given_case, "policy": f"{policy}_packed"})["objective"]["value"]
        assert packed * (1 - 1e-6) <= alone if policy == "min_total_duration" else packed >= alone * (1 - 1e-6)


@pytest.mark.parametrize("policy", CHOOSING)
@given(given_case=cases(least=1, runs=True))
def test_the_middle_of_the_best_is_as_good(policy: str, given_case: dict[str, Any]) -> None:
    best = answered({**given_case, "policy": policy})
    middle = answered({**given_case, "policy": policy, "options": {"shares": "interior"}})
    value, least = middle["objective"]["value"], best["objective"]["value"]
    if policy.startswith("min_total_duration"):
        # As published: times are tried out, from 100 s on, to five parts in a hundred.
        assert least * (1 - 1e-4) <= value <= 1.06 * max(least, 100.0)
    else:
        assert value == pytest.approx(least, rel=1e-4)


# --- the answer ------------------------------------------------------------------------------------------------------

TWO = [
    {"id": "A", "throughput": {"v100": 4.0, "k80": 1.0}, "steps_left": 1000, "elapsed_s": 10.0},
    {"id": "B", "throughput": {"v100": 2.0, "k80": 2.0}, "steps_left": 1000, "elapsed_s": 10.0},
]
CASE = {"cluster": {"gpus": {"v100": 1, "k80": 1}}, "jobs": TWO}


def test_shape_of_the_answer() -> None:
    answer = decide({**CASE, "policy": "max_sum_throughput_perf"})
    assert list(answer) == ["policy", "shares", "objective", "reasons", "state"]
    assert answer["shares"] == {"A": {"v100": 1.0}, "B": {"k80": 1.0}}
    assert answer["objective"] == {"name": "sum_throughput", "value": 6.0}
    assert answer["reasons"]["A"] == {"code": "runs", "text": "Runs 100 % of the time."}
    assert decide({**CASE, "policy": "max_sum_throughput_perf", "state": answer["state"]}) == answer


def test_prices_and_deadlines() -> None:
    cluster = {"gpus": {"v100": 1, "k80": 1}, "prices": {"v100": 2.0, "k80": 0.5}}
    jobs = [{**TWO[0], "throughput": {"v100": 4.0}}, {**TWO[1], "throughput": {"v100": 3.0}, "deadline_s": 1000.0}]
    policy = "max_sum_throughput_normalized_by_cost_perf_SLOs"
    answer = decide({"policy": policy, "cluster": cluster, "jobs": jobs})
    assert answer["shares"]["B"]["v100"] == pytest.approx(1 / 3)
    assert answer["objective"]["value"] == pytest.approx((4 * 2 / 3 + 1) / 2)
    jobs[1]["deadline_s"] = 10.0
    late = decide({"policy": policy, "cluster": cluster, "jobs": jobs})
    assert late["shares"] == {"A": {"v100": 1.0}, "B": {}}
    assert late["alarm"] == "the required rates cannot all be reached; deadlines are ignored"


def test_scale_factor_is_the_size_of_a_job() -> None:
    jobs = [{**TWO[0], "scale_factor": 2}, {**TWO[1], "scale_factor": 4}]
    answer = decide({"policy": "isolated", "cluster": {"gpus": {"v100": 2}}, "jobs": jobs})
    assert answer["shares"] == {"A": {"v100": 1.0}, "B": {}}
    assert answer["reasons"]["B"]["code"] == "too-large"


@pytest.mark.parametrize(
    ("policy", "objective"),
    [("gavel-fifo", 3.5), ("max_min_fairness", 1.0), ("max_min_fairness_perf", None), ("allox", None)],
)
def test_throughput_is_that_of_the_size_it_was_measured_with(policy: str, objective: float | None) -> None:
    """The example of the documentation, whose elastic range is for other policies."""
    job = {"id": "A", "submitted": 1, "min": 2, "max": 4, "desired": 2, "scale_factor": 1, "throughput": {"v100": 3.5}}
    job |= {"speedup": {"1": 1.0, "2": 2.0}, "steps_left": 1000, "elapsed_s": 10.0}
    answer = decide({"policy": policy, "cluster": {"gpus": {"v100": 8}}, "jobs": [job]})
    assert answer["shares"] == {"A": {"v100": 1.0}}
    if objective is not None:
        assert answer["objective"]["value"] == pytest.approx(objective)
    # Where no size is said besides, it is the one asked for.
    del job["scale_factor"]
    if policy == "gavel-fifo":
        assert decide({"policy": policy, "cluster": {"gpus": {"v100": 8}}, "jobs": [job]})["objective"]["value"] == 7.0


def test_types_of_a_state_are_found_by_name() -> None:
    given_case = {**CASE, "policy": "allox"}
    first = decide(given_case)
    assert first["shares"] == {"A": {"v100": 1.0}, "B": {"k80": 1.0}}
    turned = {**given_case, "cluster": {"gpus": {"k80": 1, "p100": 1, "v100": 1}}, "state": first["state"]}
    assert decide(turned)["shares"] == first["shares"]
    gone = {**given_case, "cluster": {"gpus": {"k80": 1}}, "state": first["state"]}
    assert decide(gone)["shares"] == {"A": {}, "B": {"k80": 1.0}}


def test_alpha_in_the_name_of_allox() -> None:
    jobs = [{**TWO[0], "id": f"j{i}", "elapsed_s": float(i)} for i in range(6)]
    given_case = {"cluster": {"gpus": {"v100": 1}}, "jobs": jobs}
    half, whole = (decide({**given_case, "policy": name}) for name in ("allox_alpha=0.5", "allox"))
    assert half["policy"] == whole["policy"] == "allox"
    assert half == decide({**given_case, "policy": "allox", "options": {"alpha": 0.5}})
    assert half["objective"]["value"] < whole["objective"]["value"]


def test_entities_share_by_weight() -> None:
    jobs = [{"id": f"j{i}", "entity": "big" if i else "small"} for i in range(5)]
    entities = {"small": {"weight": 1}, "big": {"weight": 3, "policy": "fairness"}}
    given_case = {"cluster": {"gpus": {"v100": 2}}, "jobs": jobs, "entities": entities}
    shares = decide({**given_case, "policy": "max_min_fairness_water_filling"})["shares"]
    assert [share["v100"] for share in shares.values()] == pytest.approx([0.5, 0.375, 0.375, 0.375, 0.375])
    entities["big"]["policy"] = "fifo"
    shares = decide({**given_case, "policy": "max_min_fairness_water_filling"})["shares"]
    assert [share.get("v100", 0.0) for share in shares.values()] == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.0])


def test_table() -> None:
    pairs = [{"jobs": ["B", "A"], "throughput": {"v100": [2.0, 4.0]}}]
    lines = as_table(decide({**CASE, "policy": "gavel-fifo_packed", "cluster": {"gpus": {"v100": 1}}, "pairs": pairs}))
    assert lines.splitlines() == [
        "JOB  v100 %  REASON",
        "A    -       Runs 100 % of the time.",
        "B    -       Runs 100 % of the time.",
        "B+A  100     The two jobs run packed on the same GPUs.",
        "",
        "none_sum_throughput: 6 (total steps/s of all jobs; the policy itself has no objective)",
    ]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"policy": "finish_time_fairness_perf", "jobs": [{"id": "A"}]},
            [
                "jobs[0].throughput: required by finish_time_fairness_perf",
                "jobs[0].steps_left: required by finish_time_fairness_perf",
                "jobs[0].elapsed_s: this or submitted is required by finish_time_fairness_perf",
            ],
        ),
        ({"policy": "allox", "jobs": [TWO[0], {**TWO[1], "scale_factor": 2}]}, ["jobs[1].scale_factor: allox supports only jobs of one GPU"]),
        (
            {"policy": "max_sum_throughput_normalized_by_cost_perf", "cluster": {"gpus": {"v100": 1}, "prices": {"v100": 0}}},
            ["cluster.prices.v100: must be above 0: max_sum_throughput_normalized_by_cost_perf divides by it"],
        ),
        ({"queues": {"q": {}}}, ["queues: not supported by max_min_fairness_perf; leave them out"]),
        ({"options": {"shares": "any"}}, ["options.shares: must be leximin, interior or efficient, not 'any'"]),
        ({"options": {"alpha": 1}}, ["options.alpha: unknown option; max_min_fairness_perf has the options"]),
        ({"policy": "allox_alpha=half"}, ["unknown policy 'allox_alpha=half'"]),
        (
            {"pairs": [{"jobs": ["A", "B"], "throughput": {}}, {"jobs": ["B", "A"], "throughput": {}}]},
            ["pairs[1].jobs: is the same pair as in pairs[0]"],
        ),
        (
            {"policy": "gavel-fifo", "state": {"jobs": {"A": 0}, "next": 1, "policy": {"generator": [1, 2]}}},
            ["state: gavel-fifo failed to resume from this state"],
        ),
        (
            {"policy": "allox", "state": {"jobs": {"A": 0}, "next": 1, "policy": {"type_of": {"0": 7}}, "types": ["cpu"]}},
            ["state.types: must name all GPU types of the state"],
        ),
        ({"policy": "isolated", "state": {"policy": {"x": 1}}}, ["state: isolated is stateless; leave the state out"]),
    ],
)  # fmt: skip
def test_one_line_for_each_fault(changes: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(BadInput) as refused:
        decide({**CASE, "policy": "max_min_fairness_perf", **changes})
    messages = [str(fault) for fault in refused.value.faults]
    assert len(messages) == len(lines)
    for text, line in zip(messages, lines, strict=True):
        assert text.startswith(line)


@pytest.mark.parametrize("policy", ["gavel-fifo", "gavel-fifo_perf", "gavel-fifo_packed"])
def test_who_waits_in_line_is_told_whether_others_take_all_or_only_stand_before_it(policy: str) -> None:
    def codes(gpus: int, *scales: int) -> list[str]:
        jobs = [{"id": f"j{i}", "throughput": {"v100": 2.0}, "scale_factor": n} for i, n in enumerate(scales)]
        reasons = decide({"policy": policy, "cluster": {"gpus": {"v100": gpus}}, "jobs": jobs})["reasons"]
        return [reasons[job["id"]]["code"] for job in jobs]

    # They wait for capacity, not behind a job ahead of them.
    assert codes(1, 1, 1, 1) == ["runs", "capacity", "capacity"]
    # One GPU is free, and the job that does not fit keeps the last from it.
    assert codes(3, 2, 2, 1) == ["runs", "capacity", "in-line"]
