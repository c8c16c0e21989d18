"""Queues around a policy: shares, lending, reclaim, reasons, state, node caps."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np

from levada.core.codec import _decode_column, _encode_column
from levada.core.decision import Decision
from levada.core.job import Job
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.perf.table_model import TableModel
from levada.policies import registry
from levada.policies.attained_service import Attained
from levada.policies.elastic_fifo import ElasticFifo
from levada.policies.fifo import Fifo
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, AnyPolicy, Cadence, Guards, Needs
from levada.policies.queued import QueuedState, queued
from levada.policies.tiresias import Tiresias
from levada.tables.cluster_state import ClusterState
from levada.tables.snapshot import Snapshot
from tests.builders import cluster, job, world

LINEAR = TableModel([])


def decide(policy: AnyPolicy, there: ClusterState, slots: Any = None) -> tuple[dict[str, int], dict[str, Code]]:
    """Workers and reasons by job."""
    wrapped = queued(policy)
    result, _ = wrapped.decide(there.snapshot(1000.0, slots), LINEAR, wrapped.initial(0))
    names = [there.ids[int(number)] for number in result.number]
    sizes = dict(zip(names, result.count.tolist(), strict=True))
    return sizes, {name: int(code) for name, code in zip(names, result.reason, strict=True)}


def runs(there: ClusterState, name: str, workers: int, kind: str = "v100") -> None:
    slot = there.slot(name)
    there.table.count[slot] = there.table.observed[slot] = workers
    there.table.type[slot] = there.inventory.types.find(kind)


TEAMS = (Queue(name="a", guaranteed={"v100": 4}), Queue(name="b", guaranteed={"v100": 4}))


def test_without_queues_the_policy_stands_alone() -> None:
    there = world(cluster(8), job("x", min=1, max=5), job("y", min=1, max=5))
    assert decide(ElasticFifo(), there)[0] == {"x": 4, "y": 4}


def test_each_queue_has_its_guarantee() -> None:
    there = world(
        cluster(8),
        *[job(f"a{i}", float(i), queue="a") for i in range(9)],
        *[job(f"b{i}", 10.0 + i, queue="b") for i in range(9)],
        queues=TEAMS,
    )
    sizes, reasons = decide(Fifo(), there)
    assert [name for name, size in sizes.items() if size] == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    assert reasons["a4"] == reasons["b4"] == Code.QUEUE_SHARE


def test_what_a_queue_leaves_is_lent() -> None:
    there = world(cluster(8), job("a", min=1, max=9, queue="a"), job("b", 1.0, min=1, max=2, queue="b"), queues=TEAMS)
    assert decide(ElasticFifo(), there)[0] == {"a": 6, "b": 2}


def test_a_borrower_shrinks_to_its_minimums_before_any_of_its_jobs_is_stopped() -> None:
    borrowers = [job(f"a{i}", float(i), min=1, max=4, queue="a") for i in range(2)]
    there = world(cluster(8), *borrowers, queues=(Queue(name="a"), Queue(name="b", guaranteed={"v100": 7})))
    assert decide(ElasticFifo(), there)[0] == {"a0": 4, "a1": 4}
    runs(there, "a0", 4)
    runs(there, "a1", 4)
    seen = []
    for i in range(4):
        there.add_jobs(_batch(job(f"b{i}", 10.0 + i, min=2, max=2, queue="b")))
        sizes = decide(ElasticFifo(), there)[0]
        seen.append([sizes["a0"], sizes["a1"]])
    assert seen == [[3, 3], [2, 2], [1, 1], [1, 1]]
    there.add_jobs(_batch(job("b4", 20.0, queue="b")))
    sizes = decide(ElasticFifo(), there)[0]
    assert [sizes["a0"], sizes["a1"], sizes["b4"]] == [1, 0, 1]


def _batch(*created: Job) -> Any:
    from levada.core.batch import JobBatch

    return JobBatch.of(created)


def test_a_share_too_small_for_a_job_is_topped_up_from_what_is_left() -> None:
    there = world(
        cluster(8),
        job("wide", min=5, max=5, queue="a"),
        job("b", 1.0, min=3, max=3, queue="b"),
        queues=(Queue(name="a"), Queue(name="b")),
    )
    assert decide(Fifo(), there)[0] == {"wide": 5, "b": 3}


def test_a_limit_holds_though_the_rest_is_idle_and_is_told() -> None:
    there = world(
        cluster(8),
        job("a0", min=2, max=2, queue="a"),
        job("a1", 1.0, min=2, max=2, queue="a"),
        queues=(Queue(name="a", limit={"v100": 3}),),
    )
    assert decide(ElasticFifo(), there) == ({"a0": 2, "a1": 0}, {"a0": Code.RUNS, "a1": Code.QUEUE_LIMIT})


def test_the_limit_of_a_parent_holds_for_its_children_together() -> None:
    there = world(
        cluster(8),
        *[job(name, min=1, max=8, queue=name) for name in ("vision", "text", "guests")],
        queues=(
            Queue(name="lab", limit={"v100": 4}),
            Queue(name="vision", parent="lab", weight=3.0),
            Queue(name="text", parent="lab"),
            Queue(name="guests", weight=0.5),
        ),
    )
    assert decide(ElasticFifo(), there)[0] == {"vision": 3, "text": 1, "guests": 4}


def test_a_queue_that_may_not_borrow_stays_within_its_guarantee() -> None:
    there = world(
        cluster(8),
        job("a0", min=1, max=8, queue="a"),
        job("a1", min=2, max=8, queue="a"),
        queues=(Queue(name="a", guaranteed={"v100": 2}, borrow=False),),
    )
    assert decide(ElasticFifo(), there) == ({"a0": 2, "a1": 0}, {"a0": Code.RUNS, "a1": Code.QUEUE_SHARE})


def test_jobs_out_of_view_count_against_the_limit() -> None:
    there = world(
        cluster(8),
        job("seen", min=1, max=8, queue="a"),
        job("hidden", min=3, max=3, queue="a"),
        queues=(Queue(name="a", limit={"v100": 5}),),
    )
    runs(there, "hidden", 3)
    assert decide(ElasticFifo(), there, np.array([there.slot("seen")]))[0] == {"seen": 2}


def test_a_job_goes_to_the_type_its_queue_may_use() -> None:
    machines = cluster({"a100": 4, "v100": 4})
    created = job("x", min=2, max=2, gpu_types=("a100", "v100"), queue="poor")
    there = world(machines, created, queues=(Queue(name="poor", limit={"a100": 1}),))
    wrapped = queued(Fifo())
    result, _ = wrapped.decide(there.snapshot(0.0), LINEAR, wrapped.initial(0))
    assert result.allocation(0, tuple(there.inventory.types)) == {"v100": 2}


def test_elastic_jobs_of_queues_spread_over_types_as_far_as_their_queues_may() -> None:
    jobs = [job(f"{queue}{at}", float(at), max=4, queue=queue) for queue in "ab" for at in (0, 1)]
    bounds = (Queue(name="a"), Queue(name="b", limit={"a100": 1, "v100": 2}))
    wrapped = queued(ElasticFifo())
    there = world(cluster({"a100": 6, "v100": 6}), *jobs, queues=bounds)
    result, _ = wrapped.decide(there.snapshot(0.0), LINEAR, wrapped.initial(0))
    names = tuple(there.inventory.types)
    got = {there.ids[int(number)]: result.allocation(row, names) for row, number in enumerate(result.number)}
    assert got == {"a0": {"a100": 4}, "b0": {"v100": 2}, "a1": {"v100": 4}, "b1": {"a100": 1}}
    rigid = queued(Fifo()).decide(there.snapshot(0.0), LINEAR, queued(Fifo()).initial(0))[0]
    assert [names[int(kind)] for kind in rigid.type] == ["a100", "v100", "v100", "a100"]


def test_a_job_that_fits_nowhere_waits_where_its_queue_has_a_guarantee() -> None:
    machines = cluster({"a100": 4, "v100": 4})
    old = [job(f"o{kind}", min=4, max=4, gpu_types=(kind,), queue="b") for kind in ("a100", "v100")]
    new = job("n", 1.0, min=2, max=2, gpu_types=("a100", "v100"), queue="a")
    there = world(machines, *old, new, queues=(Queue(name="a", guaranteed={"v100": 2}), Queue(name="b")))
    runs(there, "oa100", 4, "a100")
    runs(there, "ov100", 4)
    assert decide(Fifo(), there)[0] == {"oa100": 4, "ov100": 0, "n": 2}


def test_each_queue_keeps_its_own_state_by_name() -> None:
    there = world(cluster(4), job("x", min=2, queue="a"), job("y", min=2, queue="b"), queues=TEAMS)
    for name in ("x", "y"):
        runs(there, name, 2)
        there.table.gpu_seconds[there.slot(name)] = 4000.0
    there.table.since[there.table.order] = 1000.0
    wrapped = queued(Tiresias())
    _, state = wrapped.decide(there.snapshot(1000.0), LINEAR, wrapped.initial(3))
    assert state.seed == 3
    assert {name: inner.number.tolist() for name, inner in state.inner.items()} == {"a": [0], "b": [1]}
    assert [inner.queue.tolist() for inner in state.inner.values()] == [[1], [1]]
    data = msgspec.msgpack.Encoder(enc_hook=_encode_column).encode(state)
    back = msgspec.msgpack.Decoder(QueuedState[Attained], dec_hook=_decode_column).decode(data)
    assert back.inner["b"].queue.tolist() == [1]
    # A queue that is gone is forgotten.
    there.queues = type(there.queues)((TEAMS[0],))
    there.table.queue[there.slot("y")] = there.queues.names.find("default")
    _, state = wrapped.decide(there.snapshot(1000.0), LINEAR, state)
    assert sorted(state.inner) == ["a", "default"]


def test_the_earliest_wake_up_counts() -> None:
    there = world(cluster(4), job("x", min=2, queue="a"), job("y", min=2, queue="b"), queues=TEAMS)
    for name, service in (("x", 3000.0), ("y", 3500.0)):
        runs(there, name, 2)
        there.table.gpu_seconds[there.slot(name)] = service
    there.table.since[there.table.order] = 1000.0
    wrapped = queued(Tiresias())
    assert wrapped.decide(there.snapshot(1000.0), LINEAR, wrapped.initial(0))[0].wake_at == 1050.0


def test_a_wrapped_policy_looks_like_the_one_inside() -> None:
    for name in ("fifo", "afs-l"):
        inside = registry.make(name)
        outside = queued(inside)
        assert (outside.name, outside.needs, outside.cadence, outside.guards) == (
            inside.name,
            inside.needs,
            inside.cadence,
            inside.guards,
        )


# --- policies that decide by node ----------------------------------------------------------------------------------


class Fixed:
    """Gives what it was told to, device by device from 0 on."""

    name: ClassVar[str] = "fixed"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    by_node: ClassVar[bool] = True

    def __init__(self, *counts: int) -> None:
        self.counts = np.array(counts)

    def initial(self, seed: int) -> None:
        """Nothing to remember."""

    def decide(self, snap: Snapshot, perf: Any, state: None) -> tuple[Decision, None]:
        """The same as ever."""
        row = np.arange(len(snap)).repeat(self.counts)
        start = self.counts.cumsum() - self.counts
        index = np.arange(len(row)) - start[row]
        device = np.arange(len(row))
        same = np.zeros(len(row), np.int64)
        result = Decision(
            number=snap.jobs.number,
            type=np.where(self.counts > 0, 1, -1),
            count=self.counts,
            reason=np.where(self.counts > 0, int(Code.RUNS), int(Code.CAPACITY)),
            evidence=np.zeros(len(snap), np.int64),
            places=np.array([row, index, same, device, same + 1000, same]),
            placed=self.counts.nonzero()[0],
        )
        return result, None


def by_node(there: ClusterState, *counts: int) -> Decision:
    wrapped = queued(Fixed(*counts))
    return wrapped.decide(there.snapshot(0.0), LINEAR, wrapped.initial(0))[0]


def three_jobs(limit: float) -> ClusterState:
    created = [job(f"j{i}", float(i), min=1, max=4, queue="a") for i in range(3)]
    return world(cluster(9), *created, queues=(Queue(name="a", limit={"v100": limit}),))


def test_by_node_within_the_limit_nothing_changes() -> None:
    result = by_node(three_jobs(6), 2, 2, 2)
    assert result.count.tolist() == [2, 2, 2]
    assert result.placed is not None
    assert result.placed.tolist() == [0, 1, 2]


def test_by_node_the_newest_start_is_dropped_with_its_places() -> None:
    result = by_node(three_jobs(5), 2, 2, 2)
    assert result.count.tolist() == [2, 2, 0]
    assert result.type.tolist() == [1, 1, -1]
    assert result.reason.tolist() == [Code.RUNS, Code.RUNS, Code.QUEUE_LIMIT]
    assert result.placed is not None
    assert result.placed.tolist() == [0, 1]
    assert result.places is not None
    assert result.places[0].tolist() == [0, 0, 1, 1]


def test_by_node_a_start_gives_way_before_growth_and_growth_before_what_runs() -> None:
    there = three_jobs(4)
    runs(there, "j1", 1)
    runs(there, "j2", 1)
    slot = there.slot("j2")
    there.target.owner[4] = slot
    there.target.owner[2] = there.slot("j1")
    assert by_node(there, 2, 2, 2).count.tolist() == [0, 2, 2]
    there.queues = type(there.queues)((Queue(name="a", limit={"v100": 3}),))
    result = by_node(there, 2, 2, 2)
    assert result.count.tolist() == [0, 2, 1]
    assert result.placed is not None
    assert result.placed.tolist() == [1]
    # Its device is given to another job, so it cannot stay: it stops.
    there.target.owner[4] = -1
    there.target.owner[0] = slot
    assert by_node(there, 2, 2, 2).count.tolist() == [0, 2, 0]
