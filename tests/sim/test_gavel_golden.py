"""`--mechanism gavel` against Gavel: every job of policies without an LP, averages of the others.

An LP has many optimal shares. Levada's agree with those of Gavel's interior-point solver to many digits; rounding
decides ties between equal jobs, so policies with an LP are compared by averages. Some rows run only with
LEVADA_ALL_GOLDEN=1.
"""

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from levada.sim.run import Result, simulate
from levada.sim.settings import Settings
from tests.peer_data import peer_data
from tests.sim.gavel_rows import EXACT, rows, schedules, settings_of

#: Only with LEVADA_ALL_GOLDEN=1: rows that take half a minute each, and rows so near to their limit that different
#: rounding of another processor might exceed it.
SLOW = ("philly_", "phys_maxmin96__max_sum_throughput")
EVERY = os.environ.get("LEVADA_ALL_GOLDEN") == "1"


def chosen(*, exact: bool) -> list[Any]:
    """The rows of policies without (*exact*) or with an LP."""
    params = []
    for label, case in rows().items():
        if (case["policy"] in EXACT) != exact:
            continue
        marks = []
        if not EVERY and label.startswith(SLOW):
            marks.append(pytest.mark.skip(reason="only with LEVADA_ALL_GOLDEN=1"))
        params.append(pytest.param(case, id=label, marks=marks))
    return params


@cache
def run(label: str) -> tuple[Result, list[dict[str, Any]]]:
    """Simulate a row; returns the result and its rounds."""
    peer_data("gavel")
    with TemporaryDirectory() as folder:
        file = Path(folder, "rounds.jsonl")
        result = simulate(settings_of(rows()[label], rounds=str(file)))
        return result, [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


@pytest.mark.parametrize("case", chosen(exact=True))
def test_every_job_ends_at_the_same_time_as_in_gavel(case: dict[str, Any]) -> None:
    result, _ = run(case["label"])
    report = result.report
    assert report.jct_s.keys() == case["jct_s_by_job_id"].keys()
    assert {job: jct is None for job, jct in report.jct_s.items()} == {
        job: jct is None for job, jct in case["jct_s_by_job_id"].items()
    }
    known = {job: jct for job, jct in case["jct_s_by_job_id"].items() if jct is not None}
    assert {job: report.jct_s[job] for job in known} == pytest.approx(known, abs=1e-6, rel=1e-9)
    assert report.avg_jct_s == pytest.approx(case["avg_jct_s"], rel=1e-9)
    assert report.rounds == case["rounds"]
    assert report.utilization == pytest.approx(case["utilization"], rel=1e-9)
    extended, possible = case["lease_extensions"]
    assert result.detail.lease_extensions == pytest.approx(extended / possible, rel=1e-12)
    assert report.makespan_s == pytest.approx(case["makespan_s"], rel=1e-9)


def limits(policy: str) -> tuple[float, float | None]:
    """Relative tolerances of average JCT and makespan."""
    if policy == "min_total_duration_packed":
        return 0.05, 0.05
    if policy.startswith("min_total_duration"):
        return 0.01, 0.01
    return (0.05, None) if policy.startswith("finish_time_fairness") else (0.03, None)


@pytest.mark.parametrize("case", chosen(exact=False))
def test_averages_of_policies_with_an_lp_are_close_to_gavels(case: dict[str, Any]) -> None:
    report = run(case["label"])[0].report
    average, makespan = limits(case["policy"])
    assert report.avg_jct_s == pytest.approx(case["avg_jct_s"], rel=average)
    if makespan is not None:
        assert report.makespan_s == pytest.approx(case["makespan_s"], rel=makespan)
    # Whether a job with few steps left on many GPUs is dropped (null) depends on a single round.
    first, last = case["measured_job_id_range"]
    assert {str(job) for job in range(first, last + 1)} <= report.jct_s.keys()


@pytest.mark.parametrize("label", [label for label in schedules() if rows()[label]["policy"] in EXACT])
def test_every_round_equals_gavels(label: str) -> None:
    _, ours = run(label)
    expected = schedules()[label]["rounds"]
    assert len(ours) == len(expected)
    for own, gavels in zip(ours, expected, strict=True):
        assert own.keys() == gavels.keys()
        assert own["round"] == gavels["round"]
        assert own["time"] == pytest.approx(gavels["time"], rel=1e-9)
        # Gavel lists assignments in the order of placement.
        assert sorted(own["assignments"]) == sorted(
            [job, kind, sorted(ids)] for job, kind, ids in gavels["assignments"]
        )


#: Gavel's average JCT by seed of 40 single-GPU jobs with deadlines that arrive at once, with ECOS, 4 GPUs of each type
#: and constant prices.
_PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}
_WITH_DEADLINES = {
    "packed_SLOs": {0: 85297.80784264827, 1: 83796.81028886358, 2: 100342.61480437228},
    "perf_SLOs": {0: 95901.60267908844},
}


@pytest.mark.parametrize(
    ("policy", "seed"), [(policy, seed) for policy, by_seed in _WITH_DEADLINES.items() for seed in by_seed]
)
def test_averages_with_prices_and_deadlines_equal_gavels(policy: str, seed: int) -> None:
    peer_data("gavel")
    report = simulate(
        Settings(
            policy=f"max_sum_throughput_normalized_by_cost_{policy}",
            cluster={"v100": 4, "p100": 4, "k80": 4},
            gpus_per_node={"": 1},
            workload="gavel",
            jobs=40,
            rate=0.0,
            slos=True,
            seed=seed,
            prices=_PRICES,
            throughputs="simulation_throughputs.json",
            mechanism="gavel",
        )
    ).report
    assert report.avg_jct_s == pytest.approx(_WITH_DEADLINES[policy][seed], rel=0.01)
