"""The fixed DRAGON over time: waiting, shrinking, growth, and its guarantees."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core.assignment import DEVICE, INDEX, NODE
from levada.core.job import ParameterServers, Preemptible, Tags
from levada.core.reasons import Code
from levada.errors import BadInput
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.free import free
from levada.policies.dragon.gang import lay_out
from levada.policies.dragon.policy import Dragon
from levada.policies.dragon.preemption import SpareWorkers, victims_for
from levada.policies.dragon.state import DragonState
from tests.policies.dragon_harness import PERF, Story, job, node


def reason(story: Story, name: str) -> int:
    row = story.last.number.tolist().index(story.world.numbers[name])
    return int(story.last.reason[row])


# --- waiting and starting -----------------------------------------------------------------------------------------


def test_a_head_waits_starves_and_starts():
    story = Story(node("n1", 4))
    story.submit(job("r", 0.0, 1, 4, desired=4))
    story.decide(0.0)
    story.submit(job("j", 10.0, 2))
    result = story.decide(10.0)
    assert (story.sizes(), reason(story, "j")) == ({"r": 4, "j": 0}, Code.CAPACITY)
    assert result.wake_at == 40.0  # when it has starved
    story.decide(40.0, released=False)
    assert story.sizes() == {"r": 2, "j": 0}
    assert reason(story, "j") == Code.WAITS_FOR_DEVICES
    # The victims are still there: no other worker leaves, and no other job gets their room.
    story.submit(job("k", 41.0, 1))
    story.decide(41.0, released=False)
    assert story.sizes() == {"r": 2, "j": 0, "k": 0}
    assert reason(story, "k") == Code.CAPACITY
    story.world.held = story.world.target.copy()
    story.decide(42.0)
    assert story.sizes() == {"r": 2, "j": 2, "k": 0}


def test_the_chief_is_beside_the_servers():
    story = Story(node("n1", 1, cpu=16000), node("n2", 4, cpu=4000))
    story.submit(job("j", 0.0, 4, servers=ParameterServers(replicas=1, cpu=8000)))
    story.decide(0.0)
    rows = story.world.places(story.world.target, story.world.slot("j"))
    assert rows[NODE][rows[INDEX] == 0].tolist() == rows[NODE][rows[INDEX] == -1].tolist() == [0]


def test_growth_waits_for_quiet_and_stops_at_the_maximum():
    story = Story(node("n1", 8))
    story.submit(job("r", 0.0, 1, 5))
    assert story.decide(0.0).wake_at == 60.0
    story.decide(59.0)
    assert story.sizes() == {"r": 1}
    story.decide(60.0)
    assert story.sizes() == {"r": 5}
    assert story.decide(200.0).wake_at == np.inf


def test_sizes_go_in_steps():
    story = Story(node("n1", 8))
    story.submit(job("r", 0.0, 2, 8, desired=7, step=3))
    story.decide(0.0)
    assert story.sizes() == {"r": 5}
    story.decide(60.0)
    assert story.sizes() == {"r": 8}
    story.submit(job("j", 60.0, 1))
    story.decide(90.0)
    assert story.sizes() == {"r": 5, "j": 0}


def test_a_job_keeps_its_type_and_others_take_the_first_that_has_room():
    story = Story(node("n1", 2), node("n2", 0))
    story.world.put_nodes((node("n2", 0).__class__.of("n2", {"k80": 4}, cpu=16000, memory=65536),))
    story.submit(job("a", 0.0, 2, 4, gpu_types=("v100", "k80")), job("b", 1.0, 2, 2, gpu_types=("v100", "k80")))
    story.decide(1.0)
    types = story.world.inventory.types
    assert [types[int(t)] for t in story.last.type] == ["v100", "k80"]
    story.decide(100.0)
    assert story.sizes() == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"least": 9}, Code.TOO_LARGE),
        ({"gpu_types": ("b200",)}, Code.UNKNOWN_TYPE),
        ({"milli": 2000}, Code.FRAGMENTED),
        ({"least": 3}, Code.CAPACITY),
        ({"milli": 500, "gpu_memory": 9000}, Code.TOO_LARGE),
    ],
)
def test_reasons_are_true(fields, expected):
    story = Story(node("n1", 3), node("n2", 3))
    story.submit(job("r", 0.0, 2, 2, milli=2000))
    story.decide(0.0)
    story.submit(job("j", 1.0, fields.pop("least", 1), 9, **fields))
    story.decide(1.0)
    assert reason(story, "j") == expected


def test_tags_keep_shares_apart():
    story = Story(node("n1", 2))
    apart = Tags(anti_affinity="loud")
    story.submit(job("a", 0.0, 2, milli=300, tags=apart), job("b", 1.0, 1, milli=300, tags=apart))
    story.submit(job("c", 2.0, 1, milli=300), job("d", 3.0, 1, milli=300, tags=Tags(exclusion="mine")))
    story.decide(3.0)
    assert story.sizes() == {"a": 2, "b": 0, "c": 1, "d": 0}
    rows = story.world.places(story.world.target, story.world.slot("a"))
    assert sorted(rows[DEVICE][rows[INDEX] >= 0].tolist()) == [0, 1]


def test_a_running_job_that_lost_workers_is_brought_back_to_its_minimum():
    story = Story(node("n1", 2), node("n2", 2))
    story.submit(job("r", 0.0, 3, 3))
    story.decide(0.0)
    world, slot = story.world, story.world.slot("r")
    rows = world.places(world.target, slot)
    world.clear_workers(world.target, slot)
    world.put_workers(world.target, slot, rows[:, rows[INDEX] != 2])
    world.held = world.target.copy()
    world.table.count[slot] = 2
    story.decide(1.0)
    assert story.sizes() == {"r": 3}


def test_options_are_checked():
    with pytest.raises(BadInput, match="serving_preempt"):
        Dragon(serving_preempt="always")
    with pytest.raises(BadInput, match="idle_s"):
        Dragon(idle_s=0)


# --- serving ------------------------------------------------------------------------------------------------------


def crowded(**options: object) -> Story:
    """r has all four GPUs of n1 and could do with one."""
    story = Story(node("n1", 4), policy=Dragon(**options))
    story.submit(job("r", 0.0, 1, 4, desired=4))
    story.decide(0.0)
    return story


def test_room_is_made_kept_and_given_to_the_pod():
    story = crowded()
    story.serve("srv", milli=2000, cpu=1000)
    result = story.decide(1.0, released=False)
    assert story.sizes() == {"r": 2}
    assert result.binds == ()
    [reservation] = result.reservations
    assert (reservation.id, reservation.cpu, len(reservation.devices), reservation.expires) == ("srv", 1000, 2, 61.0)
    # The victims are still there: no more of them leave, and no job starts on reserved room.
    story.submit(job("j", 2.0, 1))
    result = story.decide(2.0, released=False)
    assert (story.sizes(), result.binds) == ({"r": 2, "j": 0}, ())
    assert reason(story, "j") == Code.CAPACITY
    story.world.held = story.world.target.copy()
    [bind] = story.decide(3.0).binds
    assert bind.pod == "srv"
    assert story.sizes() == {"r": 2, "j": 0}


def test_training_grows_back_after_the_hold_down():
    story = crowded(idle_s=1000)
    story.serve("srv", milli=2000)
    story.decide(1.0)
    story.decide(2.0)
    assert story.state.owed == {0: 2}
    story.decide(10.0)
    story.gone("srv")
    result = story.decide(20.0)
    assert story.sizes() == {"r": 2}
    assert (reason(story, "r"), result.wake_at) == (Code.HELD_DOWN, 80.0)
    # New demand, and its end, restart the hold-down.
    story.serve("srv2", milli=1000)
    story.decide(70.0)
    assert story.sizes() == {"r": 2}
    story.gone("srv2")
    assert story.decide(75.0).wake_at == 135.0
    story.decide(134.0)
    assert story.sizes() == {"r": 2}
    story.decide(135.0)
    assert story.sizes() == {"r": 4}
    assert story.state.owed == {}


def test_jobs_that_wait_come_before_those_that_grow_back():
    story = crowded()
    story.serve("srv", milli=2000)
    story.decide(1.0)
    story.decide(2.0)
    story.submit(job("j", 3.0, 1))
    story.gone("srv")
    story.decide(4.0)
    assert story.sizes() == {"r": 2, "j": 1}
    story.decide(64.0)
    assert story.sizes() == {"r": 3, "j": 1}


def test_the_more_important_pod_comes_first():
    story = crowded()
    story.serve("low", milli=3000, priority=0)
    story.serve("high", milli=2000, priority=5, created=9.0)
    story.decide(1.0)
    assert [reservation.id for reservation in story.last.reservations] == ["high"]
    assert story.sizes() == {"r": 2}


def test_room_that_nobody_takes_goes_back():
    story = crowded()
    story.serve("srv", milli=1000)
    story.decide(1.0)
    story._bind = lambda pod, where: None  # its own scheduler never binds it
    assert len(story.decide(2.0).binds) == 1
    assert len(story.decide(61.0).binds) == 1
    story.submit(job("j", 61.0, 1))
    result = story.decide(62.0)
    assert result.binds == result.reservations == ()
    story.decide(63.0)
    assert story.sizes() == {"r": 3, "j": 1}


def test_room_that_was_kept_stays_closed_until_the_decision_that_opens_it_counts():
    story = Story(node("n1", 2), node("n2", 2))
    story.submit(job("r", 0.0, 1, 2, desired=2), job("s", 0.0, 2, 2))
    story.decide(0.0)
    story.serve("srv", milli=1000)
    story.decide(1.0)
    assert [reservation.node for reservation in story.last.reservations] == [0]
    # The pod comes back larger, and n2 has become free: it goes there, and n1 is not its any more.
    story.finish("s")
    story.serve("srv", milli=2000)
    story.submit(job("j", 2.0, 1))
    [bind] = story.decide(2.0).binds
    assert bind.node == 1
    assert story.sizes()["j"] == 0
    story.decide(3.0)
    assert story.where("j") == {"n1": 1}


def test_a_pod_that_is_gone_before_its_room_is_ready_releases_it():
    story = crowded()
    story.serve("srv", milli=1000)
    story.decide(1.0, released=False)
    story.gone("srv")
    story.world.held = story.world.target.copy()
    story.submit(job("j", 2.0, 1))
    assert story.decide(2.0).reservations == ()
    assert story.sizes() == {"r": 3, "j": 1}


def test_shares_must_come_free_on_one_device():
    story = Story(node("n1", 2))
    story.submit(job("r", 0.0, 1, 4, desired=4, milli=500, gpu_memory=3000))
    story.decide(0.0)
    story.serve("srv", milli=600, gpu_memory=5000)
    story.decide(1.0)
    rows = story.world.places(story.world.target, story.world.slot("r"))
    assert story.sizes() == {"r": 2}
    assert len(set(rows[DEVICE][rows[INDEX] >= 0].tolist())) == 1


def test_only_preemptible_jobs_stop():
    story = Story(node("n1", 2), policy=Dragon(serving_preempt="preemptible-only"))
    story.submit(job("a", 0.0, 1), job("b", 1.0, 1, preemptible=Preemptible.AUTO))
    story.decide(1.0)
    story.serve("srv", milli=1000)
    story.decide(2.0)
    assert story.sizes() == {"a": 0, "b": 1}
    assert reason(story, "a") == Code.PREEMPTED
    story.serve("srv2", milli=1000)
    story.decide(3.0)
    assert story.sizes()["b"] == 1


# --- state --------------------------------------------------------------------------------------------------------


def test_state_survives_a_round_trip():
    story = crowded()
    story.serve("srv", milli=2000)
    story.decide(1.0)
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(story.state), type=DragonState) == story.state


def test_a_head_that_cannot_be_helped_sets_the_clock_back_once():
    story = Story(node("n1", 4))
    story.submit(job("r", 0.0, 3, 4, desired=3))
    story.decide(0.0)
    story.submit(job("big", 1.0, 4))
    for now in (31.0, 40.0, 59.0):
        story.decide(now)
        assert story.state.last_action == 31.0
    story.decide(91.0)
    assert story.sizes() == {"r": 4, "big": 0}


# --- laws ---------------------------------------------------------------------------------------------------------

SHAPES = st.fixed_dictionaries(
    {
        "least": st.integers(1, 3),
        "room": st.integers(0, 4),
        "milli": st.sampled_from([0, 500, 250, 1000, 1000, 2000]),
        "gpu_memory": st.sampled_from([0, 3000]),
        "cpu": st.sampled_from([0, 1000, 3000]),
        "servers": st.integers(0, 2),
        "step": st.sampled_from([1, 1, 2]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), SHAPES),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("serve"), st.sampled_from([(0, 2000), (1000, 0), (2000, 500), (500, 0)])),
        st.tuples(st.just("gone"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 29.0, 31.0, 61.0])),
        st.tuples(st.just("slow"), st.just(0)),
    ),
    min_size=1,
    max_size=14,
)
NODES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([4000, 8000, 16000])), min_size=1, max_size=4)


def shaped(name: str, at: float, shape: dict[str, int]):
    least, step = shape["least"], shape["step"]
    most = least + shape["room"] // step * step
    servers = ParameterServers(replicas=shape["servers"], cpu=1000, memory=512) if shape["servers"] else None
    return job(
        name,
        at,
        least,
        most,
        desired=least + (most - least) // 2,
        step=step,
        milli=shape["milli"],
        gpu_memory=shape["gpu_memory"],
        cpu=shape["cpu"],
        servers=servers,
    )


@given(NODES, STEPS)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_rules_hold(nodes, steps):
    story = Story(*(node(f"n{i}", gpus, cpu=cpu) for i, (gpus, cpu) in enumerate(nodes)))
    now, released = 0.0, True
    for number, (what, value) in enumerate(steps):
        waiting = [name for name, pod in story.world.foreign.items() if pod.serving]
        match what:
            case "submit":
                story.submit(shaped(f"j{number}", now, value))
            case "finish" if story.world.numbers:
                story.finish(sorted(story.world.numbers)[value % len(story.world.numbers)])
            case "serve":
                story.serve(f"srv{number}", milli=value[0], cpu=value[1], created=now)
            case "gone" if waiting:
                story.gone(waiting[value % len(waiting)])
            case "wait":
                now += value
            case "slow":
                released = not released
        before = story.sizes()
        critical = critical_places(story)
        story.decide(now, released=released)  # asserts the rules
        twin = Dragon().decide(story.world.snapshot(now), PERF, story.state)
        assert decided(twin) == decided(Dragon().decide(story.world.snapshot(now).detached(), PERF, story.state))
        after = story.sizes()
        for name, workers in after.items():
            slot = story.world.slot(name)
            least, most = int(story.world.table.min[slot]), int(story.world.table.max[slot])
            assert workers == 0 or least <= workers <= most
            assert workers > 0 or before[name] == 0, "a running job was stopped"
        now_critical = critical_places(story)
        assert {name: now_critical[name] for name in critical} == critical


def critical_places(story: Story) -> dict[str, list[tuple[int, int]]]:
    """(index, node) of servers and first workers by job that runs."""
    result = {}
    for name, workers in story.sizes().items():
        if workers:
            rows = story.world.places(story.world.target, story.world.slot(name))
            rows = rows[:, rows[INDEX] <= 0]
            result[name] = sorted(set(zip(rows[INDEX].tolist(), rows[NODE].tolist(), strict=True)))
    return result


def decided(answer):
    decision, state = answer
    columns = (decision.type, decision.count, decision.reason, decision.evidence, decision.places, decision.placed)
    return [column.tolist() for column in columns], decision.binds, decision.reservations, decision.wake_at, state


@given(NODES, st.lists(SHAPES, min_size=1, max_size=5), SHAPES)
@settings(max_examples=150, deadline=None)
def test_no_worker_leaves_in_vain(nodes, shapes, head):
    story = Story(*(node(f"n{i}", gpus, cpu=cpu) for i, (gpus, cpu) in enumerate(nodes)))
    story.submit(*(shaped(f"r{i}", 0.0, shape) for i, shape in enumerate(shapes)))
    story.decide(0.0)
    story.decide(100.0)
    story.submit(shaped("head", 100.0, head))
    snap = story.world.snapshot(131.0)
    cycle = Cycle(snap, free(snap))
    row = len(snap) - 1
    gang, least = cycle.gang(row), cycle.min[row]
    if lay_out(cycle.now, gang, least, least).workers >= least:
        return
    victims = victims_for(SpareWorkers(cycle, np.arange(len(snap))), gang, least)
    if victims is None:
        return

    def fits(members):
        capacity, leaving = cycle.soon.copy(), np.array(members, np.int64)
        cycle.processes.release(capacity, leaving)
        # There must be room on nodes, and within what the jobs in view may have together.
        return lay_out(capacity, cycle.within_budget(gang, least, leaving), least, least).workers >= least

    assert fits(victims)
    job_of = cycle.processes.job
    for one in victims.tolist():
        together = int(snap.jobs.step[job_of[one]])
        if together == 1:
            assert not fits([other for other in victims.tolist() if other != one])
    assert (cycle.processes.index[victims] > 0).all()
    left = cycle.count - np.bincount(job_of[victims], minlength=len(snap))
    assert (left[job_of[victims]] >= snap.jobs.min[job_of[victims]]).all()


@given(NODES, st.lists(SHAPES, min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_an_infeasible_job_changes_nothing_for_the_others(nodes, shapes):
    def sizes(*more):
        story = Story(*(node(f"n{i}", gpus, cpu=cpu) for i, (gpus, cpu) in enumerate(nodes)))
        story.submit(*more, *(shaped(f"j{i}", float(i), shape) for i, shape in enumerate(shapes)))
        for now in (10.0, 45.0, 120.0):
            story.decide(now)
        result = story.sizes()
        result.pop("huge", None)
        return result

    assert sizes() == sizes(job("huge", 0.0, 50, milli=1000))
