"""DRAGON's conformance cases, and the cases of its description."""

import json
from pathlib import Path

import pytest

from levada.allocate.dragon import answer
from levada.errors import BadInput

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "dragon_cases.json").read_text())
CASES = GOLDEN["cases"]
KEYS = ("admit", "bind_priority_pod", "scale_down", "scale_up", "last_action_reset")


def outcome(case, policy="dragon"):
    return answer(case, policy)["outcome"]


def core(result):
    return {key: result[key] for key in KEYS}


def admitted(result):
    return [admit["job"] for admit in result.get("admits", [result["admit"]] if result["admit"] else [])]


def named(case):
    return case["id"]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_compat_does_what_the_original_could_have_done(case):
    result = outcome(case, "dragon-compat")
    allowed = case["expected"]["outcomes"]
    if allowed == [{"crash": True}]:
        # It may not crash; what the mended policy does is sane here too.
        wanted = case["desired_outcome"]
        assert {key: result[key] for key in wanted} == wanted
    else:
        assert core(result) in allowed


@pytest.mark.parametrize("case", CASES, ids=named)
def test_dragon_does_what_is_desired_or_else_what_the_original_did(case):
    result = outcome(case)
    if "desired_outcome" in case:
        wanted = dict(case["desired_outcome"])
        if "admit_jobs" in wanted:
            assert sorted(admitted(result)) == sorted(wanted.pop("admit_jobs"))
        assert {key: result[key] for key in wanted} == wanted
    else:
        assert core(result) in case["expected"]["outcomes"]


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_job_has_a_reason_and_only_those_who_got_something_run(case, policy):
    result = answer(case, policy)
    names = [job["name"] for job in (*case["running"], *case["pending"])]
    assert sorted(result["reasons"]) == sorted(names)
    started = set(admitted(result["outcome"])) | {job["name"] for job in case["running"]}
    for name, reason in result["reasons"].items():
        assert (reason["code"] == "runs") == (name in started), name


# --- short ways to write a case -----------------------------------------------------------------------------------


def node(name, gpus=0, cpu=16000, mem=65536, **more):
    return {"name": name, "cpu": cpu, "mem": mem, "gpus": gpus, **more}


def group(replicas, gpu=0, cpu=1000, mem=1024, **more):
    return {"replicas": replicas, "cpu": cpu, "mem": mem, "gpu": gpu, **more}


def pending(name, workers, least=None, most=None, *, waited=0.0, ps=None, worker=None, **more):
    return {
        "name": name,
        "waited": waited,
        "min": workers if least is None else least,
        "max": workers if most is None else most,
        "ps": ps or group(1),
        "worker": {**(worker or group(1, gpu=1)), "replicas": workers},
        **more,
    }


def running(name, ps, workers, least=1, most=None, *, worker=None, **more):
    """*workers* are (node, device) or nodes; the first one is the chief."""
    places = [{"node": at} if isinstance(at, str) else {"node": at[0], "gpuid": at[1]} for at in workers]
    places[0]["critical"] = True
    return {
        "name": name,
        "min": least,
        "max": len(workers) if most is None else most,
        "ps": group(len(ps)),
        "worker": {**(worker or group(1, gpu=1)), "replicas": len(workers)},
        "placement": {"ps": [{"node": at} for at in ps], "worker": places},
        **more,
    }


def half(**more):
    return group(1, gpu_request="0.5", gpu_mem="1073741824", **more)


def case(nodes, *, now=1000.0, last_action=990.0, mode="nvidia", **more):
    return {"mode": mode, "now": now, "last_action": last_action, "nodes": nodes, "running": [], "pending": [], **more}


def idle(nodes, **more):
    return case(nodes, now=1100.0, last_action=1000.0, **more)


def shares(nodes, **more):
    return case(nodes, mode="kubeshare", **more)


def both(created):
    """The core of the outcome, which both policies agree on."""
    compat, mended = core(outcome(created, "dragon-compat")), core(outcome(created))
    assert compat == mended
    return mended


# --- admission ----------------------------------------------------------------------------------------------------


def test_a02_no_node_holds_all():
    created = case([node("n1", 2), node("n2", 1), node("n3", 0)], pending=[pending("j", 4, least=1)])
    assert both(created)["admit"] == {"job": "j", "n_workers": 3, "ps": {"n1": 1}, "workers": {"n1": 2, "n2": 1}}


def test_a06_a_young_head_that_does_not_fit_is_passed():
    created = case([node("n1", 2)], pending=[pending("big", 4, waited=10), pending("small", 1, waited=5)])
    assert both(created)["admit"]["job"] == "small"


def test_a08_more_replicas_than_the_maximum():
    created = case([node("n1", 8)], pending=[pending("j", 6, least=1, most=4)])
    assert outcome(created, "dragon-compat")["admit"]["n_workers"] == 6
    assert outcome(created)["admit"]["n_workers"] == 4


def test_servers_that_fit_nowhere_keep_a_job_waiting():
    created = case([node("n1", 4, cpu=4000)], pending=[pending("j", 1, ps=group(1, cpu=8000))])
    assert both(created)["admit"] is None
    assert answer(created, "dragon")["reasons"]["j"]["code"] == "too-large"


def test_a12_the_node_that_holds_most_counts_servers_too():
    # Both nodes hold both servers and at most two workers; n2 holds one worker more.
    nodes = [node("n1", 1), node("n2", 2)]
    created = case(nodes, pending=[pending("j", 4, least=1, ps=group(2))])
    assert outcome(created)["admit"] == {"job": "j", "n_workers": 3, "ps": {"n2": 2}, "workers": {"n1": 1, "n2": 2}}


def test_servers_on_several_nodes():
    nodes = [node("n1", 2, cpu=9000), node("n2", 1, cpu=9000)]
    created = case(nodes, pending=[pending("j", 2, least=1, ps=group(2, cpu=8000))])
    result = outcome(created)["admit"]
    assert result["ps"] == {"n1": 1, "n2": 1}
    assert result["n_workers"] == 2
    assert outcome(created, "dragon-compat")["admit"]["n_workers"] >= 1


def test_a14_limits_only_processes_live_with_their_limits_but_not_as_sharepods():
    r = running("r", ["n1"], ["n1"], worker={"limit_cpu": 8000, "limit_mem": 1024})
    j = pending("j", 1, worker=group(1, cpu=8000))
    plain = case([node("n1", cpu=16000)], running=[r], pending=[j])
    assert outcome(plain, "dragon-compat")["admit"] is None
    assert outcome(plain)["admit"] is None
    # SharePods are not filled in, so the original never saw the eight cores.
    shared = {**plain, "mode": "kubeshare"}
    assert outcome(shared, "dragon-compat")["admit"]["n_workers"] == 1
    assert outcome(shared)["admit"] is None


@pytest.mark.parametrize("taint", ["NoSchedule", "NoExecute"])
def test_a16_tainted_nodes_are_not_used(taint):
    created = case([node("n1", 4, taints=[taint]), node("n2", 1)], pending=[pending("j", 1)])
    assert outcome(created)["admit"]["workers"] == {"n2": 1}
    # The original looked at NoSchedule alone.
    assert outcome(created, "dragon-compat")["admit"]["workers"] == {"n1" if taint == "NoExecute" else "n2": 1}


def test_a_preference_against_a_node_does_not_close_it():
    created = case([node("n1", 4, taints=["PreferNoSchedule"])], pending=[pending("j", 1)])
    assert both(created)["admit"]["workers"] == {"n1": 1}


def test_a19_memory_bounds_as_cores_do():
    created = case([node("n1", 4, mem=4096)], pending=[pending("j", 4, least=1)])
    assert both(created)["admit"]["n_workers"] == 3


def test_pods_that_are_over_or_elsewhere_take_nothing():
    pods = [{"node": "n1", "gpu": 1, "phase": "Succeeded"}, {"node": "gone", "gpu": 1}]
    created = case([node("n1", 1)], pending=[pending("j", 1)], other_pods=pods)
    assert both(created)["admit"]["n_workers"] == 1


def test_sharepods_take_their_device_in_plain_mode_too():
    held = {"node": "n1", "gpuid": "aaa", "gpu_request": "0.5", "gpu_mem": "1073741824"}
    holder = {"node": "n1", "gpu": 1, "kubeshare_internal": True}
    created = case([node("n1", 2)], pending=[pending("j", 2, least=1)], other_sharepods=[held], other_pods=[holder])
    assert outcome(created)["admit"]["n_workers"] == 1  # counted once, not twice
    assert outcome(created, "dragon-compat")["admit"]["n_workers"] == 2


def test_of_several_full_nodes_the_tightest_starts_and_the_last_is_the_tightest_that_will_do():
    created = case([node("n1", 8), node("n2", 4), node("n3", 2)], pending=[pending("j", 10)])
    assert outcome(created)["admit"]["workers"] == {"n1": 8, "n3": 2}


def test_workers_without_a_gpu_leave_gpus_alone():
    created = case([node("n1", 4), node("n2", 0)], pending=[pending("j", 2, worker=group(1))])
    assert outcome(created)["admit"]["workers"] == {"n2": 2}


# --- starving jobs ------------------------------------------------------------------------------------------------


def crowded(**more):
    """One node of four GPUs, all with r, which could do with one."""
    return case([node("n1", 4)], running=[running("r", ["n1"], ["n1"] * 4)], **more)


@pytest.mark.parametrize(("waited", "victims"), [(29.9, {}), (30.0, {"r": {"n1": 1}})])
def test_b01_b02_thirty_seconds_inclusive(waited, victims):
    result = both(crowded(pending=[pending("j", 1, waited=waited)]))
    assert result["scale_down"] == victims
    assert result["last_action_reset"] == (waited >= 30)


@pytest.mark.parametrize("now", [1e3 + 0.1, 1.7e9 + 0.1])
def test_thirty_seconds_at_any_time_of_the_century(now):
    created = {**crowded(pending=[pending("j", 1, waited=30)]), "now": now, "last_action": now - 10}
    assert both(created)["scale_down"] == {"r": {"n1": 1}}


def test_b05_the_chief_and_the_minimum_are_spared():
    created = case([node("n1", 2)], running=[running("r", ["n1"], ["n1", "n1"])], pending=[pending("j", 2, waited=40)])
    result = both(created)
    assert result["scale_down"] == {}
    assert result["admit"] is None


def test_b09_all_or_nothing():
    result = both(
        case(
            [node("n1", 4)],
            running=[running("r", ["n1"], ["n1"] * 4, least=2)],
            pending=[pending("j", 3, waited=31)],
        )
    )
    assert result == {
        "admit": None,
        "bind_priority_pod": None,
        "scale_down": {},
        "scale_up": {},
        "last_action_reset": True,
    }


def test_b11_servers_belong_to_the_gang():
    created = case(
        [node("n1", 2, cpu=8000)],
        running=[running("r", ["n1"], ["n1", "n1"])],
        pending=[pending("j", 1, waited=31, ps=group(1, cpu=8000))],
    )
    assert outcome(created, "dragon-compat")["scale_down"] == {"r": {"n1": 1}}
    assert outcome(created)["scale_down"] == {}


@pytest.mark.parametrize("nodes", [[node("n1", 2)], [node("n1", 2), node("n2", 1, taints=["NoSchedule"])]])
def test_b13_workers_on_nodes_that_cannot_be_used_free_nothing(nodes):
    r = running("r", ["n1"], ["n1", "n1", "n2"])
    created = case(nodes, running=[r], pending=[pending("j", 1, waited=31)])
    assert both(created)["scale_down"] == {"r": {"n1": 1}}


def test_b14_with_a_mark():
    pods = [{"node": "n1", "cpu": 500, "mem": 0, "gpu": 1, "terminating": True}]
    r = running("r", ["n1"], ["n1"] * 3)
    created = case([node("n1", 4)], running=[r], pending=[pending("j", 1, waited=32)], other_pods=pods)
    assert outcome(created)["scale_down"] == {}
    assert answer(created, "dragon")["reasons"]["j"]["code"] == "waits-for-devices"
    # What is leaving is not enough here, so one more goes.
    more = {**created, "pending": [pending("j", 2, waited=32)]}
    assert outcome(more)["scale_down"] == {"r": {"n1": 1}}


def test_b15_a_head_that_nothing_can_help_stops_nobody():
    created = idle(
        [node("n1", 5)],
        running=[running("r", ["n1"], ["n1"] * 3, least=3, most=4)],
        pending=[pending("big", 4, waited=100)],
    )
    blocked = outcome(created, "dragon-compat")
    assert (blocked["scale_up"], blocked["last_action_reset"]) == ({}, True)
    assert outcome(created)["scale_up"] == {"r": {"n_added": 1, "workers": {"n1": 1}}}
    small = {**created, "pending": [*created["pending"], pending("small", 1, waited=1)]}
    assert outcome(small, "dragon-compat")["admit"] is None
    assert admitted(outcome(small)) == ["small"]


def test_b17_once_the_victims_are_gone_the_head_starts():
    created = case(
        [node("n1", 4)], running=[running("r", ["n1"], ["n1"] * 2, most=4)], pending=[pending("j", 2, waited=45)]
    )
    result = both(created)
    assert result["admit"]["n_workers"] == 2
    assert result["scale_down"] == {}


def test_b19_workers_beside_any_server_are_not_lonely():
    r = running("r", ["n1", "n2"], ["n1", "n1", "n2", "n3"])
    created = case([node("n1", 2), node("n2", 1), node("n3", 1)], running=[r], pending=[pending("j", 1, waited=31)])
    assert outcome(created)["scale_down"] == {"r": {"n3": 1}}
    assert outcome(created, "dragon-compat")["scale_down"]["r"] in ({"n1": 1}, {"n2": 1}, {"n3": 1})


def test_minima_that_stand_in_the_way_of_the_usual_order():
    # Stopping workers away from their servers first would use up the spare workers of r on n1, where it does not help.
    r = running("r", ["n2"], ["n2", "n2", "n2", "n1"], least=2)
    wide = pending("j", 1, waited=31, worker=group(1, gpu=2))
    created = case([node("n1", 1), node("n2", 3)], running=[r], pending=[wide])
    assert outcome(created)["scale_down"] == {"r": {"n2": 2}}


def test_a_victim_that_turns_out_needless_stays():
    # The older job's worker is asked first, but the wide one behind it frees enough alone.
    jobs = [running("old", ["n2"], ["n2", "n1"]), running("wide", ["n2"], ["n2", "n1"], worker=group(1, gpu=2))]
    created = case(
        [node("n1", 3), node("n2", 3)],
        running=jobs,
        pending=[pending("j", 1, waited=31, worker=group(1, gpu=2))],
    )
    assert outcome(created, "dragon-compat")["scale_down"] == {"old": {"n1": 1}, "wide": {"n1": 1}}
    assert outcome(created)["scale_down"] == {"wide": {"n1": 1}}


def test_what_starts_now_is_not_there_for_those_who_wait_for_more():
    # Two cores are free and one will be. The first job takes the free ones, so the second needs a victim.
    pods = [{"node": "n1", "cpu": 1000, "terminating": True}]
    created = case(
        [node("n1", 8, cpu=6000)],
        running=[running("r", ["n1"], ["n1"] * 2)],
        pending=[pending("a", 1, waited=50), pending("j", 1, waited=40)],
        other_pods=pods,
    )
    result = outcome(created)
    assert admitted(result) == ["a"]
    assert result["scale_down"] == {"r": {"n1": 1}}


def test_growth_goes_on_where_only_the_minimum_of_another_could_help_the_head():
    created = idle(
        [node("n1", 5)],
        running=[running("r", ["n1"], ["n1"] * 3, least=2, most=4)],
        pending=[pending("j", 4, waited=100)],
    )
    result = outcome(created)
    assert result["scale_down"] == {}
    assert result["scale_up"] == {"r": {"n_added": 1, "workers": {"n1": 1}}}


def test_a_second_starving_job_is_helped_where_the_first_cannot_be():
    created = crowded(pending=[pending("big", 4, waited=60), pending("j", 1, waited=50)])
    assert outcome(created)["scale_down"] == {"r": {"n1": 1}}
    assert outcome(created, "dragon-compat")["scale_down"] == {}


def test_a_worker_that_does_not_live_yet_gave_the_original_what_was_not_there():
    r = running("r", ["n1"], ["n1", "n1"])
    r["placement"]["worker"][1]["live"] = False
    created = case([node("n1", 1)], running=[r], pending=[pending("j", 1, waited=31)])
    assert outcome(created, "dragon-compat")["scale_down"] == {"r": {"n1": 1}}
    assert outcome(created)["scale_down"] == {}


# --- growth -------------------------------------------------------------------------------------------------------


def test_c01_not_before_sixty_seconds():
    created = case([node("n1", 4)], running=[running("r", ["n1"], ["n1"], most=4)], now=1059.9, last_action=1000.0)
    result = both(created)
    assert result["scale_up"] == {}
    assert not result["last_action_reset"]


def test_c03_a_job_that_fits_nowhere_blocks_nobody():
    wide = running("wide", ["n1"], ["n1"], most=2, worker=group(1, gpu=4))
    thin = running("thin", ["n1"], ["n1"], most=3)
    created = idle([node("n1", 7)], running=[wide, thin])
    assert outcome(created, "dragon-compat")["scale_up"] == {}
    assert outcome(created)["scale_up"] == {"thin": {"n_added": 2, "workers": {"n1": 2}}}


def test_c05_the_oldest_is_filled_first():
    jobs = [running("old", ["n1"], ["n1"], most=3), running("young", ["n1"], ["n1"], most=3)]
    assert both(idle([node("n1", 5)], running=jobs))["scale_up"] == {
        "old": {"n_added": 2, "workers": {"n1": 2}},
        "young": {"n_added": 1, "workers": {"n1": 1}},
    }


def test_c07_beside_the_servers_first_then_where_workers_are():
    r = running("r", ["n3"], ["n3", "n2"], most=5)
    created = idle([node("n1", 4), node("n2", 2), node("n3", 2)], running=[r])
    assert outcome(created)["scale_up"] == {"r": {"n_added": 3, "workers": {"n1": 1, "n2": 1, "n3": 1}}}


def test_c09_a_try_counts_though_nobody_can_grow():
    for jobs in ([running("r", ["n1"], ["n1", "n1"], most=4)], []):
        result = both(idle([node("n1", 2)], running=jobs))
        assert result["scale_up"] == {}
        assert result["last_action_reset"]


def test_a_start_puts_growth_off():
    created = idle([node("n1", 4)], running=[running("r", ["n1"], ["n1"], most=4)], pending=[pending("j", 1)])
    result = both(created)
    assert result["admit"]["job"] == "j"
    assert result["scale_up"] == {}


def test_growth_of_shares_names_devices():
    r = running("r", ["n1"], [("n1", "aaa")], most=4, worker=half())
    created = {**idle([node("n1", 2, gpu_mem_mib=8192)], running=[r]), "mode": "kubeshare"}
    assert both(created)["scale_up"] == {
        "r": {"n_added": 3, "workers": {"n1": 3}, "gpus": {"n1": {"aaa": 1, "new": [2]}}}
    }


# --- parts of a GPU -----------------------------------------------------------------------------------------------


def share(gpuid, request, memory="1073741824", at="n1", **more):
    return {"node": at, "gpuid": gpuid, "gpu_request": request, "gpu_mem": memory, **more}


def test_d02_two_thirds_do_not_share():
    worker = group(1, gpu_request="0.6", gpu_mem="1")
    created = shares([node("n1", 2, gpu_mem_mib=8192)], pending=[pending("j", 3, least=1, worker=worker)])
    assert both(created)["admit"]["gpus"] == {"n1": {"new": [1, 1]}}


def test_d04_the_tightest_hole():
    held = [share("aaa", "0.3"), share("bbb", "0.5")]
    created = shares([node("n1", 3, gpu_mem_mib=8192)], pending=[pending("j", 1, worker=half())], other_sharepods=held)
    assert outcome(created)["admit"]["gpus"] == {"n1": {"bbb": 1}}
    assert outcome(created, "dragon-compat")["admit"]["gpus"] in ({"n1": {"bbb": 1}}, {"n1": {"aaa": 1}})


def test_a_hole_on_one_node_before_a_fresh_device_on_another():
    nodes = [node("n1", 1, gpu_mem_mib=8192), node("n2", 4, gpu_mem_mib=8192)]
    created = shares(nodes, pending=[pending("j", 1, worker=half())], other_sharepods=[share("aaa", "0.4", at="n2")])
    assert outcome(created)["admit"]["gpus"] == {"n2": {"aaa": 1}}


def test_the_tightest_hole_of_all_nodes():
    nodes = [node("n1", 1, gpu_mem_mib=8192), node("n2", 4, gpu_mem_mib=8192)]
    held = [share("aaa", "0.3"), share("bbb", "0.5", at="n2")]
    created = shares(nodes, pending=[pending("j", 1, worker=half())], other_sharepods=held)
    assert outcome(created)["admit"]["gpus"] == {"n2": {"bbb": 1}}


def test_holes_for_all_before_the_smallest_hole_and_a_fresh_device():
    nodes = [node("n1", 2, gpu_mem_mib=8192), node("n2", 2, gpu_mem_mib=8192)]
    held = [share("aaa", "0.5"), share("bbb", "0.3", at="n2"), share("ccc", "0.3", at="n2")]
    created = shares(nodes, pending=[pending("j", 2, worker=half())], other_sharepods=held)
    assert outcome(created)["admit"]["gpus"] == {"n2": {"bbb": 1, "ccc": 1}}


def test_d06_a_device_of_unknown_size_is_not_shared_by_those_who_ask_for_memory():
    created = shares([node("n1", 2)], pending=[pending("j", 2, worker=half())])
    assert both(created)["admit"]["gpus"] == {"n1": {"new": [1, 1]}}
    free_of = group(1, gpu_request="0.5")
    assert both({**created, "pending": [pending("j", 2, worker=free_of)]})["admit"]["gpus"] == {"n1": {"new": [2]}}


def test_d08_memory_runs_out_before_compute():
    worker = group(1, gpu_request="0.1", gpu_mem=str(3 << 30))
    created = shares([node("n1", 2, gpu_mem_mib=8192)], pending=[pending("j", 4, worker=worker)])
    assert both(created)["admit"]["gpus"] == {"n1": {"new": [2, 2]}}


def test_d12_memory_without_compute_takes_no_device():
    for request in (None, "0"):
        worker = group(1, gpu_request=request, gpu_mem="1073741824")
        result = both(shares([node("n1", 0, gpu_mem_mib=8192)], pending=[pending("j", 1, worker=worker)]))
        assert result["admit"] == {"job": "j", "n_workers": 1, "ps": {"n1": 1}, "workers": {"n1": 1}}


def test_d14_more_than_one_device_is_no_share():
    worker = group(1, gpu_request="1.5", gpu_mem="1073741824")
    created = shares(
        [node("n1", 2, gpu_mem_mib=8192)], pending=[pending("j", 1, worker=worker), pending("k", 1, ps=None)]
    )
    assert outcome(created, "dragon-compat")["admit"]["gpus"] == {"n1": {"new": [1]}}
    result = answer(created, "dragon")
    assert admitted(result["outcome"]) == ["k"]
    assert result["reasons"]["j"]["code"] == "invalid"


def test_a_whole_device_must_have_the_memory_too():
    worker = group(1, gpu_request="1.0", gpu_mem=str(16 << 30))
    created = shares([node("n1", 2, gpu_mem_mib=8192)], pending=[pending("j", 1, worker=worker)])
    assert outcome(created)["admit"] is None


def test_shares_that_the_original_did_not_count():
    # Without its memory it is not counted, though it is there.
    held = [{"node": "n1", "gpuid": "aaa", "gpu_request": "0.9"}]
    created = shares([node("n1", 1, gpu_mem_mib=8192)], pending=[pending("j", 1, worker=half())], other_sharepods=held)
    assert outcome(created, "dragon-compat")["admit"]["gpus"] == {"n1": {"new": [1]}}
    assert outcome(created)["admit"] is None


# --- serving pods -------------------------------------------------------------------------------------------------


def serving(name, gpu=0, cpu=1000, mem=1024, **more):
    return {"name": name, "cpu": cpu, "mem": mem, "gpu": gpu, **more}


def test_e02_training_makes_room_at_once():
    result = both(crowded(priority_pods=[serving("srv", 1)]))
    assert result["scale_down"] == {"r": {"n1": 1}}
    assert result["bind_priority_pod"] is None
    assert result["last_action_reset"]


@pytest.mark.parametrize("pod", [serving("srv", 5), serving("srv", cpu=64000)])
def test_e04_a_pod_that_never_fits_stops_nobody(pod):
    created = case([node("n1", 4)], pending=[pending("j", 1)], priority_pods=[pod])
    assert outcome(created, "dragon-compat")["admit"] is None
    assert admitted(outcome(created)) == ["j"]


def test_e04_a_pod_that_finds_no_room_stops_nobody_else_either():
    r = running("r", ["n1"], ["n1"] * 3, least=3)
    created = case([node("n1", 4)], running=[r], pending=[pending("j", 1)], priority_pods=[serving("srv", 2)])
    assert admitted(outcome(created)) == ["j"]
    assert outcome(created)["last_action_reset"]


def test_e06_lonely_workers_go_first_for_serving_too():
    r = running("r", ["n1"], ["n1", "n1", "n2"])
    created = case([node("n1", 2), node("n2", 1)], running=[r], priority_pods=[serving("srv", 1)])
    assert both(created)["scale_down"] == {"r": {"n2": 1}}


def test_the_fewest_victims_go():
    # One worker with two devices makes the room for which two workers with one would have to go.
    jobs = [running("thin", ["n1"], ["n1"] * 3), running("wide", ["n2"], ["n2"] * 2, worker=group(1, gpu=2))]
    created = case([node("n1", 3), node("n2", 4)], running=jobs, priority_pods=[serving("srv", 2)])
    assert outcome(created)["scale_down"] == {"wide": {"n2": 1}}


def test_fewer_victims_before_lonely_ones():
    pair = running("pair", ["n2"], [("n2", "aaa"), ("n1", "bbb"), ("n1", "bbb")], worker=half())
    big = group(1, gpu_request="0.7", gpu_mem="1")
    one = running("one", ["n2"], [("n2", "ccc"), ("n2", "ddd")], worker=big)
    full = group(1, gpu_request="0.5", gpu_mem="1")
    rest = running("rest", ["n2"], [("n2", "aaa")], worker=full)
    pod = serving("srv", gpu_request="0.6", gpu_mem="1")
    nodes = [node("n1", 1, gpu_mem_mib=8192), node("n2", 3, gpu_mem_mib=8192)]
    created = shares(nodes, running=[pair, one, rest], priority_pods=[pod])
    assert outcome(created)["scale_down"] == {"one": {"n2": {"ddd": 1}}}


def test_of_equal_jobs_the_oldest_shrinks_for_serving():
    jobs = [running("old", ["n1"], ["n1"] * 2), running("young", ["n2"], ["n2"] * 2)]
    created = case([node("n1", 2), node("n2", 2)], running=jobs, priority_pods=[serving("srv", 1)])
    assert both(created)["scale_down"] == {"old": {"n1": 1}}


def test_e08_all_pods_in_one_decision():
    created = case([node("n1", 4)], priority_pods=[serving("a", 1), serving("b", 1), serving("c", 9)])
    result = outcome(created)
    assert result["bind_priority_pod"] == {"pod": "a", "node": "n1"}
    assert result["binds"] == [{"pod": "a", "node": "n1"}, {"pod": "b", "node": "n1"}]
    assert outcome(created, "dragon-compat")["bind_priority_pod"] == {"pod": "a", "node": "n1"}
    assert "binds" not in outcome(created, "dragon-compat")
    two = crowded(priority_pods=[serving("a", 1), serving("b", 1)])
    assert outcome(two)["scale_down"] == {"r": {"n1": 2}}
    assert outcome(two, "dragon-compat")["scale_down"] == {"r": {"n1": 1}}


def test_e09_bound_once_the_victims_are_gone():
    r = running("r", ["n1"], [("n1", "aaa")] * 2 + [("n1", "bbb")], most=4, worker=half())
    pod = serving("srv", gpu_request="0.5", gpu_mem="1073741824")
    created = shares([node("n1", 2, gpu_mem_mib=8192)], running=[r], priority_pods=[pod])
    assert both(created)["bind_priority_pod"] == {"pod": "srv", "node": "n1", "gpu": "bbb"}


def test_the_room_of_a_pod_that_waits_is_not_given_away():
    # One GPU is free and one will be: both are for the pod.
    r = running("r", ["n1"], ["n1"] * 3)
    created = case([node("n1", 4)], running=[r], pending=[pending("j", 1)], priority_pods=[serving("srv", 2)])
    result = answer(created, "dragon")
    assert result["outcome"]["scale_down"] == {"r": {"n1": 1}}
    assert result["outcome"]["admit"] is None
    assert result["reasons"]["j"]["code"] == "reserved"


def test_whole_jobs_stop_for_serving_only_where_that_is_allowed():
    jobs = [running("old", ["n1"], ["n1"] * 2, least=2), running("young", ["n1"], ["n1"] * 2, least=2)]
    created = case([node("n1", 4)], running=jobs, priority_pods=[serving("srv", 1)])
    assert outcome(created)["scale_down"] == {}
    for preempt in ("preemptible-only", "lowest-priority"):
        result = answer({**created, "options": {"serving_preempt": preempt}}, "dragon")
        assert result["outcome"]["scale_down"] == {"young": {"n1": 2}}
        assert result["reasons"]["young"]["code"] == "preempted"


# --- what is wrong with a case ------------------------------------------------------------------------------------


def faults(created, policy="dragon"):
    with pytest.raises(BadInput) as caught:
        answer(created, policy)
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_of_a_case_with_their_paths():
    created = case([{"name": "n1", "cpu": "many", "mem": 1}], pending=[{"name": "j", "waited": -1}])
    assert faults(created) == [
        "nodes[0].cpu: must be a whole number",
        "pending[0].waited: must be at least 0",
        "pending[0].worker: is required",
    ]


def test_names_may_not_be_given_twice():
    created = case([node("n1"), node("n1")], pending=[pending("j", 1), pending("j", 1)])
    assert faults(created) == ["nodes[1].name: 'n1' is given twice", "pending[1].name: 'j' is given twice"]


def test_a_policy_of_another_kind_and_an_unknown_one():
    assert "does not support cases with pods and nodes" in faults(case([]), "fifo")[0]
    assert "did you mean dragon" in faults(case([]), "dragoon")[0]


def test_options_count_and_unknown_ones_are_named():
    created = crowded(pending=[pending("j", 1, waited=12)], options={"starvation_s": 10})
    assert both(created)["scale_down"] == {"r": {"n1": 1}}
    assert "starvation_s" in faults({**created, "options": {"starve": 1}})[0]
    assert faults({**created, "options": {"starvation_s": -1}}) == ["options.starvation_s: must be above 0"]


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
@pytest.mark.parametrize(
    "bad",
    [
        {"min": None},
        {"max": None},
        {"worker": {"replicas": 1, "gpu_request": "half"}},
        {"worker": {"replicas": 1, "gpu_request": "nan"}},
        {"worker": {"replicas": 1, "gpu_request": "-0.5"}},
        {"worker": {"replicas": 1, "gpu_request": "0.5", "gpu_mem": "1Gi"}},
    ],
)
def test_a_job_that_is_wrong_by_itself_harms_nobody(bad, policy):
    j = pending("j", 1, waited=100, worker=half())
    created = shares([node("n1", 2, gpu_mem_mib=8192)], pending=[{**j, "name": "bad", **bad}, j])
    result = answer(created, policy)
    assert admitted(result["outcome"]) == ["j"]
    assert result["reasons"]["bad"]["code"] == "invalid"


def test_an_empty_case():
    for policy in ("dragon", "dragon-compat"):
        assert outcome({"now": 0.0, "nodes": []}, policy) == {
            "admit": None,
            "bind_priority_pod": None,
            "scale_down": {},
            "scale_up": {},
            "last_action_reset": True,  # the clock starts with the first decision
        }


def test_misspelt_fields_are_faults_and_notes_are_not():
    created = {"now": 0.0, "nodes": [{**node("n"), "gpoos": 2}], "pending": [], "runing": [], "note": "as it is"}
    created["pending"] = [{"name": "j", "mn": 1, "max": 2, "worker": group(2, gpu=1)}]
    with pytest.raises(BadInput) as caught:
        answer(created, None)
    assert [str(fault) for fault in caught.value.faults] == [
        "policy: is required",
        "runing: unknown field; did you mean running?",
        "nodes[0].gpoos: unknown field; did you mean gpus?",
        "pending[0].mn: unknown field; did you mean min?",
    ]
