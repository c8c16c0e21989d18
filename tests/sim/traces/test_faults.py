"""Faulty files: one message per fault with file, line and column, never a traceback."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.sim.traces import WRITERS, Trace, parse, read, write
from tests.sim.traces import sample_traces


def faults(data: str | bytes) -> list[str]:
    with pytest.raises(BadInput) as error:
        parse(data.encode() if isinstance(data, str) else data, "toy")
    return [str(fault) for fault in error.value.faults]


def gavel(**cells: str) -> str:
    """A line of a Gavel trace with some columns replaced."""
    line = {
        "type": "Toy", "command": "run", "folder": "toys", "argument": "-n", "data": "1", "steps": "10", "scale": "1",
        "weight": "1", "slo": "-1", "arrival": "5", **cells,
    }  # fmt: skip
    return "\t".join(line.values()) + "\n"


def test_all_faults_are_reported_at_once_in_file_order() -> None:
    text = (
        gavel()
        + gavel(scale="two", weight="0")
        + "Toy\trun\t1\n"
        + gavel(arrival="4", steps="1.5")
        + gavel(data="yes", slo="0", arrival="inf")
        + gavel(scale="0", steps="-3")
    )
    assert faults(text) == [
        "toy:2: column 7 (scale_factor): must be a whole number, not 'two'",
        "toy:2: column 8 (priority_weight): must be above 0, not '0'",
        "toy:3: has 3 columns instead of 10",
        "toy:4: column 6 (total_steps): must be a whole number, not '1.5'",
        "toy:4: column 10 (arrival_time): must not be before the arrival of the job above, not '4'",
        "toy:5: column 5 (needs_data_dir): must be 0 or 1, not 'yes'",
        "toy:5: column 9 (SLO): must be above 0, not '0'",
        "toy:5: column 10 (arrival_time): must be a number, not 'inf'",
        "toy:6: column 6 (total_steps): must be above 0, not '-3'",
        "toy:6: column 7 (scale_factor): must be from 1 to 1000000, not '0'",
    ]


def test_at_most_20_faults_are_reported() -> None:
    messages = faults(gavel() + gavel(scale="x", weight="y") * 500)
    assert len(messages) == 20
    assert messages[-1].startswith("toy:11: column 8")


def test_line_numbers_include_skipped_lines() -> None:
    assert faults("# made by hand\n\n" + gavel() + "\n" + gavel(scale="x"))[0].startswith("toy:5: column 7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sample_traces.SHOCKWAVE.replace("\t63\t", "\tlong\t"), "toy:2: column 11 (duration): must be a number, not 'long'"),
        (sample_traces.GAVEL_JOBS.replace("None", "none"), "toy:2: column 5 (SLO): must be a number, not 'none'"),
        (sample_traces.GAVEL_OLD.replace("90.25", "x90.25"), "toy:2: column 6 (arrival_time): must be a number, not 'x90.250000'"),
        (sample_traces.POLLUX.replace("toy,4", "toy,-4"), "toy:3: column 4 (num_replicas): must be from 1 to 1000000, not '-4'"),
        (sample_traces.POLLUX.replace("1.5", "100"), "toy:3: column 2 (time): must not be before the arrival of the job above, not '90.25'"),
        (sample_traces.PHILLY.replace("2031-05-06 10:00:30", "noon"), "toy:2: column 1 (timestamp): must be a time, e.g. 2017-10-03 08:15:00, not 'noon'"),
        (sample_traces.PHILLY.replace("90.5,1", "-90.5,1"), "toy:3: column 2 (duration): must be 0 or more, not '-90.5'"),
        (sample_traces.SLURM.replace("00:05", "five"), "toy:4: column 6 (Elapsed): must be a duration, e.g. 1-02:03:04 or seconds, not 'five'"),
        (sample_traces.SLURM.replace("gpu=1|", "gpu=one|"), "toy:4: column 7 (AllocTRES): must be a list of resources, e.g. cpu=8,gres/gpu=4, not 'gres/gpu=one'"),
        (sample_traces.CSV.replace("1,4,a100", "3,4,a100"), "toy:2: column 6 (min_workers): must be at most the job's scale, not '3'"),
        (sample_traces.CSV.replace("3600", "soon"), "toy:3: column 5 (deadline_s): must be a number, not 'soon'"),
    ],
)  # fmt: skip
def test_each_format_reports_file_line_and_column(text: str, message: str) -> None:
    assert faults(text) == [message]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "toy: is empty"),
        (" \n\n", "toy: is empty"),
        (sample_traces.GAVEL_JOBS.partition("\n")[0], "toy: contains no jobs"),
        ("name,time,application,num_replicas,batch_size\n", "toy: contains no jobs"),
        ("a\tb\n", "toy: no line has the columns of a tab-separated trace: Gavel's have 10 (older ones and lists of generated jobs 7), Shockwave's 12"),
        ("name,application,num_replicas\nx,y,2\n", "toy: has no column time"),
        ("arrival_s,arrival_s\n1,2\n", "toy:1: duplicate column 'arrival_s'"),
        ("arrival_s,sclae\n1,2\n", "toy: unknown column sclae; did you mean scale?"),
        ("JobID|Submit|AllocTRES\n1|2031-01-01T00:00:00|gres/gpu=1\n", "toy: has no column ElapsedRaw; add it to sacct --format"),
        (b"arrival_s\n\xff\n", "toy: not UTF-8 at byte 10"),
        (b"\x1f\x8bnothing", None),
        (gzip.compress(b"arrival_s\n1\n" * 99, mtime=0)[:30], None),
        (b"PAR1 and then nothing", "toy: truncated parquet file"),
        (b"PAR1 and then nothing PAR1", None),
        ("once upon a time\n", None),
    ],
)  # fmt: skip
def test_other_files_are_rejected_in_one_line(data: str | bytes, message: str | None) -> None:
    messages = faults(data)
    assert len(messages) == 1
    assert messages[0].startswith("toy")
    if message is not None:
        assert messages == [message]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "none.trace")
    with pytest.raises(BadInput, match="No such file"):
        write(Trace.of(arrival_s=[0.0]), tmp_path / "none" / "t.csv")


def test_unknown_formats(tmp_path: Path) -> None:
    trace = Trace.of(arrival_s=[0.0])
    with pytest.raises(BadInput, match=r"unknown suffix '\.doc'; choose a format: csv, parquet, gavel"):
        write(trace, tmp_path / "t.doc")
    with pytest.raises(BadInput, match="unknown format 'word'"):
        write(trace, tmp_path / "t.csv", "word")
    assert list(tmp_path.iterdir()) == []


SCRAPS = st.sampled_from(
    ["\t", "\n", "|", ",", '"', ";", "0", "1", "-", "nan", "1e999", "x", "\x00", "\u2028", "é", ""]
)


@given(
    text=st.sampled_from(list(sample_traces.ALL.values())),
    at=st.floats(0, 1),
    scraps=st.lists(SCRAPS, max_size=4),
    cut=st.integers(0, 5),
)
def test_a_damaged_file_is_read_or_rejected(text: str, at: float, scraps: list[str], cut: int) -> None:
    position = int(at * len(text))
    damaged = text[:position] + "".join(scraps) + text[position + cut :]
    try:
        trace = parse(damaged.encode(), "toy")
    except BadInput as error:
        assert 1 <= len(error.faults) <= 20
        assert all(str(fault).startswith("toy") and "\n" not in str(fault) for fault in error.faults)
    else:
        assert len(trace) > 0
        assert trace.jobs().columns["min"].min() >= 1


@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_parquet_file_is_rejected(part: float) -> None:
    whole = bytes(WRITERS["parquet"](parse(sample_traces.CSV.encode(), "toy")))  # type: ignore[arg-type]
    assert faults(whole[: 4 + int(part * (len(whole) - 4))]) == ["toy: truncated parquet file"]


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    try:
        parse(data, "toy")
    except BadInput as error:
        assert error.faults
