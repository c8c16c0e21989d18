"""Levada's throughput tables survive a round trip, and their faults are reported."""

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.perf import Profiles
from levada.sim.throughputs import read_gavel, read_throughputs
from levada.sim.throughputs_table import table_text
from tests.peer_data import peer_data

HEADER = "workload,gpu_type,workers,steps_per_s,spread,with,with_steps_per_s,restart_s\n"
NAN = float("nan")


def assert_same(one: Profiles, two: Profiles) -> None:
    for name in Profiles.__struct_fields__:
        np.testing.assert_equal(getattr(two, name), getattr(one, name), err_msg=name)


def read(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_throughputs(path)


def faults(tmp_path, text):
    with pytest.raises(BadInput) as caught:
        read(tmp_path, text)
    return [str(fault).replace(str(tmp_path / "table.csv"), "F") for fault in caught.value.faults]


def test_every_kind_of_row(tmp_path):
    table = read(
        tmp_path,
        HEADER
        + '"a, large",v100,1,2.5,,,,30\n"a, large",v100,4,8,no,,,\n"a, large",v100,4,6,yes,,,\nb,k80,1,0,,,,\n'
        + '"a, large",v100,1,1.5,,b,0.5,\n',
    )
    assert (table.workloads, table.types, table.sizes) == (("a, large", "b"), ("v100", "k80"), (1, 4))
    np.testing.assert_equal(table.alone, [[[2.5, 8.0], [NAN, NAN]], [[NAN, NAN], [0.0, NAN]]])
    np.testing.assert_equal(table.spread[0, 0], [NAN, 6.0])
    np.testing.assert_equal(table.together[0, 0], [[NAN, 1.5], [0.5, NAN]])
    assert table.restart_s.tolist() == [30.0, 0.0]


def test_only_four_columns_are_needed_in_any_order(tmp_path):
    table = read(tmp_path, "steps_per_s,workers,gpu_type,workload\n3,2,v100,a\n")
    assert (table.alone.tolist(), table.sizes, table.spread, table.together) == ([[[3.0]]], (2,), None, None)


def test_a_round_trip_changes_nothing(tmp_path):
    table = read_gavel(peer_data("gavel", "simulation_throughputs.json"))
    assert_same(table, read(tmp_path, table_text(table)))


def test_parquet_is_read_like_csv(tmp_path):
    text = HEADER + "a,v100,1,2.5,,,,30\na,v100,2,4,true,,,\na,v100,1,1.5,,a,1.25,\n"
    polars.read_csv(text.encode()).write_parquet(tmp_path / "table.parquet")
    assert_same(read(tmp_path, text), read_throughputs(tmp_path / "table.parquet"))


def test_every_fault_is_reported_with_line_and_field(tmp_path):
    text = (
        HEADER + "a,v100,1,2.5,,,,\n,v100,0,fast,perhaps,,,\na,v100,1,2.5,,b,,\na,v100,1,3,,,,\na,v100,2,1,yes,b,1,-1\n"
    )
    assert faults(tmp_path, text) == [
        "F:3: workload: must not be empty",
        "F:3: workers: must be a whole number from 1 to 4096",
        "F:3: steps_per_s: must be a number of steps/s, 0 or more",
        "F:3: spread: must be true or false",
        "F:4: with_steps_per_s: must be a number of steps/s, 0 or more",
        "F:5: workload: duplicate row: same workload, type and size",
        "F:6: spread: must be false if `with` is set",
        "F:6: restart_s: must be a number of seconds, 0 or more",
    ]


def test_a_line_with_extra_fields(tmp_path):
    assert faults(tmp_path, "workload,gpu_type,workers,steps_per_s\na,v100,1,2,3\n") == [
        "F:2: has more fields than the header"
    ]


def test_missing_columns(tmp_path):
    needed = "required columns: workload, gpu_type, workers, steps_per_s"
    assert faults(tmp_path, "workload,workers,rate\n") == [
        f"F:1: has no column gpu_type; {needed}",
        f"F:1: has no column steps_per_s; {needed}",
    ]
    assert faults(tmp_path, HEADER) == ["F: contains no rates"]


def test_repeated_measurements_must_agree(tmp_path):
    agreeing = HEADER + "a,v100,1,1.5,,b,0.5,\nb,v100,1,0.5,,a,1.5,\na,v100,1,2,,a,3,\n"
    np.testing.assert_equal(read(tmp_path, agreeing).together[0, 0], [[2.5, 1.5], [0.5, NAN]])
    assert faults(tmp_path, agreeing + "b,v100,1,0.75,,a,1.5,\n") == [
        "F:5: with: contradicts another row with the same workload, type and size"
    ]
    assert faults(tmp_path, "workload,gpu_type,workers,steps_per_s,workers\n") == ["F:1: has two columns workers"]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "1", "2", "-1", "nan", "1e400", "true", "", '"', "\0", "é"]), max_size=9)
    )
)
def test_any_text_is_a_table_or_has_faults(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(HEADER + "\n".join(",".join(line) for line in lines), encoding="utf-8")
    try:
        assert read_throughputs(path).alone.size
    except BadInput as error:
        assert all(str(path) in fault.path or "more faults" in fault.text for fault in error.faults)


def test_files_that_are_not_parquet(tmp_path):
    path = tmp_path / "table.parquet"
    path.write_text("no", encoding="utf-8")
    with pytest.raises(BadInput, match="not parquet"):
        read_throughputs(path)
    with pytest.raises(BadInput, match="No such file"):
        read_throughputs(tmp_path / "none.parquet")
