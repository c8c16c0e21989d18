"""Every trace format: meaning of its columns, and lossless round trips."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from levada.errors import BadInput
from levada.sim.traces import WRITERS, Trace, parse, read, write
from tests.peer_data import peer_data
from tests.sim.traces import sample_traces


def parsed(text: str) -> Trace:
    return parse(text.encode(), "toy")


def rendered(trace: Trace, format: str) -> bytes:
    content = WRITERS[format](trace)
    return content.encode() if isinstance(content, str) else content


def test_gavels_columns() -> None:
    trace = parsed(sample_traces.GAVEL)
    assert trace == Trace.of(
        arrival_s=[0, 90.25],
        workload=["Toy (batch size 8)"] * 2,
        scale=[1, 4],
        steps=[1000, 2500],
        weight=[1, 5],
        slo=[math.nan, 1.2],
        texts={
            "command": ["python toy.py --data %s/toy"] * 2,
            "working_directory": ["toys"] * 2,
            "steps_argument": ["--steps"] * 2,
            "needs_data_dir": ["1", "0"],
        },
    )


def test_older_gavel_traces_have_neither_weights_nor_slos() -> None:
    trace = parsed(sample_traces.GAVEL_OLD)
    assert trace.arrival_s.tolist() == [0, 90.25]
    assert trace.scale.tolist() == [1, 4]
    assert trace.weight.tolist() == [1, 1]
    assert np.isnan(trace.slo).all()


def test_generated_jobs_have_durations_and_fractional_steps() -> None:
    trace = parsed(sample_traces.GAVEL_JOBS)
    assert trace.steps.tolist() == [1000.5, 2500.25]
    assert trace.duration_s.tolist() == [100.05, 62.5]
    assert trace.deadlines().tolist() == [math.inf, 90.25 + 1.2 * 62.5]


def test_shockwaves_columns() -> None:
    trace = parsed(sample_traces.SHOCKWAVE)
    assert trace.texts["mode"] == ("gns", "static")
    assert trace.duration_s.tolist() == [100, 63]
    assert trace.arrival_s.tolist() == [0, 90]


def test_jobs_of_pollux_are_elastic() -> None:
    trace = parsed(sample_traces.POLLUX)
    assert trace.workload == ("toy", "toy")
    assert trace.scale.tolist() == [1, 4]
    assert (trace.min_workers.tolist(), trace.max_workers.tolist()) == ([1, 1], [64, 64])
    assert trace.texts == {"name": ("toy-0", "toy-1"), "batch_size": ("8", "32")}
    assert np.isnan(trace.steps).all()


def test_philly_is_sorted_by_arrival() -> None:
    trace = parsed(sample_traces.PHILLY)
    assert trace.arrival_s.tolist() == [0, 30]
    assert trace.duration_s.tolist() == [90.5, 60]
    assert trace.scale.tolist() == [1, 4]
    assert trace.texts == {"queue": ("vc1", "vc2")}


def test_sacct_skips_job_steps_idle_jobs_and_jobs_without_gpus() -> None:
    trace = parsed(sample_traces.SLURM)
    assert trace.texts["name"] == ("11", "12", "15")
    assert trace.arrival_s.tolist() == [0, 30, 180]
    assert trace.duration_s.tolist() == [5, 86410, 600]
    assert trace.scale.tolist() == [1, 2, 8]
    assert trace.gpu_types == ((), ("a100",), ("v100",))
    assert trace.texts["user"] == ("bob", "ann", "bob")
    assert trace.texts["queue"] == ("short", "long", "short")


@pytest.mark.parametrize(
    ("resources", "gpus", "kind"),
    [
        ("gpu:4", 4, ""),
        ("gpu:a100:4(S:0-1)", 4, "a100"),
        ("gres/gpu", 1, ""),
        ("gres/gpu:a100=2,gres/gpu:v100=3", 5, ""),
    ],
)
def test_slurms_notations_of_gpus(resources: str, gpus: int, kind: str) -> None:
    text = f"JobID|Submit|ElapsedRaw|ReqTRES\n1|2031-05-06T10:00:00|7|{resources}\n"
    trace = parsed(text)
    assert trace.scale.tolist() == [gpus]
    assert trace.gpu_types == ((kind,) if kind else (),)


def test_levadas_columns() -> None:
    trace = parsed(sample_traces.CSV)
    assert trace == Trace.of(
        arrival_s=[0, 0.1],
        workload=["toy", "toy"],
        scale=[2, 1],
        steps=[1000, math.nan],
        deadline_s=[math.nan, 3600],
        min_workers=[1, 1],
        max_workers=[4, 1],
        gpu_types=[("a100", "v100"), ()],
        texts={"user": ["ann", "bob"], "team": ["red", ""]},
    )


@pytest.mark.parametrize("format", sample_traces.ALL)
def test_every_format_survives_a_round_trip(format: str) -> None:
    trace = parsed(sample_traces.ALL[format])
    for through in ("csv", "parquet", format):
        assert parse(rendered(trace, through), "toy") == trace, through


@pytest.mark.parametrize("format", [name for name in WRITERS if name not in ("slurm", "philly")])
def test_a_format_writes_what_it_read(format: str) -> None:
    first = parse(rendered(parsed(sample_traces.ALL.get(format, sample_traces.CSV)), format), "toy")
    assert rendered(parse(rendered(first, format), "toy"), format) == rendered(first, format)


def test_generated_jobs_are_written_byte_for_byte() -> None:
    assert rendered(parsed(sample_traces.GAVEL_JOBS), "gavel-jobs").decode() == sample_traces.GAVEL_JOBS


def test_the_format_is_detected_from_content_also_compressed(tmp_path: Path) -> None:
    file = tmp_path / "anything.bin"
    file.write_bytes(gzip.compress(sample_traces.POLLUX.encode()))
    assert read(file) == parsed(sample_traces.POLLUX)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.trace", "t.tsv"])
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str) -> None:
    trace = parsed(sample_traces.GAVEL_JOBS)
    write(trace, tmp_path / name)
    assert len(read(tmp_path / name)) == 2


def test_windows_line_ends_and_byte_order_marks_are_accepted() -> None:
    for text in (sample_traces.GAVEL, sample_traces.POLLUX, sample_traces.SLURM):
        assert parse(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), "toy") == parsed(text)


def test_missing_values_are_reported() -> None:
    for format, missing in (
        ("gavel", "steps"),
        ("shockwave", "steps"),
        ("philly", "duration_s"),
        ("pollux", "batch_size"),
    ):
        with pytest.raises(BadInput, match=f"job 0 has no {missing}"):
            WRITERS[format](Trace.of(arrival_s=[0.0]))


def test_a_line_that_readers_would_skip_is_not_written() -> None:
    with pytest.raises(BadInput, match="job 0: workload '#toy' begins with #"):
        WRITERS["gavel"](Trace.of(arrival_s=[0.0], workload=["#toy"], steps=1.0))


# ----------------------------------------------------------------------------------------------------- published data


PUBLISHED = {
    "gavel/traces/**/*.trace": "gavel",
    "gavel/generated_jobs/*.tsv": "gavel-jobs",
    "peers/shockwave/traces/*.trace": "shockwave",
    "peers/sia/workloads/**/*.csv": "pollux",
    "peers/pollux/workloads*/*.csv": "pollux",
    "peers/pollux/philly.csv.gz": "philly",
}


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_every_published_trace_survives_round_trips(pattern: str) -> None:
    paths = sorted(peer_data().glob(pattern))
    assert paths
    for path in paths:
        trace = read(path)
        for format in ("csv", "parquet", PUBLISHED[pattern]):
            assert parse(rendered(trace, format), "toy") == trace, (path, format)


@pytest.mark.parametrize("pattern", ["gavel/traces/**/*.trace", "gavel/generated_jobs/*.tsv"])
def test_gavels_traces_keep_every_column_through_csv_and_parquet(pattern: str) -> None:
    for path in sorted(peer_data().glob(pattern)):
        for through in ("csv", "parquet"):
            back = rendered(parse(rendered(read(path), through), "toy"), PUBLISHED[pattern]).decode()
            assert cells(back) == cells(path.read_text()), path


def cells(text: str) -> list[list[object]]:
    """Cells with numbers as numbers: Gavel writes 0, 0.0 and 0.000000."""

    def value(cell: str) -> object:
        try:
            return float(cell)
        except ValueError:
            return cell

    return [[value(cell) for cell in line.split("\t")] for line in text.splitlines()]


def test_gavels_trace_names_are_found_below_peer_data() -> None:
    root = peer_data()
    trace = read("traces/physical_cluster/max_min_fairness.trace")
    assert trace == read(root / "gavel/traces/physical_cluster/max_min_fairness.trace")
    assert len(trace) == 96


def test_phillys_sample_has_its_known_size() -> None:
    pairs = json.loads((peer_data() / "gavel/philly_job_distribution.json").read_bytes())
    trace = read(peer_data() / "peers/pollux/philly.csv.gz")
    assert len(trace) == 82_247
    assert len(pairs) == 33_192
    assert (np.diff(trace.arrival_s) >= 0).all()
