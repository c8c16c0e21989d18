"""Jobs prepared as a batch and added one by one equal jobs that are added directly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from levada.core.batch import JobBatch
from levada.core.job import Job
from levada.tables.cluster_state import ClusterState
from levada.tables.new_jobs import IMPOSSIBLE, NewJobs

JOBS = [
    Job(id="a", submitted=1.0, min=1, max=4, gpu_types=("a100",), steps=10.0),
    Job(id="b", submitted=2.0, milli=0, cpu=1000, weight=2.0),
    Job(id="c", submitted=3.0, milli=500),
]


def test_a_job_from_a_batch_enters_like_a_single_job() -> None:
    batch = JobBatch.of(JOBS)
    laid_out, alone = ClusterState(), ClusterState()
    new = NewJobs.of(batch.columns, len(batch))
    for row, job in enumerate(JOBS):
        part = batch.rows([row])
        laid_out.add_jobs(JobBatch(id=part.id, columns=new.cut(row, row + 1), gpu_types=part.gpu_types))
        alone.add_jobs(JobBatch.of([job]))
    assert laid_out.table.order.tolist() == alone.table.order.tolist()
    for block in ("ints", "floats", "preference"):
        assert np.array_equal(getattr(laid_out.table, block), getattr(alone.table, block), equal_nan=True)


@pytest.mark.parametrize(
    "column",
    [
        {"min": 0},
        {"min": 3, "max": 2},
        {"step": 0},
        {"milli": -1},
        {"milli": 1500},
        {"cpu": -1},
        {"servers": 1 << 40},
        {"weight": 0.0},
        {"weight": math.nan},
        {"weight": math.inf},
        {"steps": math.inf},
    ],
)
def test_invalid_numbers_are_detected_and_valid_ones_accepted(column: dict[str, float]) -> None:
    columns = {name: np.array([value, 1]) for name, value in column.items()}
    columns.setdefault("max", np.array([4, 4]))
    new = NewJobs.of({"submitted": np.zeros(2), **columns}, 2)
    assert new["aside"].tolist() == [IMPOSSIBLE, 0]
    assert new.cut(1, 2)["aside"].tolist() == [0]


def test_an_invalid_submission_time_is_detected() -> None:
    assert NewJobs.of({"submitted": np.array([0.0, 1.0])}, 2).timely
    assert not NewJobs.of({"submitted": np.array([0.0, math.inf])}, 2).timely
