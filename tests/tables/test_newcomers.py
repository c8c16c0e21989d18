"""Jobs that are laid out together and enter one by one are as jobs that nobody laid out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from levada.core.batch import JobBatch
from levada.core.job import Job
from levada.tables.newcomers import IMPOSSIBLE, Newcomers
from levada.tables.world import World

JOBS = [
    Job(id="a", submitted=1.0, min=1, max=4, gpu_types=("a100",), steps=10.0),
    Job(id="b", submitted=2.0, milli=0, cpu=1000, weight=2.0),
    Job(id="c", submitted=3.0, milli=500),
]


def test_a_cut_enters_as_the_same_job_alone() -> None:
    batch = JobBatch.of(JOBS)
    laid_out, alone = World(), World()
    new = Newcomers.of(batch.columns, len(batch))
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
def test_numbers_that_cannot_be_are_seen_and_others_are_not(column: dict[str, float]) -> None:
    columns = {name: np.array([value, 1]) for name, value in column.items()}
    columns.setdefault("max", np.array([4, 4]))
    new = Newcomers.of({"submitted": np.zeros(2), **columns}, 2)
    assert new["aside"].tolist() == [IMPOSSIBLE, 0]
    assert new.cut(1, 2)["aside"].tolist() == [0]


def test_a_time_that_is_none_is_noticed() -> None:
    assert Newcomers.of({"submitted": np.array([0.0, 1.0])}, 2).timely
    assert not Newcomers.of({"submitted": np.array([0.0, math.inf])}, 2).timely
