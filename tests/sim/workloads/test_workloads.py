"""Generators by name, similarity to Philly, and workload files."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.sim.catalogue import templates
from levada.sim.traces import Trace
from levada.sim.traces.trace import check
from levada.sim.workloads import NAMES, jobs
from levada.sim.workloads.from_spec import jobs_from_spec
from levada.sim.workloads.philly import HOURS, QUANTILES, SCALES, philly
from levada.sim.workloads.spec import parse
from tests.peer_data import peer_data

OWN = """
arrivals: {process: poisson, rate: 6}
duration:
  - {law: log-uniform, min: 30m, max: 16h, share: 8}
  - {law: log-normal, median: 2d, sigma: 0.5, share: 2}
scale: {1: 0.7, 4: 0.3}
workloads: {"A3C": 1, "LM (batch size 5)": 1}
weight: {1: 4, 5: 1}
slo: {1.2: 1, 10: 1}
"""


def one(workload: str, scale: int) -> float:
    return 1.0


def trace_of(text: str, count: int = 1000, seed: int = 0) -> Trace:
    return Trace.of_jobs(islice(jobs_from_spec(parse(text, "own.yaml"), seed, one), count))


@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**40), hourly=st.sampled_from([None, 0.0, 0.5, 100.0]))
def test_generated_jobs_are_valid_and_deterministic(name: str, seed: int, hourly: float | None) -> None:
    first, second = (
        Trace.of_jobs(islice(jobs(name, seed=seed, rate=one, jobs_per_hour=hourly, multi_gpu=True), 40))
        for _ in range(2)
    )
    assert first == second
    assert check(first, 20) == []
    assert first.arrival_s[0] == 0
    if not hourly:
        assert not first.arrival_s.any()
    distributed = {template.name for template in templates() if template.distributed}
    assert all(
        workload in distributed for workload, scale in zip(first.workload, first.scale, strict=True) if scale > 1
    )


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_keep_their_rate(name: str) -> None:
    trace = Trace.of_jobs(islice(jobs(name, seed=3, rate=one, jobs_per_hour=10), 4001))
    assert trace.arrival_s[-1] / 4000 == pytest.approx(360, rel=0.05)


def test_generated_jobs_resemble_phillys() -> None:
    pairs = np.array(json.loads((peer_data() / "gavel/philly_job_distribution.json").read_bytes()))
    ours = Trace.of_jobs(islice(philly(0, one), 20_000))
    for scale in SCALES:
        drawn, real = ours.duration_s[ours.scale == scale], pairs[pairs[:, 1] == scale, 0]
        assert len(drawn) / len(ours) == pytest.approx(len(real) / len(pairs), abs=0.01)
        assert np.array(HOURS[scale]) * 3600 == pytest.approx(np.quantile(real, QUANTILES), rel=0.05)
        for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
            assert np.mean(drawn <= np.quantile(real, quantile)) == pytest.approx(quantile, abs=0.05)


def test_a_workload_file_determines_the_mixes() -> None:
    trace = trace_of(OWN, 4000)
    assert check(trace, 20) == []
    assert np.mean(trace.scale == 4) == pytest.approx(0.3, abs=0.03)
    assert np.mean(trace.weight == 5) == pytest.approx(0.2, abs=0.03)
    assert np.mean(trace.slo == 1.2) == pytest.approx(0.5, abs=0.03)
    # A3C is not distributed.
    assert {name for name, scale in zip(trace.workload, trace.scale, strict=True) if scale > 1} == {"LM (batch size 5)"}
    assert np.mean(trace.duration_s <= 16 * 3600) == pytest.approx(0.8, abs=0.04)
    assert trace.arrival_s[-1] / 3999 == pytest.approx(600, rel=0.06)
    assert trace.steps.tolist() == trace.duration_s.tolist()


@pytest.mark.parametrize(
    ("law", "mean_s"),
    [
        ("{law: fixed, value: 5m}", 300.0),
        ("{law: uniform, min: 100s, max: 300s}", 200.0),
        ("{law: exponential, mean: 50s}", 50.0),
        ("{law: log-uniform, min: 100s, max: 200s}", 100.0 / np.log(2)),
        ("{law: log-normal, median: 100s, sigma: 0.2}", 100.0 * np.exp(0.02)),
    ],
)
def test_laws_of_durations(law: str, mean_s: float) -> None:
    trace = trace_of(f"{{arrivals: {{process: at-once}}, duration: {law}}}", 3000)
    assert trace.duration_s.mean() == pytest.approx(mean_s, rel=0.06)
    assert not trace.arrival_s.any()


def test_processes_of_arrivals() -> None:
    def arrivals(process: str, count: int) -> np.ndarray:
        return trace_of(f"{{arrivals: {process}, duration: {{law: fixed, value: 1h}}}}", count).arrival_s

    assert arrivals("{process: regular, rate: 4}", 5).tolist() == [0, 900, 1800, 2700, 3600]
    bursts = arrivals("{process: bursts, rate: 60, size: 5}", 6000)
    assert np.mean(np.diff(bursts) == 0) == pytest.approx(0.8, abs=0.03)
    assert bursts[-1] / 6000 == pytest.approx(60, rel=0.1)
    days = arrivals("{process: poisson, rate: 60, daily: 1}", 20_000)
    hour = days % 86400 // 3600
    assert days[-1] / 20_000 == pytest.approx(60, rel=0.05)
    assert np.count_nonzero(hour == 0) < np.count_nonzero(hour == 12) / 10


def test_arrivals_and_jobs_have_separate_streams() -> None:
    slow, fast = trace_of(OWN, 50), trace_of(OWN.replace("rate: 6", "rate: 60"), 50)
    assert slow.duration_s.tolist() == fast.duration_s.tolist()
    assert slow.arrival_s.tolist() != fast.arrival_s.tolist()


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[]", ["own.yaml: must contain one mapping with arrivals and duration"]),
        ("duration: {law: fixed, value: 1h}", ["arrivals: is required"]),
        (
            "{arrivals: {process: poisson, rate: 0}, duration: {law: fixed, value: soon}}",
            [
                "arrivals.rate: must be above 0",
                "duration[0].value: must be a duration, e.g. 90s, 2h, 1h30m or 7d",
            ],
        ),
        (
            "{arrivals: {process: at-once}, duration: {law: uniform, min: 2h, max: 1h}}",
            ["duration[0]: max must be at least min"],
        ),
        (
            "{arrivals: {process: at-once}, duration: [], scale: {0: 1}}",
            ["duration: must have at least 1 item", "scale[0]: must be at least 1"],
        ),
        (
            "{arrivals: {process: sometimes}, duration: {value: 1h}}",
            [
                "arrivals: process must be one of poisson, regular, bursts, at-once",
                "duration[0]: law must be one of fixed, uniform, log-uniform, log-normal, exponential",
            ],
        ),
        (
            "{arrivals: {process: at-once, rate: 3}, duration: {law: fixed, value: 1h}, scales: {1: 1}}",
            ["arrivals.rate: unknown field", "scales: unknown field; did you mean scale?"],
        ),
        (
            "{arrivals: {process: poisson, rate: 3, dayly: 1}, duration: [{law: fixed, value: 1h, vaule: 2h}]}",
            [
                "arrivals.dayly: unknown field; did you mean daily?",
                "duration[0].vaule: unknown field; did you mean value?",
            ],
        ),
    ],
)
def test_every_fault_of_a_workload_file_is_reported(text: str, faults: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        parse(text, "own.yaml")
    assert [str(fault) for fault in error.value.faults] == faults


def test_sizes_without_a_distributed_workload_are_rejected() -> None:
    text = "{arrivals: {process: at-once}, duration: {law: fixed, value: 1h}, scale: {2: 1}, workloads: {A3C: 1}}"
    with pytest.raises(BadInput, match="workloads: none can run on several GPUs"):
        trace_of(text)


def test_workloads_by_name(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    assert Trace.of_jobs(islice(jobs(str(file), seed=0, rate=one), 30)) == trace_of(OWN, 30)
    with pytest.raises(BadInput, match="did you mean gavel"):
        jobs("gavl", seed=0, rate=one)
    with pytest.raises(BadInput, match="--slos: not supported by workload philly"):
        jobs("philly", seed=0, rate=one, slos=True)
    with pytest.raises(BadInput, match="--rate: not supported"):
        jobs(str(file), seed=0, rate=one, jobs_per_hour=3)
    with pytest.raises(BadInput, match=r"missing\.yaml: No such file"):
        jobs(str(tmp_path / "missing.yaml"), seed=0, rate=one)
