"""Files that are wrong: every fault on a line of its own, with file, line and column, and never a traceback."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.sim.traces import WRITERS, Trace, parse, read, write
from tests.sim.traces import made_up


def faults(data: str | bytes) -> list[str]:
    with pytest.raises(BadInput) as error:
        parse(data.encode() if isinstance(data, str) else data, "toy")
    return [str(fault) for fault in error.value.faults]


def gavel(**cells: str) -> str:
    """A line of Gavel's with some columns changed."""
    line = {
        "type": "Toy", "command": "run", "folder": "toys", "argument": "-n", "data": "1", "steps": "10", "scale": "1",
        "weight": "1", "slo": "-1", "arrival": "5", **cells,
    }  # fmt: skip
    return "\t".join(line.values()) + "\n"


def test_all_faults_of_all_lines_come_at_once_in_their_order() -> None:
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


def test_no_more_than_twenty_are_told() -> None:
    told = faults(gavel() + gavel(scale="x", weight="y") * 500)
    assert len(told) == 20
    assert told[-1].startswith("toy:11: column 8")


def test_lines_count_what_is_skipped() -> None:
    assert faults("# made by hand\n\n" + gavel() + "\n" + gavel(scale="x"))[0].startswith("toy:5: column 7")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (made_up.SHOCKWAVE.replace("\t63\t", "\tlong\t"), "toy:2: column 11 (duration): must be a number, not 'long'"),
        (made_up.GAVEL_JOBS.replace("None", "none"), "toy:2: column 5 (SLO): must be a number, not 'none'"),
        (made_up.GAVEL_OLD.replace("90.25", "x90.25"), "toy:2: column 6 (arrival_time): must be a number, not 'x90.250000'"),
        (made_up.POLLUX.replace("toy,4", "toy,-4"), "toy:3: column 4 (num_replicas): must be from 1 to 1000000, not '-4'"),
        (made_up.POLLUX.replace("1.5", "100"), "toy:3: column 2 (time): must not be before the arrival of the job above, not '90.25'"),
        (made_up.PHILLY.replace("2031-05-06 10:00:30", "noon"), "toy:2: column 1 (timestamp): must be a time, e.g. 2017-10-03 08:15:00, not 'noon'"),
        (made_up.PHILLY.replace("90.5,1", "-90.5,1"), "toy:3: column 2 (duration): must be 0 or more, not '-90.5'"),
        (made_up.SLURM.replace("00:05", "five"), "toy:4: column 6 (Elapsed): must be a duration, e.g. 1-02:03:04 or seconds, not 'five'"),
        (made_up.SLURM.replace("gpu=1|", "gpu=one|"), "toy:4: column 7 (AllocTRES): must be a list of resources, e.g. cpu=8,gres/gpu=4, not 'gres/gpu=one'"),
        (made_up.CSV.replace("1,4,a100", "3,4,a100"), "toy:2: column 6 (min_workers): must be at most the job's scale, not '3'"),
        (made_up.CSV.replace("3600", "soon"), "toy:3: column 5 (deadline_s): must be a number, not 'soon'"),
    ],
)  # fmt: skip
def test_each_format_tells_file_line_and_column(text: str, told: str) -> None:
    assert faults(text) == [told]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("", "toy: is empty"),
        (" \n\n", "toy: is empty"),
        (made_up.GAVEL_JOBS.partition("\n")[0], "toy: holds no jobs"),
        ("name,time,application,num_replicas,batch_size\n", "toy: holds no jobs"),
        ("a\tb\n", "toy: no line has as many columns as a trace with tabs: Gavel's have 10 (older ones and lists of generated jobs 7), Shockwave's 12"),
        ("name,application,num_replicas\nx,y,2\n", "toy: has no column time"),
        ("arrival_s,arrival_s\n1,2\n", "toy:1: column 'arrival_s' is given twice"),
        ("arrival_s,sclae\n1,2\n", "toy: unknown column sclae; did you mean scale?"),
        ("JobID|Submit|AllocTRES\n1|2031-01-01T00:00:00|gres/gpu=1\n", "toy: has no column ElapsedRaw; ask sacct for it with --format"),
        (b"arrival_s\n\xff\n", "toy: not UTF-8 at byte 10"),
        (b"\x1f\x8bnothing", None),
        (gzip.compress(b"arrival_s\n1\n" * 99, mtime=0)[:30], None),
        (b"PAR1 and then nothing", "toy: is cut off: a parquet file ends as it begins"),
        (b"PAR1 and then nothing PAR1", None),
        ("once upon a time\n", None),
    ],
)  # fmt: skip
def test_what_is_no_trace_gets_one_line(data: str | bytes, told: str | None) -> None:
    said = faults(data)
    assert len(said) == 1
    assert said[0].startswith("toy")
    if told is not None:
        assert said == [told]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "none.trace")
    with pytest.raises(BadInput, match="No such file"):
        write(Trace.of(arrival_s=[0.0]), tmp_path / "none" / "t.csv")


def test_formats_that_nobody_knows(tmp_path: Path) -> None:
    trace = Trace.of(arrival_s=[0.0])
    with pytest.raises(BadInput, match=r"the ending '\.doc' tells no format; formats: csv, parquet, gavel"):
        write(trace, tmp_path / "t.doc")
    with pytest.raises(BadInput, match="unknown format 'word'"):
        write(trace, tmp_path / "t.csv", "word")
    assert list(tmp_path.iterdir()) == []


SCRAPS = st.sampled_from(
    ["\t", "\n", "|", ",", '"', ";", "0", "1", "-", "nan", "1e999", "x", "\x00", "\u2028", "é", ""]
)


@given(
    text=st.sampled_from(list(made_up.ALL.values())),
    at=st.floats(0, 1),
    scraps=st.lists(SCRAPS, max_size=4),
    cut=st.integers(0, 5),
)
def test_a_damaged_file_is_read_or_refused(text: str, at: float, scraps: list[str], cut: int) -> None:
    place = int(at * len(text))
    damaged = text[:place] + "".join(scraps) + text[place + cut :]
    try:
        trace = parse(damaged.encode(), "toy")
    except BadInput as error:
        assert 1 <= len(error.faults) <= 20
        assert all(str(fault).startswith("toy") and "\n" not in str(fault) for fault in error.faults)
    else:
        assert len(trace) > 0
        assert trace.jobs().columns["min"].min() >= 1


@given(part=st.floats(0, 1, exclude_max=True))
def test_a_parquet_that_is_cut_off_is_refused(part: float) -> None:
    whole = bytes(WRITERS["parquet"](parse(made_up.CSV.encode(), "toy")))  # type: ignore[arg-type]
    assert faults(whole[: 4 + int(part * (len(whole) - 4))]) == ["toy: is cut off: a parquet file ends as it begins"]


@given(data=st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    try:
        parse(data, "toy")
    except BadInput as error:
        assert error.faults
