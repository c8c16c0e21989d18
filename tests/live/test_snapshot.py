"""Snapshots: complete, readable by later versions, safe against malicious bytes."""

from __future__ import annotations

import hashlib
import logging
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.assignment import Assignment
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.commands import Command, Decide
from levada.core.inventory import Inventory
from levada.core.job import Job, Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.plan import OpKind
from levada.engine import Engine, persist, run_policy
from levada.engine.replay import commanded
from levada.engine.state import Intent, State
from levada.engine.state_fields import PARTS, FieldKind
from levada.live import snapshot
from levada.live.snapshot import FORMAT, Unusable, freeze, thaw
from levada.perf import RestartKind
from levada.plugins import find_policy
from levada.policies.catalog import POLICIES
from levada.tables.cluster_state import ClusterState
from levada.tables.job_table import JobTable
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld
from tests.engine.random_walk import NODES, one_step
from tests.engine.random_walk import POLICIES as NAMES

#: Written by the first version with snapshots; every version must read it.
FIRST = Path(__file__).parent / "data" / "snapshot-1"


def at_work(policy: str) -> Engine:
    """An engine with jobs after some decisions."""
    nodes = tuple(Node.of(f"n{index}", {"v100": 2, "k80": 2}) for index in range(3))
    engine = Engine(cluster=Cluster(nodes=nodes), policy=policy, make_policy=find_policy, seed=1)
    jobs = [
        Job(id=f"j{index}", user="ab"[index % 2], submitted=0.0, min=1, max=1 + index % 3, steps=100.0)
        for index in range(6)
    ]
    for event in (ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(jobs)), ev.Tick(at=1000.0)):
        for command in engine.handle(event):
            if isinstance(command, Decide):
                engine.handle(run_policy(command, at=1001.0))
    return engine


@pytest.mark.parametrize("policy", [record.name for record in POLICIES])
def test_every_policy_is_restored_from_a_snapshot(policy: str) -> None:
    engine = at_work(policy)
    again = thaw(freeze(engine))
    jobs = [f"j{index}" for index in range(6)]
    assert [again.explain(job) for job in jobs] == [engine.explain(job) for job in jobs]
    changed = ev.PolicyChanged(at=2000.0, name="fifo", options={})
    commands, expected = again.handle(changed), engine.handle(changed)
    assert [type(command) for command in commands] == [type(command) for command in expected]


def looks(engine: Engine) -> Any:
    """The contents of a snapshot of an engine, as plain values."""
    return msgspec.msgpack.decode(codec.pack(persist.dump(engine)))


@pytest.mark.parametrize("seed", range(6))
def test_a_busy_engine_is_restored_and_behaves_the_same(seed: int) -> None:
    rng = random.Random(seed)
    system = FaultyWorld(policy=rng.choice(NAMES), nodes=NODES)
    for _ in range(120):
        one_step(system, rng)
    engine = system.engine
    state_of(engine).perf.observe_restart(1, RestartKind.RESIZE, 3.0)
    again = thaw(freeze(engine))
    assert looks(again) == looks(engine)
    handle = engine.handle

    def both(*events: ev.Event) -> list[Command]:
        again.handle(*events)
        return handle(*events)

    engine.handle = both  # type: ignore[method-assign]
    for _ in range(60):
        one_step(system, rng)
        assert commanded(again) == commanded(engine)


def changed(data: bytes, change: Callable[[dict[str, Any]], None], form: int = FORMAT) -> bytes:
    """A snapshot with another engine dump."""
    body = data.partition(b"\n")[2][32:]
    plain = msgspec.msgpack.decode(zlib.decompress(body))
    change(plain)
    fresh = zlib.compress(msgspec.msgpack.encode(plain))
    return b"levada snapshot %d 9.9\n" % form + hashlib.sha256(fresh).digest() + fresh


def test_unknown_fields_are_dropped_and_missing_fields_get_defaults(caplog: pytest.LogCaptureFixture) -> None:
    engine = at_work("tiresias")

    def change(plain: dict[str, Any]) -> None:
        plain["unheard_of"] = 1
        plain["plain"]["luck"] = 7
        del plain["plain"]["may_cycle"]
        plain["jobs"]["ints"]["shoe_size"] = plain["jobs"]["ints"].pop("batch")
        del plain["jobs"]["floats"]["weight"]
        plain["options"] |= {"cooldown_s": -1.0, "warmup_s": 3.0}
        del plain["prices"]
        plain["policy_state"] = {"seed": "none"}

    again = thaw(changed(freeze(engine), change))
    assert commanded(again) == commanded(engine)
    table = state_of(again).world.table
    assert set(table.weight[table.order].tolist()) == {1.0}
    assert again.query.options.cooldown_s == 30.0
    assert again.query.policy.name == engine.query.policy.name
    assert "resetting policy" in caplog.text
    assert "cooldown_s" in caplog.text


def test_renumbered_devices_keep_their_jobs() -> None:
    engine = at_work("fifo")

    def turn_around(plain: dict[str, Any]) -> None:
        plain["machines"]["devices"].reverse()
        for plane in ("target", "held"):
            for name, width in (("owner", 4), ("index", 4), ("claimed", 1)):
                kind, shape, raw = plain[plane][name]
                cut = [raw[at : at + width] for at in range(0, len(raw), width)]
                plain[plane][name] = (kind, shape, b"".join(reversed(cut)))

    again = thaw(changed(freeze(engine), turn_around))
    assert commanded(again) == commanded(engine)
    assert any(job.held for job in commanded(again).values())


def test_a_missing_policy_is_reported_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    engine = at_work("fifo")
    again = thaw(changed(freeze(engine), lambda plain: plain.update(policy="gone.py:Mine")))
    assert again.query.policy.name == "elastic-fifo"
    assert "gone.py" in caplog.text
    assert commanded(again) == commanded(engine)


def test_a_policy_file_is_restored_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from levada.policies.fifo import Fifo\nclass Mine(Fifo):\n    name = 'my own'\n")
    engine = at_work("fifo")
    engine.handle(ev.PolicyChanged(at=2000.0, name=f"{mine}:Mine"))
    assert thaw(freeze(engine)).query.policy.name == "my own"


def test_an_older_snapshot_format_is_migrated_stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = at_work("fifo")
    monkeypatch.setattr(snapshot, "FORMAT", FORMAT + 2)

    def rename(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda plain: {new if name == old else name: value for name, value in plain.items()}

    steps = {FORMAT: rename("brains", "notions"), FORMAT + 1: rename("notions", "policy")}
    monkeypatch.setattr(snapshot, "STEPS", {**snapshot.STEPS, **steps})
    old = changed(freeze(engine), lambda plain: plain.update(brains=plain.pop("policy")), FORMAT)
    assert looks(thaw(old)) == looks(engine)


def test_every_snapshot_format_has_a_migration() -> None:
    assert sorted(snapshot.STEPS) == list(range(1, FORMAT))


def test_the_first_snapshot_format_can_be_read() -> None:
    first = thaw(FIRST.read_bytes())
    state = state_of(first)
    table = state.world.table
    jobs = {state.world.ids[number]: job for number, job in commanded(first).items()}
    assert {name: (Phase.label(job.phase), job.generation, len(job.held)) for name, job in jobs.items()} == {
        "whole": ("Running", 1, 2),
        "part": ("Running", 1, 1),
        "served": ("Starting", 1, 3),
        "large": ("Pending", 0, 0),
        "rest": ("Suspended", 0, 0),
    }
    assert state.policy.name == "max_min_fairness"
    assert [queue.name for queue in state.world.queues.values] == ["research", "default"]
    assert table.steps_done[state.world.slot("whole")] == 40.0
    assert [(place.node, place.device) for place in jobs["whole"].held] == [("n0", "0"), ("n0", "1")]


def test_a_snapshot_without_fixed_sizes_and_retries_can_be_read() -> None:
    engine = at_work("fifo")
    table, slot = state_of(engine).world.table, state_of(engine).world.slot("whole")
    table.restarts[slot] = 3

    def as_before(plain: dict[str, Any]) -> None:
        for name in ("own_min", "own_max", "fixed", "below_fixed", "retried", "accepts_loss", "stopped_by"):
            del plain["jobs"]["ints"][name]
        plain["jobs"]["displaced"] = {int(table.number[slot]): 2}

    revived = state_of(thaw(changed(freeze(engine), as_before))).world.table
    assert (revived.own_min[slot], revived.own_max[slot]) == (table.min[slot], table.max[slot])
    assert (revived.retried[slot], revived.restarts[slot], revived.fixed[slot]) == (1, 3, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: data.replace(b"snapshot 1 ", b"snapshot 2 ", 1), "newer Levada"),
        (lambda data: b"levada engine\n" + data, "not a snapshot"),
        (lambda data: b"", "not a snapshot"),
        (lambda data: changed(data, lambda plain: plain.pop("jobs")), "cannot be read"),
    ],
)
def test_an_unusable_snapshot_says_why(change: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        thaw(change(freeze(at_work("fifo"))))


def test_a_snapshot_contains_every_field_of_the_engine() -> None:
    """A field that is added to an engine is added to `engine.state_fields`, and to `persist` unless it is plain or a cache."""
    engine = at_work("fifo")
    state, world = state_of(engine), state_of(engine).world
    assert set(vars(state)) == set(PARTS)
    own_form = {"world", "policy", "policy_named", "policy_options", "policy_state", "options", "in_view", "perf"}
    own_form |= {"reservations", "dependents", "claimed_rows", "leaves", "unmet"}
    # Restored from the constructor, or learned before the dump.
    needless = {"make_policy", "lessons", "pauses", "over"}
    assert {
        name for name, part in PARTS.items() if part not in (FieldKind.VALUE, FieldKind.CACHE)
    } == own_form | needless
    assert isinstance(state, State)
    stored = {"inventory", "table", "queues", "workloads", "entities", "queue_names", "tags", "ids", "numbers"}
    stored |= {"next_number", "target", "held", "foreign", "prices"}
    assert set(vars(world)) == stored | {"_ranks_of"}
    assert isinstance(world, ClusterState)
    assert set(Assignment.__slots__) == {"devices", "nodes", "claimed", "_rows"}
    columns = {*INT_COLUMNS, *FLOAT_COLUMNS}
    lines = {"ints", "floats", "preference", "order", "_numbers", "_slots", "_lines", "_slot_of", "_free"}
    assert set(vars(JobTable())) == columns | lines
    dumped = {
        "types",
        "nodes",
        "node_values",
        "_absent",
        "lost",
        "cordoned",
        "cordoned_by_operator",
        "draining",
        "classes",
    }
    others = {f"{by}_{what}" for by in ("foreign", "reserved") for what in ("cpu", "memory", "gpu_memory")}
    laid_out = {"cpu", "memory", "zone", "rack", "_devices", "node_of", "type_of", "gpu_memory", "absent", "healthy"}
    laid_out |= {"pool_start", "pool_stop", "pool_node", "pool_type", "_allocatable", "eligible", "_bounds"}
    assert set(vars(Inventory())) == dumped | others | {"foreign", "reserved"} | laid_out


def test_stored_enum_numbers_never_change() -> None:
    """They are stored in snapshots and logs: a change needs a new snapshot format and log schema."""
    assert [Phase.name(number) for number in range(9)] == [
        *("PENDING", "STARTING", "RUNNING", "RESIZING", "STOPPING"),
        *("SUSPENDED", "SUCCEEDED", "FAILED", "CANCELLED"),
    ]
    assert [OpKind.name(number) for number in range(4)] == ["NONE", "START", "RESIZE", "STOP"]
    assert [Intent.name(number) for number in range(5)] == ["WAIT", "SUSPEND", "CANCEL", "FAIL", "TIME_LIMIT"]
