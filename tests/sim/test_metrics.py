"""Metrics: small cases by hand, Gavel's published figures, and general laws."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.sim.metrics import ALL, Outcomes, RunFacts, Window, cost, fairness, isolated_s, report
from levada.sim.metrics_detail import detail
from levada.sim.traces import Trace

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gavel_completion_times.json").read_text())["cases"]
NAN = math.nan

KEYS = [
    "policy", "jobs", "finished", "makespan_s", "avg_jct_s", "jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s",
    "utilization", "ftf", "cost", "slo_violations", "rounds", "decisions", "preemptions", "cpu_s", "wall_s",
    "peak_rss_mb",
]  # fmt: skip


def run_facts(**fields: Any) -> RunFacts:
    return RunFacts(**{"policy": "fifo", "gpus": {"v100": 2}, "used_gpu_s": {"v100": 100.0}, "end_s": 100.0, **fields})


def four_jobs() -> Outcomes:
    """One on time, one late, one dropped, one still running at 100 s."""
    trace = Trace.of(
        arrival_s=[0, 10, 20, 30],
        workload=["a", "b", "a", "b"],
        scale=[1, 2, 1, 1],
        weight=[1, 5, 1, 1],
        deadline_s=[50, 50, 90, 99],
    )
    return Outcomes.of(
        trace,
        started_s=[0, 20, 25, 40],
        finished_s=[40, 60, NAN, NAN],
        dropped=[False, False, True, False],
        isolated_s=[20, 50, 10, 10],
    )


def test_keys_of_the_report() -> None:
    result = json.loads(msgspec.json.encode(report(four_jobs(), run_facts())))
    assert list(result) == KEYS
    assert list(result["ftf"]) == ["mean", "worst", "unfair"]
    assert msgspec.to_builtins(report(four_jobs(), run_facts())) == result


def test_a_report_by_hand() -> None:
    result = report(four_jobs(), run_facts(rounds=3, decisions=2, preemptions=1))
    assert (result.jobs, result.finished, result.makespan_s) == (4, 2, 100)
    assert result.jct_s == {"0": 40, "1": 50, "2": None}
    assert (result.avg_jct_s, result.p50_jct_s) == (45, 45)
    assert (result.p90_jct_s, result.p99_jct_s) == (pytest.approx(49), pytest.approx(49.9))
    assert result.utilization == 0.5
    # The first took twice its isolated time, the second exactly that.
    assert (result.ftf.mean, result.ftf.worst, result.ftf.unfair) == (1.5, 2, 0.5)
    # The second was late, the third dropped, the fourth unfinished at its deadline.
    assert result.slo_violations == 3
    assert (result.rounds, result.decisions, result.preemptions) == (3, 2, 1)


def test_a_future_deadline_is_not_missed() -> None:
    assert report(four_jobs(), run_facts(end_s=99.0)).slo_violations == 2


def test_averages_without_finished_jobs_are_null() -> None:
    trace = Trace.of(arrival_s=[0.0, 1.0])
    result = report(Outcomes.of(trace, finished_s=[NAN, NAN]), run_facts(end_s=0.0, used_gpu_s={}))
    assert (result.avg_jct_s, result.p99_jct_s, result.jct_s, result.utilization) == (None, None, {}, 0)
    assert result.ftf == fairness(Outcomes.of(trace, finished_s=[NAN, NAN]))
    assert result.ftf.mean is None


def test_a_window_measures_only_its_jobs() -> None:
    result = report(four_jobs(), run_facts(), Window(1, 3))
    assert (result.jobs, result.finished) == (4, 2)
    assert result.avg_jct_s == 50
    assert result.ftf.worst == 1
    assert result.slo_violations == 2


@pytest.mark.parametrize(
    ("text", "window"), [("2:5", Window(2, 5)), (":5", Window(0, 5)), ("2:", Window(2)), (":", ALL)]
)
def test_windows(text: str, window: Window) -> None:
    assert Window.parse(text) == window


@pytest.mark.parametrize("text", ["5:2", "3:3", "5", "a:b", "-1:4", "1:2:3", ""])
def test_bad_windows(text: str) -> None:
    with pytest.raises(BadInput, match="window"):
        Window.parse(text)


def test_cost_is_by_type_and_hour() -> None:
    run = run_facts(used_gpu_s={"v100": 7200.0, "k80": 3600.0}, prices={"v100": 2.5})
    assert cost(run) == 2 * 2.5 + 1 * 1.0
    assert cost(run_facts(cost=3.25)) == 3.25


def test_details_by_hand() -> None:
    result = detail(four_jobs(), run_facts(gpus={"v100": 2, "k80": 1}, lease_extensions=3, lease_opportunities=4))
    assert list(result.by_scale) == ["1", "2"]
    assert (result.by_scale["1"].jobs, result.by_scale["1"].finished, result.by_scale["1"].jct_s.mean) == (3, 1, 40)
    assert result.by_weight["5"].jct_s.p90 == 50
    assert {name: group.jobs for name, group in result.by_workload.items()} == {"a": 2, "b": 2}
    assert result.queueing_s.mean == (0 + 10 + 5 + 10) / 4
    assert result.utilization == {"v100": 0.5, "k80": 0.0}
    assert (result.deadlines, result.dropped, result.lease_extensions) == (4, 1, 0.75)


# ------------------------------------------------------------------------------------------------------------- golden


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["label"])
def test_gavels_figures_follow_from_its_completion_times(case: dict[str, Any]) -> None:
    count = case["jobs_added"]
    printed = case["jct_s_by_job_id"]
    jct = np.array([printed.get(str(job), NAN) for job in range(count)], np.float64)
    dropped = [printed.get(str(job), 0.0) is None for job in range(count)]
    first, last = case["measured_job_id_range"]
    jobs = Outcomes.of(Trace.of(arrival_s=np.zeros(count)), finished_s=jct, dropped=dropped)
    run = run_facts(gpus=case["cluster_spec"], used_gpu_s=case["busy_gpu_seconds_by_type"], end_s=case["makespan_s"])
    result = report(jobs, run, Window(first, last + 1))
    assert result.avg_jct_s == pytest.approx(case["avg_jct_s"], abs=1e-5)
    assert result.finished == case["completed_jobs"]
    assert sum(jct is None for jct in result.jct_s.values()) == case["failed_jobs"]
    assert result.jct_s == printed
    assert result.utilization == pytest.approx(case["utilization"], rel=1e-9)


# ------------------------------------------------------------------------------------------------- finish-time fairness


def isolated(arrival_s: list[float], finished_s: list[float], **fields: Any) -> list[float]:
    count = len(arrival_s)
    inputs = {
        "scale": [1] * count,
        "steps": [100.0] * count,
        "rates": [[1.0]] * count,
        "gpus": [2],
        "end_s": 1e6,
        **fields,
    }
    return isolated_s(
        arrival_s=np.array(arrival_s, np.float64),
        finished_s=np.array(finished_s, np.float64),
        scale=np.array(inputs["scale"]),
        steps=np.array(inputs["steps"], np.float64),
        rates=np.array(inputs["rates"], np.float64),
        gpus=np.array(inputs["gpus"]),
        end_s=inputs["end_s"],
    ).tolist()


def test_a_single_job_gets_at_most_all_of_the_time() -> None:
    assert isolated([0], [100]) == [100]


def test_four_jobs_on_two_gpus_get_half_of_the_time_each() -> None:
    assert isolated([0] * 4, [200] * 4) == [200] * 4


def test_a_share_grows_when_others_leave() -> None:
    # Until 100 s four jobs share two GPUs: 50 steps each; then 50 steps at full speed.
    assert isolated([0] * 4, [100, 100, 100, 300]) == [150] * 4


def test_a_large_job_uses_its_share_alone() -> None:
    # Two jobs on four GPUs: the job of scale 4 has all of them half of the time.
    assert isolated([0, 0], [200, 200], scale=[4, 1], gpus=[4], steps=[100, 100]) == [200, 100]


def test_types_are_shared_in_proportion() -> None:
    # As many GPUs of both types: the rate of a single-GPU job is the mean.
    assert isolated([0], [100], rates=[[3.0, 1.0]], gpus=[1, 1]) == [50]


def test_jobs_of_unknown_speed_are_excluded() -> None:
    times = isolated([0, 0, 0], [10, 10, NAN], steps=[NAN, 10, 10], rates=[[1.0], [0.0], [1.0]], end_s=100.0)
    assert np.isnan(times).tolist() == [True, True, False]
    assert isolated([], [], rates=np.zeros((0, 1))) == []


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(1, 1000), st.sampled_from([1, 2, 4])), min_size=1, max_size=12
    ),
    gpus=st.integers(1, 8),
)
def test_the_isolated_time_agrees_with_a_stepwise_simulation(jobs: list[tuple[int, int, int]], gpus: int) -> None:
    """The closed form against steps of 1 s, for arrivals and ends at whole seconds."""
    jobs = sorted(jobs)
    arrivals = [float(at) for at, _, _ in jobs]
    ends = [float(at + seconds) for at, seconds, _ in jobs]
    times = isolated(arrivals, ends, scale=[scale for *_, scale in jobs], gpus=[gpus], rates=[[1.0]] * len(jobs))
    for (at, _, scale), seconds in zip(jobs, times, strict=True):
        left, clock = 100.0, at
        while True:
            present = max(1, sum(a <= clock < b for a, b in zip(arrivals, ends, strict=True)))
            rate = gpus / max(scale * present, gpus)
            if left <= rate:
                break
            left, clock = left - rate, clock + 1
        assert seconds == pytest.approx(clock + left / rate - at, rel=1e-9)


@given(jcts=st.lists(st.floats(0, 1e9), min_size=1, max_size=50), shift=st.floats(0, 1e6))
def test_laws_of_the_report(jcts: list[float], shift: float) -> None:
    trace = Trace.of(arrival_s=np.full(len(jcts), shift))
    result = report(Outcomes.of(trace, finished_s=shift + np.array(jcts)), run_facts(end_s=2e9))
    quantiles = [result.p50_jct_s, result.p90_jct_s, result.p99_jct_s]
    assert all(value is not None for value in quantiles)
    assert quantiles == sorted(quantiles, key=lambda value: value or 0.0)
    assert result.finished == result.jobs == len(result.jct_s) == len(jcts)
    assert result.avg_jct_s == pytest.approx(np.mean(jcts), rel=1e-6, abs=1e-3)
    assert result.slo_violations == 0
