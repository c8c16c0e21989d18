"""Gavel's generators against what Gavel itself generated."""

import json
import math
from itertools import islice

import numpy as np
import pytest

from levada.sim.traces import Rate, Trace, read
from levada.sim.workloads import jobs
from levada.sim.workloads.gavel import GavelJobs, durations_s, gavel_trace
from tests.peer_data import peer_data


@pytest.fixture(scope="module")
def v100() -> Rate:
    table = json.loads((peer_data() / "gavel/simulation_throughputs.json").read_bytes())["v100"]
    return lambda workload, scale: table[f"('{workload}', {scale})"]["null"]


def one(workload: str, scale: int) -> float:
    return 1.0


def test_static_jobs_of_several_gpus_are_gavels_to_the_last_bit(v100: Rate) -> None:
    theirs = read("generated_jobs/gen_static_multi_36.jobs.tsv")
    assert len(theirs) == 200
    ours = jobs("gavel", seed=0, rate=v100, jobs_per_hour=0, multi_gpu=True)
    assert Trace.of_jobs(islice(ours, 200)) == theirs


def test_slos_are_gavels(v100: Rate) -> None:
    theirs = read("generated_jobs/gen_static_cost_slo.jobs.tsv")
    assert not np.isnan(theirs.slo).any()
    assert Trace.of_jobs(islice(jobs("gavel", seed=0, rate=v100, slos=True), len(theirs))) == theirs


def test_poisson_arrivals_are_gavels(v100: Rate) -> None:
    theirs = read("traces/philly_multi_600_lam2400.trace")
    ours = Trace.of_jobs(islice(jobs("gavel", seed=0, rate=v100, jobs_per_hour=1.5, multi_gpu=True), 600))
    assert ours.workload == theirs.workload
    assert ours.scale.tolist() == theirs.scale.tolist()
    # Gavel writes whole steps, and arrivals with six digits.
    assert np.trunc(ours.steps).tolist() == theirs.steps.tolist()
    assert [f"{each:.6f}" for each in ours.arrival_s] == [f"{each:.6f}" for each in theirs.arrival_s]


@pytest.mark.parametrize(
    ("name", "seed", "lam_s", "hours", "multi_gpu", "priorities"),
    [
        ("cont_multi_prio_120", 16, 660.0, (1, 4), True, True),
        ("cont_single_120", 13, 450.0, (1, 4), False, False),
        ("cont_single_15", 19, 900.0, (0.5, 2), False, False),
        ("static_multi_15", 17, 0.0, (0.5, 2), True, False),
        ("static_single_15", 18, 0.0, (0.5, 2), False, False),
    ],
)
def test_generated_traces_are_gavels(
    v100: Rate, name: str, seed: int, lam_s: float, hours: tuple[float, float], multi_gpu: bool, priorities: bool
) -> None:
    theirs = read(f"traces/{name}.trace")
    drawn = gavel_trace(
        seed, v100, lam_s=lam_s, lengths_s=durations_s(*hours), multi_gpu=multi_gpu, priorities=priorities
    )
    ours = Trace.of_jobs(islice(drawn, len(theirs)))
    for column in ("workload", "scale", "steps", "weight", "arrival_s"):
        assert list(getattr(ours, column)) == list(getattr(theirs, column)), column


def test_one_gpu_each_unless_several_are_asked_for() -> None:
    single = list(islice(GavelJobs(3, one), 200))
    several = list(islice(GavelJobs(3, one, multi_gpu=True), 200))
    assert {job.scale for job in single} == {1}
    assert {job.scale for job in several} == {1, 2, 4, 8}
    # The scale is drawn in any case, so that the first durations agree until a template has to be drawn again.
    assert single[0].duration_s == several[0].duration_s


def test_a_fixed_duration_takes_its_draws_away() -> None:
    drawn = list(islice(GavelJobs(3, one, fixed_duration_s=60.0), 50))
    assert {job.duration_s for job in drawn} == {60.0}
    assert {job.steps for job in drawn} == {60.0}


def test_weights_and_slos_have_their_shares() -> None:
    drawn = list(islice(GavelJobs(1, one, priorities=True, slos=True), 4000))
    assert np.mean([job.weight == 5 for job in drawn]) == pytest.approx(0.2, abs=0.02)
    assert np.mean([job.slo == 1.2 for job in drawn]) == pytest.approx(0.33, abs=0.03)
    assert {job.slo for job in drawn} == {1.2, 2.0, 10.0}
    assert all(math.isnan(job.slo) for job in islice(GavelJobs(1, one), 5))


def test_slos_draw_from_a_stream_of_their_own() -> None:
    plain = [job[:6] for job in islice(GavelJobs(5, one), 100)]
    assert [job[:6] for job in islice(GavelJobs(5, one, slos=True), 100)] == plain
