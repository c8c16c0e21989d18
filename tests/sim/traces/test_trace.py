"""Traces: round trips, selection of rows, jobs for the engine, summaries."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.sim.traces import WRITERS, Trace, TraceJob, as_text, describe, parse
from levada.sim.traces.trace import check
from levada.tables.job_table import JobColumns

NAN = math.nan
AMOUNTS = st.one_of(st.just(NAN), st.floats(min_value=1e-300, max_value=1e300))
WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00\r"), max_size=8)
TYPES = st.lists(st.sampled_from(["a100", "v100", "k80"]), max_size=3, unique=True).map(tuple)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Generate any valid trace."""
    count = draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=count, max_size=count))

    scale = np.array(column(st.integers(1, 64)))
    return Trace.of(
        arrival_s=sorted(column(st.floats(0, 1e300))),  # type: ignore[type-var]
        workload=column(WORDS),  # type: ignore[arg-type]
        scale=scale,
        steps=column(AMOUNTS),
        duration_s=column(AMOUNTS),
        weight=column(st.floats(1e-3, 1e3)),
        slo=column(AMOUNTS),
        deadline_s=column(AMOUNTS),
        min_workers=draw(st.sampled_from([scale, np.ones_like(scale)])),
        max_workers=draw(st.sampled_from([scale, scale + 7])),
        gpu_types=column(TYPES),  # type: ignore[arg-type]
        texts={name: column(WORDS) for name in draw(st.sampled_from([(), ("user", "queue"), ("notes",)]))},  # type: ignore[misc]
    )


@given(trace=traces(), format=st.sampled_from(["csv", "parquet"]))
def test_levadas_formats_restore_every_bit(trace: Trace, format: str) -> None:
    assert check(trace, 20) == []
    written = WRITERS[format](trace)
    data = written.encode() if isinstance(written, str) else written
    back = parse(data, "toy")
    assert back == trace
    assert WRITERS[format](back) == written


@given(trace=traces())
def test_other_formats_keep_their_columns(trace: Trace) -> None:
    known = Trace.of(
        arrival_s=trace.arrival_s,
        workload=[" ".join(name.split()).lstrip("#") or "toy" for name in trace.workload],
        scale=trace.scale,
        steps=np.nan_to_num(trace.steps, nan=1.0),
        duration_s=np.nan_to_num(trace.duration_s, nan=1.0),
        weight=trace.weight,
        slo=trace.slo,
    )
    for format in ("gavel-jobs", "shockwave", "gavel"):
        back = parse(str(WRITERS[format](known)).encode(), "toy")
        for name in ("arrival_s", "workload", "scale", "weight", "slo", *([] if format == "gavel" else ["duration_s"])):
            assert _same(getattr(back, name), getattr(known, name)), (format, name)
        if format == "gavel-jobs":
            assert back.steps.tolist() == known.steps.tolist()


def _same(one: object, other: object) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True)) if isinstance(one, np.ndarray) else one == other


def test_traces_differ_if_a_column_does() -> None:
    trace = Trace.of(arrival_s=[0, 1], steps=[1, NAN])
    assert trace == Trace.of(arrival_s=[0, 1], steps=[1, NAN])
    assert trace != Trace.of(arrival_s=[0, 1], steps=[1, 2])
    assert trace != Trace.of(arrival_s=[0, 1], steps=[1, NAN], texts={"user": ["ann", ""]})
    assert trace != "a trace"


def test_selected_rows_get_new_ids() -> None:
    trace = Trace.of(arrival_s=[0, 1, 2], workload=["a", "b", "c"], texts={"user": ["x", "y", "z"]})
    part = trace.take(np.array([False, True, True]))
    assert (part.id, part.workload, part.texts["user"]) == (("0", "1"), ("b", "c"), ("y", "z"))
    assert trace.take(slice(1, 3)) == part


def test_jobs_for_the_engine() -> None:
    trace = Trace.of(
        arrival_s=[0, 7],
        workload=["a", "b"],
        scale=[2, 4],
        steps=[10, NAN],
        duration_s=[100, NAN],
        weight=[1, 5],
        slo=[2, 3],
        deadline_s=[NAN, 60],
        min_workers=[2, 1],
        max_workers=[2, 8],
        gpu_types=[(), ("a100",)],
        texts={"user": ["ann", "bob"], "queue": ["", "lab"]},
    )
    batch = trace.jobs()
    assert batch.id == ("0", "1")
    assert {name: column.tolist() for name, column in batch.columns.items() if name != "steps"} == {
        "submitted": [0, 7],
        "min": [2, 1],
        "max": [2, 8],
        "desired": [2, 4],
        "weight": [1, 5],
        "deadline": [200, 60],
    }
    assert (batch.workload, batch.queue, batch.entity) == (("a", "b"), ("default", "lab"), ("ann", "bob"))
    assert batch.gpu_types == ((), ("a100",))
    assert set(batch.columns) <= set(JobColumns.__annotations__) | {"desired"}


def test_steps_and_durations_follow_from_each_other() -> None:
    trace = Trace.of(arrival_s=[0, 0, 0], scale=[1, 2, 2], steps=[100, NAN, NAN], duration_s=[NAN, 8, NAN])
    filled = trace.filled(lambda _, scale: 5.0 * scale)
    assert filled.steps[:2].tolist() == [100, 80]
    assert filled.duration_s[:2].tolist() == [20, 8]
    assert math.isnan(filled.steps[2])
    assert math.isnan(trace.filled(lambda *_: 0.0).duration_s[0])


def test_a_trace_of_drawn_jobs() -> None:
    drawn = [TraceJob(0.0, "a", 1, 10.0, 5.0), TraceJob(3.0, "b", 2, 20.0, 5.0, 5.0, 1.2)]
    trace = Trace.of_jobs(drawn)
    assert trace == Trace.of(
        arrival_s=[0, 3], workload=["a", "b"], scale=[1, 2], steps=[10, 20], duration_s=5, weight=[1, 5], slo=[NAN, 1.2]
    )
    assert len(Trace.of_jobs([])) == 0


def test_a_summary() -> None:
    trace = Trace.of(
        arrival_s=[0, 3600, 7200],
        workload=["b", "a", "b"],
        scale=[1, 4, 1],
        duration_s=[3600, 1800, NAN],
        slo=[2, NAN, NAN],
        texts={"user": ["ann", "ann", "bob"]},
    )
    summary = describe(trace)
    assert (summary.jobs, summary.span_s, summary.jobs_per_hour, summary.gpu_hours, summary.load_gpus) == (
        3,
        7200,
        1,
        3,
        1.5,
    )
    assert summary.duration_s is not None
    assert (summary.duration_s.known, summary.duration_s.p50) == (2, 2700)
    assert (summary.scale, list(summary.workload.items())) == ({"1": 2, "4": 1}, [("b", 2), ("a", 1)])
    assert (summary.deadlines, summary.users, summary.queues, summary.elastic) == (1, 2, 0, 0)
    assert as_text(summary).splitlines() == [
        "jobs       3",
        "span       2.0 h",
        "arrivals   1.00 per hour",
        "work       3.0 GPU-hours",
        "load       1.5 GPUs on average",
        "duration   30.0 min to 1.0 h, mean 45.0 min; p50 45.0 min, p90 57.0 min, p99 59.7 min",
        "GPUs       1: 66.7 %, 4: 33.3 %",
        "deadlines  1",
        "users      2",
        "workloads  2",
        "            66.7 %  b",
        "            33.3 %  a",
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_summaries_of_small_traces(count: int) -> None:
    summary = describe(Trace.of(arrival_s=np.zeros(count)))
    assert summary.jobs_per_hour is None
    assert as_text(summary).startswith(f"jobs       {count}")
