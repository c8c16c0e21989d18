"""Comparisons: means, intervals, who is best, and what is not to be averaged."""

from pathlib import Path

import pytest
from scipy import stats

from levada.errors import BadInput
from levada.report.data import read
from levada.report.table import METRICS, cell, compare, spread, too_few_runs
from tests.report.sweep_files import run, sweep


def test_mean_and_interval_are_students() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    mean, half = spread(values)
    low, high = stats.t.interval(0.95, 3, loc=5.0, scale=stats.sem(values))
    assert mean == 5.0
    assert half == pytest.approx((high - low) / 2)
    assert spread([7.0]) == (7.0, None)
    assert spread([]) == (None, None)


def test_the_best_of_each_load_is_marked(tmp_path: Path) -> None:
    hours = {("a", 1.0): 2, ("b", 1.0): 3, ("a", 2.0): 9, ("b", 2.0): 8}
    rows = [run(*key, seed, mean + seed / 100) for key, mean in hours.items() for seed in range(3)]
    result = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s", "utilization"])
    assert [(row.load, row.policy, row.figures["avg_jct_s"].best) for row in result] == [
        (1.0, "a", True), (1.0, "b", False), (2.0, "a", False), (2.0, "b", True)
    ]  # fmt: skip
    assert not any(row.figures["utilization"].best for row in result), "to be busy for longer is no merit"


def test_nobody_is_best_alone_or_beside_an_equal_one(tmp_path: Path) -> None:
    rows = [run("a", 1.0, seed) for seed in range(3)]
    hours = {"a": 4, "b": 4.001, "c": 4, "d": 9}
    rows += [run(policy, 2.0, seed, mean) for policy, mean in hours.items() for seed in range(3)]
    result = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s"])
    assert not any(row.figures["avg_jct_s"].best for row in result), "what looks the same is the same"


@pytest.mark.parametrize(("mine", "others"), [(1, 1), (2, 2), (1, 3), (3, 1), (3, 2)])
def test_nobody_is_best_beyond_doubt_by_fewer_than_three_runs(mine: int, others: int, tmp_path: Path) -> None:
    rows = [run("a", 1.0, seed, 2) for seed in range(mine)] + [run("b", 1.0, seed, 9) for seed in range(others)]
    result = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s"])
    assert not any(row.figures["avg_jct_s"].best for row in result)
    assert too_few_runs(result)


def test_nobody_is_best_where_intervals_overlap(tmp_path: Path) -> None:
    rows = [run(policy, 1.0, seed, hours + seed) for policy, hours in (("a", 2), ("b", 3)) for seed in range(3)]
    result = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s"])
    assert not any(row.figures["avg_jct_s"].best for row in result)


def test_seeds_are_averaged_unless_one_saturated(tmp_path: Path) -> None:
    rows = [run("a", 1.0, seed, hours) for seed, hours in ((0, 1), (1, 3))]
    rows += [run("b", 1.0, 0, 1), run("b", 1.0, 1, None, status="saturated")]
    a, b = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s"])
    assert (a.runs, a.saturated, a.figures["avg_jct_s"].mean) == (2, 0, 7200.0)
    assert (b.runs, b.saturated, b.figures["avg_jct_s"].mean) == (2, 1, None)
    assert not a.figures["avg_jct_s"].best


def test_clusters_are_not_mixed(tmp_path: Path) -> None:
    rows = [run("a"), run("a", run="other", cluster="v100=8", hours=9)]
    result = compare(read([sweep(tmp_path / "s", rows)]), ["avg_jct_s"])
    assert [(row.cluster, row.figures["avg_jct_s"].mean) for row in result] == [("v100=4", 3600.0), ("v100=8", 32400.0)]


def test_sweeps_are_told_apart_by_what_they_differ_in(tmp_path: Path) -> None:
    one = sweep(tmp_path / "one", [run("a")])
    other = sweep(tmp_path / "other", [run("a", hours=2)], {"mechanism": "gavel", "levada": "1"})
    assert read([one, other]).labels() == ["a (mechanism=default)", "a (mechanism=gavel)"]
    again = sweep(tmp_path / "again", [run("a", hours=3)])
    assert read([one, again]).labels() == [f"a [{one}]", f"a [{again}]"]
    assert read([one, one]).labels() == ["a"]


def test_job_counts_are_a_load_too(tmp_path: Path) -> None:
    runs = read([sweep(tmp_path / "s", [run("a", None, asked_jobs=9), run("a", None, run="x", asked_jobs=5)])])
    assert runs.load_unit == "jobs"
    assert [row.load for row in compare(runs, ["avg_jct_s"])] == [5, 9]


def test_cells_in_hours_with_what_they_may_be_off() -> None:
    from levada.report.table import Figure

    metric = METRICS["avg_jct_s"]
    assert cell(metric, Figure(mean=3_600_000.0, plus_minus=1800.0)) == "1,000.00 ± 0.50"
    assert cell(metric, Figure(mean=3600.0, plus_minus=None)) == "1.00"
    assert cell(metric, Figure(mean=None, plus_minus=None)) == "-"


def test_every_input_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("{}")
    with pytest.raises(BadInput) as caught:
        read([str(tmp_path / name) for name in ("empty", "text", "absent")])
    empty, text, absent = map(str, caught.value.faults)
    assert empty.endswith("not a sweep: it has no runs.parquet")
    assert text.endswith("neither a sweep folder nor the output of `levada sim run -o json`")
    assert absent.endswith("No such file or directory")
    (tmp_path / "empty" / "runs.parquet").write_bytes(b"PAR1PAR1")
    with pytest.raises(BadInput, match="cannot be read"):
        read([str(tmp_path / "empty")])


def test_an_unknown_metric_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown metric 'avg_jtc_s'; did you mean avg_jct_s"):
        compare(read([sweep(tmp_path / "s", [run("a")])]), ["avg_jtc_s"])
