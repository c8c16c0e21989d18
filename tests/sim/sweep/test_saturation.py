"""A queue that grows without bound is seen; one that fills, wanders or comes at once is left alone."""

import numpy as np
import pytest

from levada.sim.run import Progress, simulate
from levada.sim.settings import Settings
from levada.sim.sweep.saturation import FIRST, Judge, Saturated


def progress(arrived: int, ended: int) -> Progress:
    return Progress(over=0, of=None, now_s=0.0, arrived=arrived, ended=ended)


def judged(there: list[int], gpus: int) -> int | None:
    """After how many arrivals a run is stopped whose queue is so long when each has come; None: never."""
    judge = Judge(gpus)
    for arrived, waiting in enumerate(there, 1):
        try:
            judge(progress(arrived, arrived - waiting))
        except Saturated:
            return arrived
    return None


def served(seed: int, load: float, servers: int, arrivals: int) -> list[int]:
    """Jobs there at each arrival, first come first served, with service times as uneven as Gavel's."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0, arrivals))
    lasts = 10 ** rng.uniform(-1.5, 1.5, arrivals)
    lasts *= load * servers / lasts.mean()
    free, ends = np.zeros(servers), np.empty(arrivals)
    for job, (at, lasting) in enumerate(zip(times, lasts, strict=True)):
        server = int(free.argmin())
        ends[job] = free[server] = max(free[server], at) + lasting
    return [int((ends[: job + 1] > at).sum()) for job, at in enumerate(times)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gpus", [4, 32])
def test_an_overload_is_seen(seed: int, gpus: int) -> None:
    stopped = judged(served(seed, 2.0, gpus, 2000), gpus)
    assert stopped is not None
    assert FIRST <= stopped < 1500


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_a_load_that_can_be_borne_is_borne(seed: int, load: float) -> None:
    assert judged(served(seed, load, 8, 4000), 8) is None


def test_a_cluster_that_fills_is_not_saturated() -> None:
    assert judged([min(job, 300) for job in range(2000)], 64) is None


def test_jobs_that_come_at_once_are_no_growing_queue() -> None:
    judge = Judge(1)
    for ended in range(1000):
        assert judge(progress(1000, ended)) is False


def test_a_saturated_run_says_how_far_it_came() -> None:
    settings = Settings(
        policy="fifo", cluster={"v100": 2}, workload="gavel", rate=60.0, jobs=5000, fixed_duration_s=3600.0
    )
    with pytest.raises(Saturated) as caught:
        simulate(settings, Judge(2))
    seen = caught.value.progress
    assert seen.arrived < 400
    assert seen.arrived - seen.ended > 200
    assert str(caught.value).startswith(f"after {seen.arrived} arrivals")
