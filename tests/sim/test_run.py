"""Tests of `simulate`: every mode, agreement between modes, rejected settings."""

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from levada.errors import BadInput, LevadaError
from levada.policies.catalog import POLICIES
from levada.sim import simulation
from levada.sim.build import cluster_of
from levada.sim.catalogue import catalogue
from levada.sim.metrics import Window
from levada.sim.run import Interrupted, Result, RunProgress, simulate
from levada.sim.settings import (
    Settings,
    parse_cluster,
    parse_gpus_per_node,
    parse_option,
    parse_prices,
    parse_restart_cost,
)
from levada.sim.simulation import Costs

SMALL = {"v100": 4, "p100": 4, "k80": 4}
#: Measurements of the run itself, which are not part of the result.
MEASURED = ("cpu_s", "wall_s", "peak_rss_mb")


def settings(**fields: Any) -> Settings:
    defaults = {"policy": "max_min_fairness_perf", "cluster": SMALL, "workload": "gavel", "jobs": 12, "rate": 2.0}
    return Settings(**(defaults | fields))


def result(**fields: Any) -> Result:
    return simulate(settings(**fields))


def facts(run: Result) -> dict[str, Any]:
    """The report without measurements of the run itself."""
    report = msgspec.to_builtins(run.report)
    return {name: value for name, value in report.items() if name not in MEASURED} | {"detail": run.detail}


def jct(run: Result) -> list[float]:
    return [value for value in run.report.jct_s.values() if value is not None]


MODES: dict[str, dict[str, Any]] = {
    "rounds": {},
    "events": {"policy": "elastic-fifo"},
    "learning": {"policy": "srjf"},
    "published": {"policy": "gandiva", "mechanism": "gavel", "fixed_duration_s": 20_000.0},
    "ideal": {"ideal": True},
    "pairs": {"policy": "gandiva"},
    "several": {"policy": "elastic-fifo", "multi_gpu": True, "cluster": {"v100": 16}, "gpus_per_node": {"": 4}},
    "failures": {"policy": "elastic-fifo", "failures_every_s": 20_000.0, "repair_s": 3_000.0},
    "restarts": {"restart_cost": Costs(start_s=30.0, resize_s=10.0, stop_s=5.0)},
    "estimated": {"policy": "max_min_fairness_packed", "profiling": 0.3, "reference_models": 10},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_ends_all_jobs_and_resumes_to_the_same_result(mode: str, tmp_path: Any) -> None:
    whole = result(**MODES[mode])
    assert whole.report.finished == whole.report.jobs == 12
    assert all(value > 0 for value in jct(whole))
    assert 0 < whole.report.utilization <= 1
    file = tmp_path / "state"
    calls = 0

    def stop(_progress: object) -> bool:
        nonlocal calls
        calls += 1
        return calls in (9, 23)

    resumed = settings(**MODES[mode], checkpoint=str(file))
    for _ in range(2):
        with pytest.raises(Interrupted):
            simulate(resumed, stop)
        assert file.exists()
    assert facts(simulate(resumed, stop)) == facts(whole)
    assert not file.exists()


def test_an_interrupted_run_writes_each_round_once(tmp_path: Any) -> None:
    whole, parts, state = tmp_path / "whole", tmp_path / "parts", tmp_path / "state"
    result(rounds=str(whole))
    with pytest.raises(Interrupted):
        simulate(settings(rounds=str(parts), checkpoint=str(state)), lambda progress: progress.over > 2)
    # As if the run was killed some time after its state was saved.
    with parts.open("a") as file:
        file.write("lines after the checkpoint\n")
    simulate(settings(rounds=str(parts), checkpoint=str(state)))
    assert parts.read_bytes() == whole.read_bytes()


def test_a_checkpoint_of_another_simulation_is_rejected(tmp_path: Any) -> None:
    file = str(tmp_path / "state")
    with pytest.raises(Interrupted):
        simulate(settings(checkpoint=file), lambda progress: progress.over > 2)
    with pytest.raises(BadInput, match="another simulation"):
        simulate(settings(checkpoint=file, seed=1))
    (tmp_path / "other").write_text("no checkpoint")
    with pytest.raises(BadInput, match="not a simulation checkpoint"):
        simulate(settings(checkpoint=str(tmp_path / "other")))


# --------------------------------------------------------------------------------------------------------------- truth


def trace(tmp_path: Any, *lines: str, header: str = "arrival_s,workload,scale,steps") -> str:
    file = tmp_path / "jobs.csv"
    file.write_text("\n".join([header, *lines]) + "\n")
    return str(file)


def rate(workload: str, gpu_type: str, size: int, *, spread: bool = False) -> float:
    table = catalogue()
    cells = table.spread if spread else table.alone
    assert cells is not None
    return float(cells[table.position(workload), table.types.index(gpu_type), table.sizes.index(size)])


LM = "LM (batch size 80)"


@pytest.mark.parametrize(("per_node", "spread"), [(4, False), (2, True)])
def test_a_job_on_several_nodes_has_the_spread_rate(tmp_path: Any, per_node: int, spread: bool) -> None:
    file = trace(tmp_path, f"0,{LM},4,100000")
    run = result(policy="fifo", trace=file, workload=None, jobs=None, rate=None, cluster={"v100": 4}, gpus_per_node={"": per_node})  # fmt: skip
    assert jct(run) == pytest.approx([100000 / rate(LM, "v100", 4, spread=spread)])


def test_restarts_cost_time(tmp_path: Any) -> None:
    file = trace(tmp_path, f"0,{LM},1,100000")
    fields = {"policy": "fifo", "trace": file, "workload": None, "jobs": None, "rate": None, "cluster": {"v100": 4}}
    plain, costly = result(**fields), result(**fields, restart_cost=Costs(start_s=50.0, resize_s=7.0, stop_s=3.0))
    assert jct(costly)[0] == pytest.approx(jct(plain)[0] + 50.0)


def test_node_failures_cost_time_but_no_job() -> None:
    fields = {"policy": "elastic-fifo", "jobs": 30, "rate": 6.0, "cluster": {"v100": 4}}
    plain, failing = result(**fields), result(**fields, failures_every_s=10_000.0, repair_s=5_000.0)
    assert failing.report.finished == 30
    assert failing.report.avg_jct_s > plain.report.avg_jct_s


def test_short_rounds_approach_ideal_shares() -> None:
    fields = {"jobs": 30, "rate": 0.0, "fixed_duration_s": 20_000.0}
    exact = result(**fields, ideal=True).report
    rounds = result(**fields, round_s=60.0).report
    assert rounds.makespan_s == pytest.approx(exact.makespan_s, rel=0.05)
    assert rounds.avg_jct_s == pytest.approx(exact.avg_jct_s, rel=0.05)


def test_ideal_shares_by_hand(tmp_path: Any) -> None:
    """Two equal jobs on one GPU get half of it each, and all of it when the other has ended.

    With `shares=efficient` the shorter job gets what its partner's guarantee, half of the fair share, leaves over.
    """
    file = trace(tmp_path, f"0,{LM},1,10000", f"0,{LM},1,30000")
    fields = {"trace": file, "workload": None, "jobs": None, "rate": None, "cluster": {"v100": 1}, "ideal": True}
    speed = rate(LM, "v100", 1)
    for shares, part in (("leximin", 1 / 2), ("efficient", 3 / 4)):
        run = result(**fields, policy_options={"shares": shares})
        assert jct(run) == pytest.approx([10000 / part / speed, 40000 / speed])
        assert run.report.utilization == pytest.approx(1.0)
        assert run.report.cost == pytest.approx(40000 / speed / 3600)


# --------------------------------------------------------------------------------------------------------------- modes


def test_a_window_ends_when_its_jobs_are_done() -> None:
    fields = {"window": Window(5, 15), "rate": 4.0, "fixed_duration_s": 3600.0}
    run = result(jobs=None, **fields)
    report = run.report
    assert report.jobs >= 15, "more jobs arrive meanwhile"
    assert {str(job) for job in range(5, 15)} <= report.jct_s.keys()
    assert report.avg_jct_s == pytest.approx(np.mean([report.jct_s[str(job)] for job in range(5, 15)]))
    assert result(jobs=15, **fields).report.jobs == 15


def test_steady_state_begins_with_a_full_cluster(tmp_path: Any) -> None:
    file = tmp_path / "rounds.jsonl"
    fields = {"jobs": 20, "rate": 0.5, "fixed_duration_s": 3600.0, "rounds": str(file)}
    result(**fields, steady_state=True)
    first = json.loads(file.read_text().splitlines()[0])
    assert sum(len(devices) for _, _, devices in first["assignments"]) == 12
    result(**fields)
    assert len(json.loads(file.read_text().splitlines()[0])["assignments"]) == 1


def test_all_at_once_and_one_after_the_other() -> None:
    at_once, spread_out = result(rate=0.0).report, result(rate=1.0).report
    assert at_once.avg_jct_s > spread_out.avg_jct_s
    assert at_once.makespan_s <= spread_out.makespan_s


def test_priorities_slos_and_fixed_durations() -> None:
    run = result(priorities=True, slos=True, fixed_duration_s=7200.0, jobs=40, rate=20.0)
    assert set(run.detail.by_weight) == {"1", "5"}
    assert run.detail.deadlines == 40
    assert 0 < run.report.slo_violations <= 40
    assert min(jct(run)) > 3000


def test_cost_follows_prices() -> None:
    free, paid = result(prices={"v100": 0.0, "p100": 0.0, "k80": 0.0}), result(prices=dict.fromkeys(SMALL, 2.0))
    assert free.report.cost == 0
    used = sum(part * SMALL[name] for name, part in paid.detail.utilization.items()) * paid.report.makespan_s
    assert paid.report.cost == pytest.approx(2.0 * used / 3600)


@pytest.mark.parametrize("mechanism", ["default", "gavel"])
def test_prices_over_time(mechanism: Any, tmp_path: Any) -> None:
    folder = tmp_path / "aws" / "logs" / "us-east-1"
    folder.mkdir(parents=True)
    history = [
        {"Timestamp": f"2020-01-0{day}T00:00:00.000Z", "InstanceType": machine, "AvailabilityZone": "a", "SpotPrice": price}
        for day, machine, price in [(1, "p3.2xlarge", "0.5"), (1, "p2.xlarge", "0.1"), (2, "p3.2xlarge", "0.25")]
    ]  # fmt: skip
    (folder / "v100.json").write_text(json.dumps({"SpotPriceHistory": history}))
    policy = "max_sum_throughput_normalized_by_cost_perf"
    report = result(policy=policy, prices_dir=str(tmp_path), mechanism=mechanism, rate=0.2).report
    hours = report.utilization * 12 * report.makespan_s / 3600
    assert 0.1 * hours < report.cost < 0.5 * hours
    assert report.makespan_s > 2 * 86400


@pytest.mark.parametrize("mechanism", ["default", "gavel"])
def test_rounds_are_written_one_by_one(mechanism: Any, tmp_path: Any) -> None:
    file = tmp_path / "rounds.jsonl"
    run = result(
        mechanism=mechanism, rounds=str(file), multi_gpu=True, cluster={"v100": 8, "k80": 8}, fixed_duration_s=9_000.0
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(run.report.rounds))
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    for line in lines:
        used = [device for _, _, devices in line["assignments"] for device in devices]
        assert len(set(used)) == len(used), "at most one job per GPU"
        first = "k80" if mechanism == "gavel" else "v100"
        assert all((kind == first) == (max(devices) < 8) for _, kind, devices in line["assignments"])


@pytest.mark.parametrize("mechanism", ["default", "gavel"])
def test_jobs_may_name_types_that_the_cluster_does_not_have(mechanism: Any, tmp_path: Any) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,workload,steps,gpu_types\n0,ResNet-18 (batch size 16),1000,v100;h100\n")
    run = result(trace=str(trace), workload=None, jobs=None, rate=None, cluster={"v100": 4}, mechanism=mechanism)
    assert run.report.finished == 1
    assert set(run.detail.utilization) == {"v100"}


def test_profiling_hides_part_of_the_truth_from_the_policy() -> None:
    exact = result(policy="max_min_fairness_packed", jobs=25, rate=20.0)
    estimated = result(policy="max_min_fairness_packed", jobs=25, rate=20.0, profiling=0.1, reference_models=4)
    assert facts(exact)["jct_s"] != facts(estimated)["jct_s"]
    assert estimated.report.finished == 25


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"workload": None}, "no jobs: add --trace FILE or --workload NAME"),
        ({"trace": "x"}, "--trace and --workload are mutually exclusive"),
        ({"jobs": None}, "number of jobs is missing: add --jobs N"),
        ({"jobs": 0}, "--jobs must be from 1"),
        ({"rate": -1.0}, "--rate"),
        ({"rate": math.inf}, "--rate"),
        ({"jobs": None, "rate": 0.0, "window": Window(0, 5)}, "--rate 0 .* needs --jobs N"),
        ({"window": Window(12)}, "--window 12: .* the last of the 12 jobs"),
        ({"policy": "max_min_fairnes_perf"}, "did you mean max_min_fairness_perf"),
        ({"policy": "fifo", "mechanism": "gavel"}, "did you mean gavel-fifo"),
        ({"policy": "elastic-fifo", "ideal": True}, "--ideal needs a policy that computes shares of time"),
        ({"policy": "elastic-fifo", "round_s": 60.0}, "--round needs a policy that computes shares of time"),
        ({"policy_options": {"alpha": 1}}, "unknown option"),
        ({"cluster": {"v100": 4, "h100": 2}}, "h100 is not in the throughput table"),
        ({"global_queue": True}, "--global-queue needs --mechanism gavel"),
        ({"round_s": 0.0}, "--round must be"),
        ({"profiling": 0.0}, "--profiling must be"),
        ({"reference_models": 99}, "--reference-models must be from 1 to 26"),
        ({"prices": {"a100": 1.0}}, "--prices: the cluster has no a100"),
        ({"prices_dir": "/nowhere"}, "not a folder"),
        ({"throughputs": "/nowhere.json"}, "No such file"),
        ({"rounds": "/nowhere/at/all"}, "--rounds"),
        ({"multi_gpu": True, "jobs": 100}, "needs 8 GPUs of one type; the cluster has 4"),
        ({"workload": "gavl"}, "did you mean gavel"),
        ({"failures_every_s": 1e4, "mechanism": "gavel"}, "--failures works only with the default mechanism"),
        ({"failures_every_s": 3.6e-9}, "--failures must be a number of hours from 0.001"),
        ({"failures_every_s": 1e4, "repair_s": 1e300}, "--repair must be a number of hours"),
        ({"jobs": 10**12}, "--jobs must be from 1 to 100000000"),
        ({"window": Window(0, 10**12)}, "--window must end at 100000000"),
        ({"rate": 1e-300}, "--rate must be a number of jobs per hour"),
        ({"round_s": 5e-324}, "--round must be a number of seconds from 0.01"),
        ({"fixed_duration_s": 1e300}, "--fixed-duration must be a number of seconds"),
        ({"policy": "max_min_fairness", "policy_options": {"round_s": 5e-324}}, "must be above 0.001"),
        ({"ideal": True, "mechanism": "gavel"}, "--ideal and --mechanism gavel are mutually exclusive"),
        ({"policy_options": {"mechanism": "gavel"}}, "use --mechanism gavel"),
    ],
)
def test_bad_settings_are_rejected(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        result(**fields)


@pytest.mark.parametrize(
    ("header", "line", "text"),
    [
        ("arrival_s,workload,steps", "0,Unknown,10", "'Unknown' is not in the throughput table"),
        ("arrival_s,workload,scale", "0,A3C,1", "neither steps nor a duration"),
        ("arrival_s,workload,steps,gpu_types", "0,A3C,10,h100", "cannot run on any GPU type"),
    ],
)
def test_a_trace_that_cannot_be_simulated(tmp_path: Any, header: str, line: str, text: str) -> None:
    file = trace(tmp_path, line, header=header)
    with pytest.raises(BadInput, match=f"job 0: .*{text}"):
        result(trace=file, workload=None, jobs=None, rate=None)


def test_a_job_of_an_unknown_workload_takes_its_stated_duration(tmp_path: Any) -> None:
    file = trace(tmp_path, "0,mine,2,5000", header="arrival_s,workload,scale,duration_s")
    run = result(policy="fifo", trace=file, workload=None, jobs=None, rate=None)
    assert jct(run) == pytest.approx([5000.0])


H100 = {"cluster": {"h100": 4}, "workload": None, "jobs": None, "rate": None}


@pytest.mark.parametrize("policy", ["fifo", "elastic-srjf", "max_min_fairness_perf"])
def test_durations_need_no_throughput_table(tmp_path: Any, policy: str) -> None:
    """Stated durations win, whether or not the table has the workload."""
    header = "arrival_s,workload,scale,duration_s,gpu_types"
    file = trace(tmp_path, "0,,2,5000,", "0,mine,1,400,h100", "0,A3C,1,700,", header=header)
    run = result(**H100, policy=policy, trace=file)
    assert jct(run) == pytest.approx([5000.0, 400.0, 700.0], rel=0.2)
    assert run.notes == ("h100 is not in the throughput table: using the durations of the trace",)


def test_steps_need_no_throughput_table_if_the_policy_uses_no_speeds(tmp_path: Any) -> None:
    file = trace(tmp_path, "0,mine,2,1000", "0,,1,300", header="arrival_s,workload,scale,steps")
    run = result(**H100, policy="fifo", trace=file)
    assert jct(run) == pytest.approx([500.0, 300.0])
    assert "1 GPU-second per step" in run.notes[0]
    with pytest.raises(BadInput, match="h100 is not in the throughput table; did you mean"):
        result(**H100, policy="max_min_fairness_perf", trace=file)
    # A workload of the table must have speeds on the types of the cluster, too.
    known = trace(tmp_path, "0,A3C,1,300", header="arrival_s,workload,scale,steps")
    with pytest.raises(BadInput, match="h100 is not in the throughput table"):
        result(**H100, policy="fifo", trace=known)


# --------------------------------------------------------------------------------------------------------------- flags


def test_flag_values() -> None:
    assert parse_cluster("v100=36, k80=2,p100=0") == {"v100": 36, "k80": 2}
    assert parse_gpus_per_node("8") == {"": 8}
    assert parse_gpus_per_node("v100=8,k80=4") == {"v100": 8, "k80": 4}
    assert parse_prices("v100=0.74,k80=1") == {"v100": 0.74, "k80": 1.0}
    assert parse_restart_cost("30") == Costs(start_s=30.0, resize_s=30.0, stop_s=0.0)
    assert parse_restart_cost("30:5:10") == Costs(start_s=30.0, resize_s=5.0, stop_s=10.0)
    assert [parse_option(text) for text in ("a=1.5", "b=interior", 'c={"x": 1}', "d=true")] == [
        ("a", 1.5), ("b", "interior"), ("c", {"x": 1}), ("d", True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_cluster, "v100"), (parse_cluster, "v100=x"), (parse_cluster, "v100=-1"), (parse_cluster, "=3"),
        (parse_cluster, "v100=1,v100=2"), (parse_cluster, "v100=0"), (parse_cluster, ""), (parse_cluster, "36:36:36"),
        (parse_cluster, "v100=9999999999"), (parse_gpus_per_node, "0"), (parse_gpus_per_node, "x"),
        (parse_prices, "v100=nan"), (parse_prices, "v100=-1"), (parse_restart_cost, "1:2"), (parse_restart_cost, "x"),
        (parse_restart_cost, "inf"), (parse_option, "x"), (parse_option, "=1"),
    ],
)  # fmt: skip
def test_bad_flag_values_are_rejected(parse: Any, text: str) -> None:
    with pytest.raises(BadInput, match="--"):
        parse(text)


def test_nodes_are_created_by_type_in_the_order_of_the_cluster() -> None:
    fields = settings(cluster={"v100": 5, "k80": 2}, gpus_per_node={"": 2, "k80": 1})
    fast, slow = [("v100-0", 2), ("v100-1", 2), ("v100-2", 1)], [("k80-0", 1), ("k80-1", 1)]
    assert [(node.name, len(node.devices)) for node in cluster_of(fields).nodes] == fast + slow
    published = cluster_of(msgspec.structs.replace(fields, mechanism="gavel"))
    assert [(node.name, len(node.devices)) for node in published.nodes] == slow + fast, "by name, as in Gavel"


@pytest.mark.parametrize("policy", ["elastic-fifo", "srjf", "tiresias"])
def test_a_policy_without_speeds_places_no_job_where_it_makes_no_step(policy: str, tmp_path: Path) -> None:
    """The catalogue's largest ResNet-50 does not fit on two K80, which only the throughput table says."""
    trace = tmp_path / "two.csv"
    jobs = [f"{at},ResNet-50 (batch size 128),2,2,2,1000" for at in range(4)]
    trace.write_text("\n".join(["arrival_s,workload,scale,min_workers,max_workers,steps", *jobs]))
    run = result(policy=policy, workload=None, jobs=None, rate=None, trace=str(trace), cluster={"v100": 2, "k80": 8})
    assert run.report.finished == 4


@pytest.mark.parametrize("seed", range(2))
def test_sharing_devices_pays_when_many_jobs_wait(seed: int) -> None:
    fields = {"cluster": {"v100": 2, "p100": 2, "k80": 2}, "jobs": 40, "rate": 1.0, "seed": seed, "round_s": 1800.0}
    plain, packed = (result(policy=f"max_min_fairness_{form}", **fields) for form in ("perf", "packed"))
    assert sum(jct(packed)) < 0.97 * sum(jct(plain))


def test_a_cluster_that_fails_all_the_time_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "_FAILURES", 20)
    cost = Costs(start_s=3600.0)
    fields = settings(jobs=2, policy="elastic-fifo", failures_every_s=10.0, repair_s=36_000.0, restart_cost=cost)
    with pytest.raises(LevadaError, match="no job made progress over 20 node failures"):
        simulate(fields)
    simulate(settings(jobs=2, policy="elastic-fifo", failures_every_s=20_000.0, repair_s=3_000.0))


def test_rounds_that_cannot_be_written_are_reported_in_one_line() -> None:
    with pytest.raises(LevadaError, match="--rounds /dev/full: No space left"):
        simulate(settings(rounds="/dev/full"))


def test_a_checkpoint_that_cannot_be_written_is_reported_before_the_run(tmp_path: Path) -> None:
    def never(_: RunProgress) -> bool:
        raise AssertionError("the run began")

    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        ("/dev/full", "not a regular file"),
        (str(tmp_path / "pipe"), "not a regular file"),
        (str(tmp_path), "not a regular file"),
        (str(tmp_path / "none" / "x"), "No such file"),
    ):
        with pytest.raises(BadInput, match=message):
            simulate(settings(checkpoint=path), never)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("policy", [record.name for record in POLICIES])
def test_no_policy_leaves_the_faster_types_idle(policy: str) -> None:
    """The slowest type comes first, by name and in the cluster."""
    run = simulate(
        Settings(
            policy=policy,
            cluster={"k80": 8, "p100": 8, "v100": 8},
            workload="gavel",
            jobs=6,
            rate=2.0,
            fixed_duration_s=3600.0,
            prices={"k80": 1.0, "p100": 1.0, "v100": 1.0},
        )
    )
    used = run.detail.utilization
    assert used["p100"] + used["v100"] > 0
    assert run.report.finished == 6


@pytest.mark.parametrize("policy", ["fifo", "srjf", "max_min_fairness", "max_min_fairness_perf", "gavel-fifo"])
def test_the_same_cluster_under_other_names_of_types_has_the_same_results(policy: str, tmp_path: Path) -> None:
    def run(names: dict[str, str]) -> Any:
        table = catalogue()
        rows = ["workload,gpu_type,workers,steps_per_s"]
        for at, workload in enumerate(table.workloads[:6]):
            for kind, old in enumerate(table.types):
                rows.append(f"{workload},{names[old]},1,{table.alone[at, kind, 0]}")
        file = tmp_path / f"{names['k80']}.csv"
        file.write_text("\n".join(rows))
        trace = tmp_path / "jobs.csv"
        jobs = [f"{at * 600},{table.workloads[at % 6]},1,{20_000 + 3_000 * at}" for at in range(12)]
        trace.write_text("\n".join(["arrival_s,workload,scale,steps", *jobs]))
        gpus = {names["p100"]: 3, names["k80"]: 2, names["v100"]: 2}
        outcome = simulate(Settings(policy=policy, cluster=gpus, trace=str(trace), throughputs=str(file)))
        return outcome.jobs.finished_s.tolist(), [outcome.detail.utilization[name] for name in names.values()]

    assert run({"k80": "k", "p100": "p", "v100": "w"}) == run({"k80": "z", "p100": "c", "v100": "a"})


@pytest.mark.parametrize("known", [{"profiling": 0.2}, {"reference_models": 16}])
def test_believed_speeds_of_pairs_do_not_change_true_speeds_in_gavels_world(known: dict[str, Any]) -> None:
    """Jobs run at their true speed whatever the policy believes, so the mean JCT stays close."""
    fields: dict[str, Any] = {"policy": "max_min_fairness_packed", "mechanism": "gavel", "gpus_per_node": {"": 1}}
    fields |= {"jobs": 10, "rate": 4.0, "fixed_duration_s": 7200.0}
    truth, guess = result(**fields).report, result(**fields, **known).report
    assert truth.finished == guess.finished == 10
    assert guess.avg_jct_s == pytest.approx(truth.avg_jct_s, rel=0.3)
    # A policy that does not pack ignores speeds of pairs.
    alone = fields | {"policy": "max_min_fairness_perf"}
    assert jct(result(**alone)) == jct(result(**alone, **known))
