"""Metrics: by hand on small cases, against Gavel's own figures, and laws that hold for all."""

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
from levada.sim.metrics import ALL, Outcomes, Run, Window, cost, fairness, report
from levada.sim.metrics_detail import detail
from levada.sim.metrics_fairness import isolated_s
from levada.sim.traces import Trace

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gavel_completion_times.json").read_text())["cases"]
NAN = math.nan

KEYS = [
    "policy", "jobs", "finished", "makespan_s", "avg_jct_s", "jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s",
    "utilization", "ftf", "cost", "slo_violations", "rounds", "decisions", "preemptions", "cpu_s", "wall_s",
    "peak_rss_mb",
]  # fmt: skip


def a_run(**fields: Any) -> Run:
    return Run(**{"policy": "fifo", "gpus": {"v100": 2}, "used_gpu_s": {"v100": 100.0}, "end_s": 100.0, **fields})


def four_jobs() -> Outcomes:
    """One in time, one late, one dropped, one that still runs at 100."""
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


def test_the_report_has_the_keys_of_the_interface_in_their_order() -> None:
    said = json.loads(msgspec.json.encode(report(four_jobs(), a_run())))
    assert list(said) == KEYS
    assert list(said["ftf"]) == ["mean", "worst", "unfair"]
    assert msgspec.to_builtins(report(four_jobs(), a_run())) == said


def test_a_report_by_hand() -> None:
    said = report(four_jobs(), a_run(rounds=3, decisions=2, preemptions=1))
    assert (said.jobs, said.finished, said.makespan_s) == (4, 2, 100)
    assert said.jct_s == {"0": 40, "1": 50, "2": None}
    assert (said.avg_jct_s, said.p50_jct_s) == (45, 45)
    assert (said.p90_jct_s, said.p99_jct_s) == (pytest.approx(49), pytest.approx(49.9))
    assert said.utilization == 0.5
    # The first took twice its time, the second its own.
    assert (said.ftf.mean, said.ftf.worst, said.ftf.unfair) == (1.5, 2, 0.5)
    # The second was late, the third was dropped, the fourth was not done at its deadline.
    assert said.slo_violations == 3
    assert (said.rounds, said.decisions, said.preemptions) == (3, 2, 1)


def test_a_deadline_that_is_still_to_come_is_not_missed() -> None:
    assert report(four_jobs(), a_run(end_s=99.0)).slo_violations == 2


def test_nothing_finished_is_null_and_not_zero() -> None:
    trace = Trace.of(arrival_s=[0.0, 1.0])
    said = report(Outcomes.of(trace, finished_s=[NAN, NAN]), a_run(end_s=0.0, used_gpu_s={}))
    assert (said.avg_jct_s, said.p99_jct_s, said.jct_s, said.utilization) == (None, None, {}, 0)
    assert said.ftf == fairness(Outcomes.of(trace, finished_s=[NAN, NAN]))
    assert said.ftf.mean is None


def test_a_window_measures_its_jobs_only() -> None:
    said = report(four_jobs(), a_run(), Window(1, 3))
    assert (said.jobs, said.finished) == (4, 2)
    assert said.avg_jct_s == 50
    assert said.ftf.worst == 1
    assert said.slo_violations == 2


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
    run = a_run(used_gpu_s={"v100": 7200.0, "k80": 3600.0}, prices={"v100": 2.5})
    assert cost(run) == 2 * 2.5 + 1 * 1.0
    assert cost(a_run(cost=3.25)) == 3.25


def test_details_by_hand() -> None:
    said = detail(four_jobs(), a_run(gpus={"v100": 2, "k80": 1}, lease_extensions=3, lease_opportunities=4))
    assert list(said.by_scale) == ["1", "2"]
    assert (said.by_scale["1"].jobs, said.by_scale["1"].finished, said.by_scale["1"].jct_s.mean) == (3, 1, 40)
    assert said.by_weight["5"].jct_s.p90 == 50
    assert {name: each.jobs for name, each in said.by_workload.items()} == {"a": 2, "b": 2}
    assert said.queueing_s.mean == (0 + 10 + 5 + 10) / 4
    assert said.utilization == {"v100": 0.5, "k80": 0.0}
    assert (said.deadlines, said.dropped, said.lease_extensions) == (4, 1, 0.75)


# ------------------------------------------------------------------------------------------------------------- golden


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["label"])
def test_gavels_figures_follow_from_its_completion_times(case: dict[str, Any]) -> None:
    count = case["jobs_added"]
    printed = case["jct_s_by_job_id"]
    jct = np.array([printed.get(str(job), NAN) for job in range(count)], np.float64)
    dropped = [printed.get(str(job), 0.0) is None for job in range(count)]
    first, last = case["measured_job_id_range"]
    jobs = Outcomes.of(Trace.of(arrival_s=np.zeros(count)), finished_s=jct, dropped=dropped)
    run = a_run(gpus=case["cluster_spec"], used_gpu_s=case["busy_gpu_seconds_by_type"], end_s=case["makespan_s"])
    said = report(jobs, run, Window(first, last + 1))
    assert said.avg_jct_s == pytest.approx(case["avg_jct_s"], abs=1e-5)
    assert said.finished == case["completed_jobs"]
    assert sum(jct is None for jct in said.jct_s.values()) == case["failed_jobs"]
    assert said.jct_s == printed
    assert said.utilization == pytest.approx(case["utilization"], rel=1e-9)


# ------------------------------------------------------------------------------------------------- finish-time fairness


def alone(arrival_s: list[float], finished_s: list[float], **fields: Any) -> list[float]:
    count = len(arrival_s)
    given = {
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
        scale=np.array(given["scale"]),
        steps=np.array(given["steps"], np.float64),
        rates=np.array(given["rates"], np.float64),
        gpus=np.array(given["gpus"]),
        end_s=given["end_s"],
    ).tolist()


def test_a_job_by_itself_has_no_more_than_all_of_the_time() -> None:
    assert alone([0], [100]) == [100]


def test_four_jobs_on_two_gpus_have_half_of_the_time_each() -> None:
    assert alone([0] * 4, [200] * 4) == [200] * 4


def test_a_share_grows_when_others_leave() -> None:
    # Until 100 four jobs share two GPUs, then only one is left: 50 steps by then, 50 more at full speed.
    assert alone([0] * 4, [100, 100, 100, 300]) == [150] * 4


def test_a_large_job_is_alone_on_its_share() -> None:
    # Two jobs on four GPUs: one of four GPUs has all of them half of the time.
    assert alone([0, 0], [200, 200], scale=[4, 1], gpus=[4], steps=[100, 100]) == [200, 100]


def test_types_are_shared_in_proportion() -> None:
    # Both types alike, so that the rate is the mean of both where one GPU is all that a job can use.
    assert alone([0], [100], rates=[[3.0, 1.0]], gpus=[1, 1]) == [50]


def test_jobs_that_nobody_knows_the_speed_of_are_left_out() -> None:
    times = alone([0, 0, 0], [10, 10, NAN], steps=[NAN, 10, 10], rates=[[1.0], [0.0], [1.0]], end_s=100.0)
    assert np.isnan(times).tolist() == [True, True, False]
    assert alone([], [], rates=np.zeros((0, 1))) == []


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(1, 1000), st.sampled_from([1, 2, 4])), min_size=1, max_size=12
    ),
    gpus=st.integers(1, 8),
)
def test_the_time_with_a_share_is_what_a_slow_walk_finds(jobs: list[tuple[int, int, int]], gpus: int) -> None:
    """The closed form against steps of one second, for jobs that come and go at whole seconds."""
    jobs = sorted(jobs)
    come = [float(at) for at, _, _ in jobs]
    gone = [float(at + lasts) for at, lasts, _ in jobs]
    found = alone(come, gone, scale=[scale for *_, scale in jobs], gpus=[gpus], rates=[[1.0]] * len(jobs))
    for (at, _, scale), seconds in zip(jobs, found, strict=True):
        left, clock = 100.0, at
        while True:
            present = max(1, sum(a <= clock < b for a, b in zip(come, gone, strict=True)))
            rate = gpus / max(scale * present, gpus)
            if left <= rate:
                break
            left, clock = left - rate, clock + 1
        assert seconds == pytest.approx(clock + left / rate - at, rel=1e-9)


@given(jcts=st.lists(st.floats(0, 1e9), min_size=1, max_size=50), shift=st.floats(0, 1e6))
def test_laws_of_the_report(jcts: list[float], shift: float) -> None:
    trace = Trace.of(arrival_s=np.full(len(jcts), shift))
    said = report(Outcomes.of(trace, finished_s=shift + np.array(jcts)), a_run(end_s=2e9))
    middle = [said.p50_jct_s, said.p90_jct_s, said.p99_jct_s]
    assert all(each is not None for each in middle)
    assert middle == sorted(middle, key=lambda each: each or 0.0)
    assert said.finished == said.jobs == len(said.jct_s) == len(jcts)
    assert said.avg_jct_s == pytest.approx(np.mean(jcts), rel=1e-6, abs=1e-3)
    assert said.slo_violations == 0
