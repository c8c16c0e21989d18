"""Queries of an engine: correct, read-only, and correct after the table has grown."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Device, Node
from levada.core.job import Job, Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.engine import Engine, persist
from levada.engine.queries import JobState

CLUSTER = Cluster(
    nodes=(Node(name="n0", devices=tuple(Device(id=str(number), type="v100") for number in range(4)), cpu=8000),)
)


def submitted(*names: str) -> ev.JobsSubmitted:
    return ev.JobsSubmitted(at=1.0, jobs=JobBatch.of([Job(id=name, submitted=1.0) for name in names]))


def test_a_job_query_returns_the_values_of_its_columns() -> None:
    engine = Engine(cluster=CLUSTER)
    engine.handle(submitted("a", "b"))
    job, jobs = engine.query.job("b"), engine.query.jobs
    assert job is not None
    slot = jobs.find(np.array([job.number]))[0]
    fields = msgspec.structs.asdict(job)
    assert set(fields) <= {*INT_COLUMNS, *FLOAT_COLUMNS}
    for name, value in fields.items():
        np.testing.assert_equal(value, getattr(jobs, name)[slot].item(), name)
    assert (job.number, job.phase, job.max) == (1, Phase.PENDING, 1)
    assert engine.query.job("c") is None


def test_query_results_are_read_only() -> None:
    engine = Engine(cluster=CLUSTER)
    engine.handle(submitted("a"))
    query = engine.query
    arrays = [getattr(query.jobs, name) for name in (*INT_COLUMNS, *FLOAT_COLUMNS, "order")]
    arrays += [query.held.owner, query.held.rows, query.cluster.type_of, query.asked_about]
    for array in arrays:
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    job = query.job("a")
    assert job is not None
    with pytest.raises(AttributeError):
        job.phase = 3  # type: ignore[misc]
    for mapping in (query.foreign, query.reservations, query.policy_options, query.ids):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


def test_query_columns_follow_table_growth_and_engine_replacement() -> None:
    engine = Engine(cluster=CLUSTER)
    engine.handle(submitted("a"))
    before, fork = engine.query.jobs, engine.fork()
    engine.handle(submitted(*(f"job{number}" for number in range(before.capacity))))
    jobs = engine.query.jobs
    assert len(jobs) == before.capacity + 1 <= jobs.capacity
    assert jobs.phase[jobs.order].tolist() == [Phase.PENDING] * len(jobs)
    engine.swap(fork)
    assert [engine.query.job_id(number) for number in engine.query.jobs.number[engine.query.jobs.order].tolist()] == [
        "a"
    ]
    assert len(fork.query.jobs) == before.capacity + 1


def test_a_job_without_progress_differs_from_one_at_step_0() -> None:
    def has_reported(**fields: float) -> bool:
        zeros = dict.fromkeys(JobState.__struct_fields__, 0.0)
        return JobState(**{**zeros, **fields}).has_reported  # type: ignore[arg-type]

    assert not has_reported(reported=5.0, resized=5.0)
    assert has_reported(reported=6.0, resized=5.0)
    assert has_reported(reported=5.0, resized=5.0, steps_done=3.0)


def test_an_engine_is_rebuilt_from_its_fields() -> None:
    engine = Engine(cluster=CLUSTER)
    engine.handle(submitted("a", "b"))
    fields = persist.fields(engine.query)
    assert persist.from_fields(fields).query.holders() == engine.query.holders()
    with pytest.raises(TypeError, match="not the fields"):
        persist.from_fields({name: value for name, value in fields.items() if name != "now"})
