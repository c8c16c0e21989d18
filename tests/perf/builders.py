"""Short constructors of observations, and the queries that tests compare."""

import hypothesis.strategies as st
import numpy as np

from levada.perf import Estimator, Observations, Tuning

#: One observed interval: (workload, GPU type, workers, seconds, steps), warm.
Row = tuple[int, int, int, float, float]


def intervals(*rows: Row, at: list[float] | None = None, warm: bool | list[bool] = True) -> Observations:
    """Observations of these rows, 1 s apart unless *at* is set."""
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return Observations(
        workload=np.array(columns[0], np.int64),
        gpu_type=np.array(columns[1], np.int64),
        workers=np.array(columns[2], np.int64),
        seconds=np.array(columns[3], np.float64),
        steps=np.array(columns[4], np.float64),
        at=np.arange(len(rows), dtype=np.float64) if at is None else np.array(at),
        warm=np.broadcast_to(np.asarray(warm), (len(rows),)).copy(),
    )


def learned(*rows: Row, tuning: Tuning | None = None) -> Estimator:
    """An estimator that observed these rows one by one; job n belongs to workload n."""
    estimator = Estimator(tuning)
    estimator.bind(np.arange(10), np.arange(10))
    for row in rows:
        estimator.observe(intervals(row))
    return estimator


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


#: Any observations of a few workloads, types and sizes, each with whether it is warm.
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(1, 16),
        st.floats(0.1, 1e5),
        st.floats(0.1, 1e5),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)
JOBS, TYPES, SIZES = np.arange(5)[:, None, None], np.arange(4)[:, None], np.arange(20)


def batch(rows: list[tuple[int, int, int, float, float, bool]], at: list[float] | None = None) -> Observations:
    """Observations of rows drawn from `ROWS`."""
    return intervals(*(row[:5] for row in rows), at=at, warm=[row[5] for row in rows])


def all_estimates(model: Estimator) -> list[list[object]]:
    """The results of all queries, as plain lists."""
    return [
        model.rates(JOBS, TYPES, SIZES).tolist(),
        model.speedups(JOBS, TYPES, SIZES).tolist(),
        model.confidence(JOBS, TYPES, SIZES).tolist(),
        model.known(JOBS).tolist(),
        [model.restart_cost_s(job, *change) for job in range(5) for change in ((0, 1), (1, 2), (2, 0))],
    ]
