"""Plans and folders of sweeps: which runs there are, and when a run is complete."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from levada.errors import BadInput
from levada.sim.settings import Settings
from levada.sim.sweep import Folder, SweepPlan
from levada.sim.sweep.plan import parse_cutoffs
from levada.sim.sweep.run import FINISHED, SATURATED, run_one

COMMON = Settings(policy="", cluster={"v100": 1}, workload="gavel", jobs=4, fixed_duration_s=3600.0)


def plan(**axes: Any) -> SweepPlan:
    defaults = {"policy": ("fifo",), "cluster": ({"v100": 4},), "rate": (4.0,), "seed": (0,)}
    more = {name: axes.pop(name) for name in ("common", "cutoffs", "judged", "timeline") if name in axes}
    return SweepPlan(**{"common": COMMON, **more}, axes={**defaults, **axes})


def test_the_runs_are_the_product_of_the_axes() -> None:
    tasks = plan(policy=("fifo", "srjf", "fifo"), rate=(1.0, 2.0), seed=(0, 1, 2), jobs=(3, 4)).tasks()
    runs = [(task.settings.policy, task.settings.rate, task.settings.jobs, task.settings.seed) for task in tasks]
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * 3
    assert runs[:3] == [("fifo", 1.0, 3, 0), ("fifo", 1.0, 3, 1), ("fifo", 1.0, 3, 2)]
    assert len({task.key for task in tasks}) == len(tasks)


def test_a_job_that_fits_nowhere_is_reported_with_cluster_and_seed() -> None:
    common = msgspec.structs.replace(COMMON, multi_gpu=True, jobs=40)
    with pytest.raises(BadInput) as caught:
        plan(common=common, cluster=({"v100": 4}, {"v100": 8}), seed=(7,)).tasks()
    lines = [str(fault) for fault in caught.value.faults]
    assert lines
    assert all(line.startswith("--cluster v100=4, seed 7, job ") for line in lines)


def test_the_key_of_a_run_does_not_depend_on_others() -> None:
    few = {task.key for task in plan().tasks()}
    many = {task.key for task in plan(policy=("srjf", "fifo"), seed=(1, 0)).tasks()}
    assert few < many


def test_the_order_of_types_breaks_ties_and_is_part_of_a_cluster() -> None:
    one, other = plan(cluster=({"v100": 4, "k80": 2},)), plan(cluster=({"k80": 2, "v100": 4},))
    assert one.tasks()[0].key != other.tasks()[0].key


def test_each_fault_is_reported_once_before_the_first_run() -> None:
    with pytest.raises(BadInput) as caught:
        plan(policy=("fifo", "fivo"), seed=(0, 1, 2), rate=(1.0, -1.0)).tasks()
    lines = [str(fault) for fault in caught.value.faults]
    assert len(lines) == 2
    assert any("fivo" in line for line in lines)
    assert any("--rate" in line for line in lines)


def test_a_file_that_changes_is_another_sweep(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("arrival_s,duration_s\n0,60\n")
    common = msgspec.structs.replace(COMMON, workload=None, trace=str(trace), fixed_duration_s=None)
    once = plan(common=common, rate=())
    before, shared = once.tasks()[0], once.shared()
    assert once.tasks()[0] == before
    trace.write_text("arrival_s,duration_s\n0,61\n")
    assert once.tasks()[0].fingerprint != before.fingerprint
    assert once.tasks()[0].key == before.key
    assert once.shared() != shared


def test_rates_above_the_cutoff_are_skipped() -> None:
    cutoffs = parse_cutoffs(b'{"v100:4|k80:2": {"fifo": 2.0}, "v100:4": {"srjf": 1.0}}', "cut.json")
    asked = plan(
        policy=("fifo", "srjf"), cluster=({"k80": 2, "v100": 4},), rate=(1.0, 2.0, 3.0), cutoffs=cutoffs
    ).tasks()
    assert [(task.settings.policy, task.settings.rate) for task in asked] == [
        ("fifo", 1.0), ("fifo", 2.0), ("srjf", 1.0), ("srjf", 2.0), ("srjf", 3.0)
    ]  # fmt: skip
    with pytest.raises(BadInput, match="--cutoffs leaves no run"):
        plan(cluster=({"k80": 2, "v100": 4},), rate=(3.0,), cutoffs=cutoffs).tasks()
    with pytest.raises(BadInput, match=r"cut\.json: must be like"):
        parse_cutoffs(b'{"v100:x": {"fifo": 2}}', "cut.json")


# --- the folder ------------------------------------------------------------------------------------------------------


def test_a_run_is_complete_when_all_its_files_exist(tmp_path: Path) -> None:
    asked, folder = plan(), Folder(tmp_path / "sweep")
    task = asked.tasks()[0]
    folder.open(asked)
    assert not folder.is_done(task)
    folder.save(task, run_one(task))
    assert folder.is_done(task)
    part = tmp_path / "sweep" / "parts" / f"{task.key}.json"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    assert not folder.is_done(task), "a truncated file does not count"
    part.rename(part.with_name(f"{part.name}.half"))
    folder.open(asked)
    assert not folder.is_done(task)
    assert not list((tmp_path / "sweep").rglob("*.half")), "partial files are deleted"
    assert folder.gather() == 0


def two_runs(path: Path) -> tuple[Folder, Any, Any]:
    """A folder with two complete runs."""
    asked, folder = plan(seed=(0, 1)), Folder(path)
    folder.open(asked)
    for task in asked.tasks():
        folder.save(task, run_one(task))
    return folder, *asked.tasks()


def test_a_run_whose_row_is_damaged_is_not_done(tmp_path: Path) -> None:
    folder, first, second = two_runs(tmp_path)
    part = tmp_path / "parts" / f"{first.key}.json"
    whole = json.loads(part.read_bytes())
    rows = [{"run": "../../elsewhere"}, {"seed": "x"}, {"seed": 2**80}, {"policy": [1]}, {"more": 1}]
    damaged = [{**whole["row"], **changed} for changed in rows]
    damaged += [{}, {name: value for name, value in whole["row"].items() if name != "seed"}]
    for row in damaged:
        part.write_text(json.dumps({**whole, "row": row}))
        assert (folder.is_done(first), folder.is_done(second)) == (False, True)
        assert folder.gather() == 1
    part.write_text(json.dumps(whole))
    assert folder.gather() == 2


@pytest.mark.parametrize("how", ["empty", "cut", "inside"])
def test_a_run_whose_table_is_damaged_is_not_done(tmp_path: Path, how: str) -> None:
    folder, first, second = two_runs(tmp_path / "sweep")
    table = tmp_path / "sweep" / "parts" / f"{first.key}.jobs.parquet"
    whole = table.read_bytes()
    if how == "inside":
        table.write_bytes(whole[:4] + bytes(len(whole) - 12) + whole[-8:])
    else:
        table.write_bytes(b"" if how == "empty" else whole[: len(whole) // 2])
        assert not folder.is_done(first)
    assert folder.gather() == 1
    assert (folder.is_done(first), folder.is_done(second)) == (False, True)
    folder.save(first, run_one(first))
    assert folder.gather() == 2


def test_a_run_with_another_fingerprint_does_not_count(tmp_path: Path) -> None:
    asked, folder = plan(), Folder(tmp_path / "sweep")
    folder.open(asked)
    task = asked.tasks()[0]
    folder.save(task, run_one(task))
    assert not folder.is_done(msgspec.structs.replace(task, fingerprint="another"))


def test_a_folder_of_another_sweep_is_rejected(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "sweep")
    folder.open(plan())
    folder.open(plan(policy=("srjf",), seed=(7,)))
    with pytest.raises(BadInput, match=r"contains a sweep with other settings .multi_gpu: False there, True now"):
        folder.open(plan(common=msgspec.structs.replace(COMMON, multi_gpu=True)))
    (tmp_path / "sweep" / "sweep.json").write_text("{")
    with pytest.raises(BadInput, match=r"sweep\.json is damaged"):
        folder.open(plan())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match="Permission denied"):
        Folder(tmp_path / "sweep").open(plan())


def test_a_run_that_saturates_has_no_averages(tmp_path: Path) -> None:
    common = msgspec.structs.replace(COMMON, jobs=480)
    task = plan(common=common, rate=(90.0,)).tasks()[0]
    outcome = run_one(task)
    assert outcome.row["status"] == SATURATED
    assert outcome.row["avg_jct_s"] is None
    assert outcome.row["jobs"] < 400
    assert outcome.jobs == {}
    unchecked = plan(common=msgspec.structs.replace(COMMON, jobs=300), rate=(90.0,), judged=False).tasks()[0]
    assert run_one(unchecked).row["status"] == FINISHED
