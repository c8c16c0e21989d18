"""Every event survives encoding, and invalid bytes are rejected."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Device, Foreign, Node
from levada.core.codec import SCHEMA_VERSION, decode, encode
from levada.core.decision import Bind, Decision, Reservation
from levada.core.job import Tags
from levada.core.queue import Queue
from tests.builders import job

ONE, TWO = np.array([7]), np.array([7, 8])
NODE = Node(name="n", devices=(Device(id="0", type="v100", memory=5, healthy=False),), cpu=9, labels={"rack": "r"})
DECISION = Decision(
    number=TWO,
    type=np.array([1, -1]),
    count=np.array([4, 0]),
    reason=np.array([0, 2]),
    evidence=np.zeros(2, np.int64),
    wake_at=60.0,
    places=np.arange(12).reshape(6, 2),
    placed=np.array([0]),
    rank=np.array([1, 0]),
    binds=(Bind(pod="p", node=1, device=3),),
    reservations=(Reservation(id="r", node=0, cpu=5, devices=((1, 500, 10),)),),
)
JOBS = JobBatch.of([job("a", 1.5, steps=10.0, tags=Tags(affinity="t")), job("b", 2.5, min=2, after=("a",))])

EVENTS: tuple[ev.Event, ...] = (
    ev.JobsSubmitted(at=1.0, jobs=JOBS),
    ev.JobsUpdated(at=1.0, updates=(ev.JobUpdate(number=3, max=8, weight=0.5, queue="q"),)),
    ev.JobsCancelled(at=1.0, number=ONE),
    ev.JobsSuspended(at=1.0, number=ONE),
    ev.JobsResumed(at=1.0, number=np.zeros(0, np.int64)),
    ev.WorkersStarted(at=1.0, number=TWO, generation=TWO, running=TWO),
    ev.WorkersStopped(at=1.0, number=TWO, generation=TWO, running=TWO),
    ev.WorkersFailed(at=1.0, number=ONE, generation=ONE, running=ONE, index=ONE),
    ev.JobsFinished(at=1.0, number=ONE),
    ev.JobsLeft(at=1.0, number=ONE, generation=ONE),
    ev.JobsFailed(at=1.0, number=ONE, generation=ONE),
    ev.Progress(at=1.0, number=TWO, steps=np.array([math.nan, -0.0])),
    ev.CheckpointSaved(at=1.0, number=ONE, generation=ONE),
    ev.SavesOnStop(at=1.0, number=ONE, generation=ONE),
    ev.ResizesInPlace(at=1.0, number=ONE, generation=ONE),
    ev.ResizeModes(at=1.0, number=ONE, in_place=ONE),
    ev.JobsRestarted(at=1.0, number=ONE, generation=ONE),
    ev.NodesAdded(at=1.0, nodes=(NODE,)),
    ev.NodesChanged(at=1.0, nodes=(NODE, Node(name="m", cordoned=True))),
    ev.NodesCordoned(at=1.0, names=("n",), cordoned=False),
    ev.NodesDrained(at=1.0, names=("n",), force=True),
    ev.NodesLost(at=1.0, names=("n", "m")),
    ev.NodesRemoved(at=1.0, names=("m",)),
    ev.ForeignAppeared(at=1.0, foreign=(Foreign(id="f", node="n", devices=("0",), milli=500, serving=True),)),
    ev.ForeignGone(at=1.0, ids=("f",)),
    ev.Released(at=1.0, number=ONE, generation=ONE),
    ev.Running(at=1.0, number=ONE, generation=ONE),
    ev.OperationFailed(at=1.0, number=ONE, generation=ONE, why="no image"),
    ev.OperationTimedOut(at=1.0, number=ONE, generation=ONE),
    ev.Paused(at=1.0, number=TWO, generation=TWO, seconds=np.array([0.25, 3.0])),
    ev.ReservationExpired(at=1.0, ids=("r",)),
    ev.Observed(at=1.0, number=TWO, generation=TWO, running=TWO),
    ev.PolicyChanged(at=1.0, name="fifo", options={"queues": 2, "names": ["a"]}),
    ev.OptionsChanged(at=1.0, options={"min_run_s": 5.0}),
    ev.QueuesChanged(at=1.0, queues=(Queue(name="q", limit={"v100": 2.5}, parent="p"),)),
    ev.PricesChanged(at=1.0, prices={"v100": 2.5}),
    ev.BeliefsChanged(at=1.0),
    ev.Decided(at=1.0, revision=5, decision=DECISION, state={"served": {"7": 1.5}}, took_s=0.25),
    ev.DecideFailed(at=1.0, revision=5, why="ZeroDivisionError"),
    ev.BackendAway(at=1.0),
    ev.BackendBack(at=2.0),
    ev.Restarted(at=1.0),
    ev.Tick(at=math.inf),
)


def test_the_samples_cover_every_event_type() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(ev.Event))


def _assert_same(a: Any, b: Any) -> None:
    """Assert equal values and types, with bit-identical arrays."""
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, msgspec.Struct):
        assert type(a) is type(b)
        for field in a.__struct_fields__:
            _assert_same(getattr(a, field), getattr(b, field))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key, value in a.items():
            _assert_same(value, b[key])
    else:
        assert a == b


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_encoding(event: ev.Event) -> None:
    data = encode(event)
    back = decode(data)
    _assert_same(event, back)
    assert encode(back) == data


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.lists(st.floats(allow_nan=True), max_size=5),
    st.floats(allow_nan=False),
)
def test_columns_survive_encoding_bit_for_bit(numbers: list[int], steps: list[float], at: float) -> None:
    event = ev.Progress(at=at, number=np.array(numbers, np.int64), steps=np.array(steps))
    _assert_same(event, decode(encode(event)))


def test_a_strided_column_is_encoded_by_its_values() -> None:
    column = np.arange(10)[::-3]
    assert encode(ev.JobsFinished(at=0.0, number=column)) == encode(ev.JobsFinished(at=0.0, number=column.copy()))


WHOLE = encode(EVENTS[0])


@given(st.binary(max_size=40) | st.integers(0, len(WHOLE) - 1).map(lambda end: WHOLE[:end]))
def test_garbage_raises_one_error_type(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(data)


@given(st.sampled_from(EVENTS), st.data())
def test_a_flipped_byte_is_rejected_or_gives_another_event(event: ev.Event, data: st.DataObject) -> None:
    raw = bytearray(encode(event))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        back = decode(bytes(raw))
    except msgspec.ValidationError:
        return
    assert isinstance(back, get_args(ev.Event))


@pytest.mark.parametrize(
    "column", [("|O", (1,), b"12345678"), ("<i8", (2,), b"12345678"), ("nonsense", (1,), b""), 5, ("<i8",)]
)
def test_an_invalid_column_is_rejected(column: Any) -> None:
    data = msgspec.msgpack.encode((SCHEMA_VERSION, {"type": "JobsFinished", "at": 0.0, "number": column}))
    with pytest.raises(msgspec.ValidationError):
        decode(data)


def test_another_schema_version_is_rejected() -> None:
    newer = msgspec.msgpack.encode((SCHEMA_VERSION + 1, {"type": "Tick", "at": 0.0}))
    with pytest.raises(msgspec.ValidationError, match="schema"):
        decode(newer)


def test_an_unsupported_object_cannot_be_encoded() -> None:
    with pytest.raises(NotImplementedError):
        encode(ev.Decided(at=0.0, revision=1, decision=DECISION, state=object()))
    with pytest.raises(NotImplementedError):
        encode(ev.JobsFinished(at=0.0, number=np.array([None])))
