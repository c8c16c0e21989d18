"""Saturation: a growing queue is detected; filling, fluctuating and initial queues are not."""

import numpy as np
import pytest

from levada.sim.run import RunProgress, simulate
from levada.sim.settings import Settings
from levada.sim.sweep.saturation import FIRST, Saturated, SaturationCheck


def progress(arrived: int, ended: int) -> RunProgress:
    return RunProgress(over=0, of=None, now_s=0.0, arrived=arrived, ended=ended)


def stopped_after(unfinished: list[int], gpus: int) -> int | None:
    """Arrivals until a run with this queue length at each arrival is stopped; None: never."""
    check = SaturationCheck(gpus)
    for arrived, waiting in enumerate(unfinished, 1):
        try:
            check(progress(arrived, arrived - waiting))
        except Saturated:
            return arrived
    return None


def queue_lengths(seed: int, load: float, servers: int, arrivals: int) -> list[int]:
    """Unfinished jobs at each arrival: FIFO, with service times as skewed as Gavel's."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0, arrivals))
    durations = 10 ** rng.uniform(-1.5, 1.5, arrivals)
    durations *= load * servers / durations.mean()
    free, ends = np.zeros(servers), np.empty(arrivals)
    for job, (at, duration) in enumerate(zip(times, durations, strict=True)):
        server = int(free.argmin())
        ends[job] = free[server] = max(free[server], at) + duration
    return [int((ends[: job + 1] > at).sum()) for job, at in enumerate(times)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gpus", [4, 32])
def test_an_overload_is_detected(seed: int, gpus: int) -> None:
    arrivals = stopped_after(queue_lengths(seed, 2.0, gpus, 2000), gpus)
    assert arrivals is not None
    assert FIRST <= arrivals < 1500


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_a_sustainable_load_is_not_saturated(seed: int, load: float) -> None:
    assert stopped_after(queue_lengths(seed, load, 8, 4000), 8) is None


def test_a_cluster_that_fills_is_not_saturated() -> None:
    assert stopped_after([min(job, 300) for job in range(2000)], 64) is None


def test_jobs_that_arrive_at_once_are_not_saturated() -> None:
    check = SaturationCheck(1)
    for ended in range(1000):
        assert check(progress(1000, ended)) is False


def test_a_saturated_run_reports_its_progress() -> None:
    settings = Settings(
        policy="fifo", cluster={"v100": 2}, workload="gavel", rate=60.0, jobs=5000, fixed_duration_s=3600.0
    )
    with pytest.raises(Saturated) as caught:
        simulate(settings, SaturationCheck(2))
    last = caught.value.progress
    assert last.arrived < 400
    assert last.arrived - last.ended > 200
    assert str(caught.value).startswith(f"after {last.arrived} arrivals")
