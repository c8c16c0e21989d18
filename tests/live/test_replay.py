"""Logged commands win over the replay of another version."""

from __future__ import annotations

import random

import msgspec
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.commands import Command, JobsEnded
from levada.engine import Engine
from levada.engine.replay import Differences, commanded, reconcile
from levada.live import log_entry
from levada.live.history import HistoryWriter
from levada.live.records import JobRecords
from levada.live.recover import Tail
from levada.tables.invariants import check_state
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld
from tests.engine.random_walk import NODES, POLICIES, one_step

_STEPS = 120
#: Events that every version applies: without them there is nothing to compare.
_ALWAYS = (ev.JobsSubmitted, ev.NodesAdded, ev.NodesChanged, ev.NodesLost, ev.PolicyChanged, ev.QueuesChanged)


class Diary:
    """Records the turns of an engine like the live loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._handle = engine, engine.handle
        self._history = HistoryWriter(engine, JobRecords(), 0)
        self.turns: list[bytes] = []
        engine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, *events: ev.Event) -> list[Command]:
        """Handle events and record the turn."""
        state = state_of(self.engine)
        before, first = state.revision, state.world.next_number
        self._history.begin(events, [], state.now)
        commands = self._handle(*events)
        self._history.lines([], [], state.now)
        endings = [command for command in commands if isinstance(command, JobsEnded)]
        ended = tuple(pair for end in endings for pair in zip(end.number.tolist(), end.phase.tolist(), strict=True))
        asked = state.in_view if state.deciding == state.revision else None
        entry = log_entry.encode(before, state.revision, events, asked, first, self._history.commanded_states(), ended)
        self.turns.append(entry)
        return commands


def otherwise(entry: bytes, rng: random.Random, share: float) -> bytes:
    """The turn as replayed by a version that ignores some events."""
    turn = msgspec.msgpack.decode(entry, type=log_entry.LogEntry)
    events = [codec.decode(event) for event in turn.events]
    applied = [
        event if isinstance(event, _ALWAYS) or rng.random() >= share else ev.Tick(at=event.at) for event in events
    ]
    return msgspec.msgpack.encode(msgspec.structs.replace(turn, events=tuple(codec.encode(event) for event in applied)))


def after_a_walk(seed: int) -> tuple[FaultyWorld, Engine, list[bytes], random.Random]:
    """A busy world, its first engine state, and all turns since."""
    rng = random.Random(seed)
    system = FaultyWorld(policy=rng.choice(POLICIES), nodes=NODES)
    for _ in range(30):
        one_step(system, rng)
    first, diary = system.engine.fork(), Diary(system.engine)
    for _ in range(_STEPS):
        one_step(system, rng)
    return system, first, diary.turns, rng


@pytest.mark.parametrize("seed", range(6))
def test_replay_with_the_same_engine_gives_the_same_commands(seed: int) -> None:
    system, twin, turns, _ = after_a_walk(seed)
    tail = Tail(twin)
    for entry in turns:
        tail.add(log_entry.replay(twin, entry))
    assert tail.recorded == commanded(system.engine)
    assert not Differences.between(twin, tail.recorded)


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(7))
def test_replay_with_a_different_engine_loses_and_duplicates_nothing(seed: int, share: float) -> None:
    system, first, turns, rng = after_a_walk(seed)
    twin, before = first.fork(), first.fork()
    tail = Tail(twin)
    for entry in turns:
        log_entry.replay(twin, otherwise(entry, rng, share))
        tail.add(msgspec.msgpack.decode(entry, type=log_entry.LogEntry))
        log_entry.submit(before, entry)
    differ = Differences.between(twin, tail.recorded)
    assert differ or share < 0.1
    if differ:
        reconcile(twin, tail.recorded, differ, tail.ended, before)
    state = state_of(twin)
    assert set(state.world.ids) == set(system.engine.query.ids)
    assert check_state(state.world, submitted=state.submitted, ended=state.ended) == []
    go_on(system, twin)


def go_on(system: FaultyWorld, engine: Engine) -> None:
    """Continue with another engine, like after a restart; `FaultyWorld` checks all invariants and ends."""
    outstanding = engine.outstanding()
    system.engine = engine
    state_of(engine).refused = 0
    system.thoughts.clear()
    # Reports that the engine had not handled are lost with it; running jobs are observed. Otherwise a failure of an
    # operation would count against its second attempt.
    system.reports.clear()
    system.ops += outstanding
    system.tell(ev.Restarted(at=system.now))
    system.observe()
    system.settle()
