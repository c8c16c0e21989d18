"""Throughput tables in other formats: values are read exactly, and all faults are reported."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.sim.throughputs import read_gavel, read_throughputs
from tests.peer_data import peer_data

SMALL = {
    "v100": {
        "('A (x)', 1)": {"null": 4.0, "('A (x)', 1)": [3.0, 3.0], "('B', 1)": [2.0, 1.0]},
        "('A (x)', 2)": {"null": 7.0},
        "('B', 1)": {"null": 1.5},
    },
    "v100_unconsolidated": {"('A (x)', 2)": {"null": 5.0, "('A (x)', 2)": [1.0, 1.0]}},
}


def write_table(tmp_path, value):
    path = tmp_path / "table.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def faults(path):
    with pytest.raises(BadInput) as caught:
        read_throughputs(path)
    return [str(fault).replace(str(path), "F") for fault in caught.value.faults]


def test_gavels_json(tmp_path):
    table = read_throughputs(write_table(tmp_path, SMALL))
    assert (table.workloads, table.types, table.sizes) == (("A (x)", "B"), ("v100",), (1, 2))
    np.testing.assert_equal(table.alone, [[[4.0, 7.0]], [[1.5, np.nan]]])
    np.testing.assert_equal(table.spread, [[[np.nan, 5.0]], [[np.nan, np.nan]]])
    # The pair occurs once, in the row of A, and counts for B, too.
    np.testing.assert_equal(table.together[0, 0], [[3.0, 2.0], [1.0, np.nan]])
    assert np.isnan(table.together[0, 1]).all()


@pytest.mark.parametrize("file", ["simulation_throughputs.json", "physical_cluster_throughputs.json"])
def test_gavels_published_tables_are_read_in_full(file):
    path = peer_data("gavel", file)
    table = read_gavel(path)
    assert table.types == ("k80", "p100", "v100")
    assert table.sizes == (1, 2, 4, 8)
    assert len(table.workloads) == 26
    assert table.distributed().sum() == 19
    raw = json.loads(path.read_text(encoding="utf-8"))
    number = 0
    for column, gpu_type in enumerate(table.types):
        for row, name in enumerate(table.workloads):
            for at, size in enumerate(table.sizes):
                cells = raw[gpu_type].get(f"('{name}', {size})")
                if cells is None:
                    assert np.isnan(table.alone[row, column, at])
                    continue
                assert table.alone[row, column, at] == cells.pop("null")
                for other, (own, others) in cells.items():
                    partner = table.position(other[2:].rpartition("'")[0])
                    assert table.together[column, at, row, partner] == own
                    assert table.together[column, at, partner, row] == others
                    number += 1
    assert number == 3 * 1759 == np.count_nonzero(~np.isnan(table.together))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ["F: is empty"]),
        (" ", ["F: not JSON: Expecting value in line 1, column 2"]),
        ("[1]", ["F: must be a mapping from GPU types to rates"]),
        ("{}", ["F: contains no rates"]),
        ('{"v100": {}, "v100": {}}', ["F: v100: is given twice"]),
        ({"v100": 3}, ["F: v100: must be a mapping from jobs to rates"]),
        (
            {"v100": {"__import__('os')": {"null": 1}}},
            [
                "F: v100[\"__import__('os')\"]: must look like ('ResNet-18 (batch size 16)', 2), with at most 4096 workers"
            ],
        ),
        (
            {"v100": {"('A', 1)": {"null": -1}, "('B', 1)": {"null": "fast"}, "('C', 1)": {}}},
            [
                "F: v100[\"('A', 1)\"].null: must be a number of steps/s, 0 or more",
                "F: v100[\"('B', 1)\"].null: must be a number of steps/s, 0 or more",
                "F: v100[\"('C', 1)\"]: must be a mapping with the rate alone under null",
            ],
        ),
        (
            {"v100": {"('A', 1)": {"null": 1, "('B', 2)": [1, 1], "('B', 1)": [1]}}},
            [
                "F: v100[\"('A', 1)\"][\"('B', 2)\"]: must name a job with 1 workers, too",
                "F: v100[\"('A', 1)\"][\"('B', 1)\"]: must be two rates, each a number of steps/s, 0 or more",
            ],
        ),
        (
            {"v100": {"('A', 1)": {"null": 1, "('B', 1)": [1, 2]}, "('B', 1)": {"null": 1, "('A', 1)": [1, 1]}}},
            ["F: v100[\"('B', 1)\"][\"('A', 1)\"]: contradicts the rates under ('A', 1)"],
        ),
    ],
)
def test_every_fault_is_reported(tmp_path, value, expected):
    assert faults(write_table(tmp_path, value)) == expected


KEYS = st.sampled_from(["v100", "null", "('A', 1)", "('A', 2)", "('B', 1)", "('A', 0)", "x", "('A', 99999999999999)"])
CELLS = st.one_of(st.none(), st.just(True), st.floats(), st.lists(st.floats(), max_size=3), st.just({}), st.just("x"))
TABLES = CELLS
for _ in range(3):
    TABLES = st.one_of(CELLS, st.dictionaries(KEYS, TABLES, max_size=3))


@given(TABLES)
def test_any_json_is_a_table_or_has_faults(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    try:
        assert read_throughputs(path).workloads
    except BadInput as error:
        assert error.faults


def test_many_faults_are_summarized(tmp_path):
    lines = faults(write_table(tmp_path, {"v100": {f"('A', {n})": {"null": -1} for n in range(1, 101)}}))
    assert len(lines) == 21
    assert lines[-1] == "and 80 more faults"


def test_a_missing_file(tmp_path):
    assert faults(tmp_path / "none.json") == ["F: No such file or directory"]


@pytest.mark.parametrize("name", ["empty.csv", "empty.json"])
def test_an_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(BadInput) as caught:
        read_throughputs(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: is empty"
